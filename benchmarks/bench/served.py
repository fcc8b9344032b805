"""One run through a server, with the hosts' own programs, models and adapters."""

from __future__ import annotations

import logging
import os
import resource
import time
from contextlib import redirect_stdout
from dataclasses import dataclass
from http.client import HTTPException
from io import StringIO
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

from flashevolve_plugins import Flash
from flashevolve_plugins._errors import UsageError
from flashevolve_plugins.benchmarks.bench.observer import Gauge, Observer, shares
from flashevolve_plugins.benchmarks.bench.record import Record
from flashevolve_plugins.benchmarks.bench.rivals import parse
from flashevolve_plugins.benchmarks.bench.versions import versions
from flashevolve_plugins.benchmarks.presets import PRESETS, SEED_INSTRUCTION
from flashevolve_plugins.benchmarks.server.metrics import parse_metrics

if TYPE_CHECKING:
    from flashevolve_plugins.benchmarks.bench.cells import Cell, RunKey
    from flashevolve_plugins.benchmarks.bench.rivals import Rival
    from flashevolve_plugins.benchmarks.tasks import Task

SIMULATED = "simulated"
_TOKENS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")


@dataclass(frozen=True)
class Endpoint:
    """A server to run on.

    Args:
        base_url: its OpenAI base URL.
        model: the model's name there.
        max_tokens: tokens of an answer at most.
    """

    base_url: str
    model: str = SIMULATED
    max_tokens: int = 8000

    @property
    def options(self) -> dict[str, Any]:
        """What a language model of either host is made of."""
        return {
            "model": f"openai/{self.model}",
            "api_base": self.base_url,
            "api_key": os.environ.get("OPENAI_API_KEY", "none"),
            "temperature": 1.0,
            "max_tokens": self.max_tokens,
        }

    def tokens(self) -> int | None:
        """Prompt and output tokens served so far, or ``None`` if the server does not tell as vLLM does."""
        try:
            with urlopen(f"{self.base_url.removesuffix('/v1')}/metrics", timeout=10) as page:  # noqa: S310 - the user's own URL
                values = parse_metrics(page.read().decode())
            return round(sum(values[name] for name in _TOKENS))
        except (OSError, HTTPException, ValueError, KeyError):
            return None


def run_served(key: RunKey, endpoint: Endpoint, *, data: str | None = None) -> Record:
    """Run the rival that a key names on a server.

    Args:
        key: which run.
        endpoint: the server.
        data: a file of examples instead of the cell's landscape.
    """
    rival = parse(key.rival)
    flash = None if rival.flash is None else Flash(**rival.flash, progress=False)
    return measure(key, rival, flash, endpoint, make_task(key.cell, key.seed, data))


def make_task(cell: Cell, seed: int, data: str | None = None) -> Task:
    """The task of a run.

    Args:
        cell: the setting.
        seed: of the landscape, or of the choice of examples.
        data: a file of examples instead of the cell's landscape.

    Raises:
        UsageError: a file that cannot be used.
    """
    os.environ.setdefault("TQDM_DISABLE", "1")  # read when tqdm is imported: the host's own bar
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it asks the network for a price list otherwise
    from flashevolve_plugins.benchmarks.tasks import file_task, landscape_task  # noqa: PLC0415 - imports dspy

    if data is not None:
        return file_task(data, train=cell.train, val=cell.val, seed=seed)
    preset = PRESETS[cell.landscape]
    return landscape_task(preset.landscape(seed), train=cell.train, val=cell.val, parts=preset.parts)


def measure(key: RunKey, rival: Rival, flash: Flash | None, endpoint: Endpoint, task: Task) -> Record:
    """Run a host's optimizer on a server, and measure it.

    Args:
        key: which run; its rival is only a name here.
        rival: the host, and its strategies.
        flash: the executor, or ``None`` for the host's own loop.
        endpoint: the server.
        task: what is optimized.
    """
    from flashevolve_plugins.benchmarks.measure import CountingMetric  # noqa: PLC0415 - imports dspy

    logging.getLogger("dspy").setLevel(logging.CRITICAL)  # each example that fails is an error there
    _warm_up(rival, endpoint)
    metric, gauge = CountingMetric(task.metric), Gauge(time.monotonic)
    observer = Observer(time.monotonic, lambda: metric.calls, task.true_score)
    run = _Run(key, rival, task, endpoint, metric, gauge, observer, flash)
    tokens, cpu, started = endpoint.tokens(), time.process_time(), time.monotonic()
    with redirect_stdout(StringIO()):  # where a host draws a bar for every batch
        run.on_gepa() if rival.host == "gepa" else run.on_dspy()
    ended, used, total = time.monotonic(), time.process_time() - cpu, endpoint.tokens()
    in_flight = gauge.means(ended)
    last = None if flash is None else flash.last_run
    return Record(
        clock="server",
        cell=key.cell,
        rival=key.rival,
        seed=key.seed,
        seconds=ended - started,
        metric_calls=max(metric.calls, observer.host_calls),
        proposals=observer.proposals,
        accepted=observer.counts["accepted"],
        sweeps=observer.counts["sweeps"],
        requests=gauge.requests,
        tokens=None if tokens is None or total is None else total - tokens,
        busy=sum(in_flight) / len(in_flight) / key.cell.slots,
        window_busy=None if last is None else last.window_busy.get("task"),
        most_in_flight=gauge.most,
        best_validation=observer.best,
        depth=observer.depth,
        curve=observer.curve,
        staleness={} if last is None else dict(last.staleness),
        stages=shares(observer.stages if last is None else last.sample_seconds),
        in_flight=in_flight,
        cpu_seconds=used,
        peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        versions=versions("dspy", "gepa", "litellm"),
    )


def _warm_up(rival: Rival, endpoint: Endpoint) -> None:
    """Send one request as the host would, so that no import and no first connection is measured."""
    import dspy  # noqa: PLC0415 - only where it runs
    from gepa.lm import LM  # noqa: PLC0415

    model = LM(**endpoint.options) if rival.host == "gepa" else dspy.LM(**endpoint.options, cache=False)
    model("Hello")


@dataclass(frozen=True)
class _Run:
    """One call of a host's optimizer."""

    key: RunKey
    rival: Rival
    task: Task
    endpoint: Endpoint
    metric: Any
    gauge: Gauge
    observer: Observer
    flash: Flash | None

    def on_dspy(self) -> None:
        """Run ``dspy.GEPA``."""
        import dspy  # noqa: PLC0415 - only where it runs

        from flashevolve_plugins.benchmarks.measure import CountingLM  # noqa: PLC0415

        lm = CountingLM(self.gauge, **self.endpoint.options, cache=False)
        optimizer = dspy.GEPA(
            metric=self.metric,
            reflection_lm=lm,
            num_threads=self.key.cell.slots,
            max_metric_calls=self.key.cell.calls,
            seed=self.key.seed,
            gepa_kwargs={"callbacks": [self.observer], **self.rival.strategies()},
            executor=self.flash,
        )
        with dspy.context(lm=lm, adapter=self.task.adapter):
            optimizer.compile(self.task.program(), trainset=self.task.trainset, valset=self.task.valset)

    def on_gepa(self) -> None:
        """Run ``gepa.optimize`` with its own batched reflection."""
        import gepa  # noqa: PLC0415 - only where it runs

        from flashevolve_plugins.benchmarks.bench.gepa_adapter import SideBySideAdapter  # noqa: PLC0415
        from flashevolve_plugins.benchmarks.measure import CountingGepaLM  # noqa: PLC0415

        if self.task.parts > 1:
            raise UsageError(f"--rivals {self.rival.name}: gepa's own adapter has one component, this landscape more.")
        lm = CountingGepaLM(self.gauge, **self.endpoint.options)
        gepa.optimize(
            seed_candidate={"instruction": SEED_INSTRUCTION},
            trainset=self.task.trainset,
            valset=self.task.valset,
            adapter=SideBySideAdapter(lm, self.metric, self.key.cell.slots),
            reflection_lm=lm,
            max_metric_calls=self.key.cell.calls,
            seed=self.key.seed,
            callbacks=[self.observer],
            executor=self.flash,
            **self.rival.strategies(),
        )
