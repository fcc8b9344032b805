"""Counters under vLLM's names, in Prometheus' text form."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flashevolve_plugins.benchmarks.server.engine import Engine

__all__ = ["Counters", "parse_metrics"]


@dataclass
class Counters:
    """What a server has done so far.

    Args:
        prompt_tokens: of finished requests.
        generation_tokens: of finished requests.
        finished: requests by how they ended: "stop", "length" or "abort".
        latencies: seconds from arrival to the end, summed over finished requests.
        refused: requests that got status 429.
    """

    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    latencies: float = 0.0
    refused: int = 0

    def render(self, engine: Engine, model: str, max_num_seqs: int) -> str:
        """Return the page of ``GET /metrics``.

        Args:
            engine: supplies the gauges.
            model: the label ``model_name``.
            max_num_seqs: the most requests that run at once.
        """
        engine.settle()
        label = f'model_name="{model}"'
        ended = sum(count for reason, count in self.finished.items() if reason != "abort")
        latency = "vllm:e2e_request_latency_seconds"
        lines = [
            *_series("vllm:num_requests_running", "gauge", {label: engine.running}),
            *_series("vllm:num_requests_waiting", "gauge", {label: engine.waiting}),
            *_series("vllm:kv_cache_usage_perc", "gauge", {label: engine.running / max_num_seqs}),
            *_series("vllm:prompt_tokens_total", "counter", {label: self.prompt_tokens}),
            *_series("vllm:generation_tokens_total", "counter", {label: self.generation_tokens}),
            *_series(
                "vllm:request_success_total",
                "counter",
                {f'finished_reason="{r}",{label}': self.finished[r] for r in ("stop", "length", "abort")},
            ),
            f"# TYPE {latency} histogram",
            f'{latency}_bucket{{le="+Inf",{label}}} {ended}',
            f"{latency}_sum{{{label}}} {self.latencies!r}",
            f"{latency}_count{{{label}}} {ended}",
            *_series("simulated:slot_seconds_total", "counter", {label: engine.slot_seconds}),
            *_series("simulated:requests_refused_total", "counter", {label: self.refused}),
        ]
        return "\n".join(lines) + "\n"


def parse_metrics(page: str) -> dict[str, float]:
    """Read a page of metrics.

    Returns:
        Each series under its full text, and under its bare name the sum of all series of that name.
    """
    values: dict[str, float] = {}
    for line in page.splitlines():
        series, _, value = line.rpartition(" ")
        if not series or line.startswith("#"):
            continue
        name = series.split("{", 1)[0]
        if name != series:
            values[series] = float(value)
        values[name] = values.get(name, 0.0) + float(value)
    return values


def _series(name: str, kind: str, values: dict[str, float]) -> Iterable[str]:
    """Return the lines of one metric, one per set of labels."""
    yield f"# TYPE {name} {kind}"
    for labels, value in values.items():
        yield f"{name}{{{labels}}} {value!r}"
