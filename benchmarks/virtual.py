"""gepa itself in virtual time: the real host and the real Scheduler, on the landscape, hours in seconds.

Run ``python -m flashevolve_plugins.benchmarks.virtual --help``. Latencies are those of a server whose time per token
does not depend on load; everything else, the host's loop included, is real.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import statistics
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashevolve_plugins import Flash
from flashevolve_plugins.benchmarks.landscape import Landscape
from flashevolve_plugins.benchmarks.server.latency import OutputLengths

if TYPE_CHECKING:
    from collections.abc import Sequence

SEED_INSTRUCTION = "Answer the question."
TOKEN_SECONDS = 0.01
DATASET_SECONDS = 0.001
COMPONENT = "instruction"


@dataclass(frozen=True)
class Run:
    """What one virtual run did.

    Args:
        policy: the staleness policy, or ``"sequential"``.
        seed: of landscape, latencies and optimizer.
        seconds: virtual wall time.
        metric_calls: as the host counts them.
        true_score: of the best candidate by validation, without noise.
        accepted: candidates that entered the pool, without the seed.
        busy: busy share of the task slots from first rollout to last offer; ``None`` for sequential.
    """

    policy: str
    seed: int
    seconds: float
    metric_calls: int
    true_score: float
    accepted: int
    busy: float | None


class LandscapeAdapter:
    """A gepa adapter that answers from the landscape at once; what it would take is virtual.

    Args:
        landscape: the rules.
        slots: examples that the host's own loop evaluates at once.
        seed: of answers and latencies.
    """

    flashevolve_evaluate = "example"

    def __init__(self, landscape: Landscape, slots: int, seed: int) -> None:
        self._landscape = landscape
        self._slots = slots
        self._seed = seed
        self._seen: Counter[str] = Counter()
        self._lengths = OutputLengths()
        self._median = self._lengths.median()
        self._clock = random.Random(seed)

    def evaluate(self, batch: list[str], candidate: dict[str, str], *, capture_traces: bool = False) -> Any:
        """Answer and score every question of a batch."""
        from gepa.core.adapter import EvaluationBatch  # noqa: PLC0415 - only with the extra

        outputs, scores, traces = [], [], []
        for question in batch:
            answer = self._landscape.answer(candidate[COMPONENT], question, self._luck(candidate[COMPONENT], question))
            score, feedback = self._landscape.feedback(question, answer)
            outputs.append(answer)
            scores.append(score)
            traces.append({"question": question, "answer": answer, "feedback": feedback})
        return EvaluationBatch(outputs=outputs, scores=scores, trajectories=traces if capture_traces else None)

    def make_reflective_dataset(self, candidate: dict[str, str], evaluation: Any, components: list[str]) -> Any:
        """The feedback of every example."""
        del candidate
        return {name: [dict(trace) for trace in evaluation.trajectories] for name in components}

    def propose_new_texts(self, candidate: dict[str, str], dataset: Any, components: list[str]) -> dict[str, str]:
        """Reflect as the landscape's model does."""
        texts = {}
        for name in components:
            named = self._landscape.named_rules("\n".join(record["feedback"] for record in dataset[name]))
            luck = self._luck("reflect", candidate[name], *named)
            texts[name] = self._landscape.reflect(candidate[name], named, luck)
        return texts

    def flashevolve_seconds(self, stage: str, *call: Any) -> float:
        """Virtual seconds of a sample: one request, or in lockstep a batch on the host's own threads."""
        if stage == "dataset":
            return DATASET_SECONDS
        if stage == "propose":
            jobs = len(call[0]) if call else 1
            return sum(self._request() for _ in range(jobs))
        first, *rest = call
        if isinstance(first, dict):
            return self._makespan(len(rest[0]))
        if rest:
            return self._makespan(len(first))
        return self._makespan(sum(len(batch) for _, batch in first))

    def _makespan(self, requests: int) -> float:
        ends = [0.0] * min(self._slots, requests)
        for _ in range(requests):
            heapq.heappush(ends, heapq.heappop(ends) + self._request())
        return max(ends)

    def _request(self) -> float:
        return TOKEN_SECONDS * self._lengths.draw(self._clock, self._median)

    def _luck(self, *words: str) -> int:
        text = "\x1f".join(words)
        self._seen[text] += 1
        digest = blake2b(f"{self._seed}\x1f{self._seen[text]}\x1f{text}".encode(), digest_size=8)
        return int.from_bytes(digest.digest(), "big")


class _Silent:
    def log(self, *_: Any) -> None:
        """Log nothing."""


@dataclass(frozen=True)
class Size:
    """How large a run is.

    Args:
        calls: metric calls.
        slots: task slots, and the host's own threads.
        val: validation examples.
        train: training examples.
    """

    calls: int
    slots: int
    val: int
    train: int


def run_virtual(policy: str, seed: int, size: Size) -> Run:
    """Run ``gepa.optimize`` once in virtual time.

    Args:
        policy: ``"sequential"`` for the host's own loop, else a staleness policy; ``"guarded:2"`` sets the bound,
            ``"full/8"`` the items in flight.
        seed: of everything.
        size: how large the run is.
    """
    import gepa  # noqa: PLC0415 - only with the extra

    landscape = Landscape(seed=seed)
    adapter = LandscapeAdapter(landscape, size.slots, seed)
    policy_and_bound, _, items = policy.partition("/")
    name, _, bound = policy_and_bound.partition(":")
    shared: dict[str, Any] = {"clock": "virtual", "progress": False}
    if name == "sequential":
        flash = Flash(lockstep=True, **shared)
    else:
        flash = Flash(
            max_concurrency=size.slots,
            reflection_concurrency=size.slots,
            staleness=name,
            max_staleness=int(bound) if bound else None,
            max_items=int(items) if items else None,
            **shared,
        )
    result = gepa.optimize(
        seed_candidate={COMPONENT: SEED_INSTRUCTION},
        trainset=[example.question for example in landscape.examples("train", size.train)],
        valset=[example.question for example in landscape.examples("val", size.val)],
        adapter=adapter,
        max_metric_calls=size.calls,
        seed=seed,
        logger=_Silent(),
        executor=flash,
    )
    last = flash.last_run
    assert last is not None  # noqa: S101 - the run is over
    return Run(
        policy=policy,
        seed=seed,
        seconds=last.seconds,
        metric_calls=result.total_metric_calls,
        true_score=landscape.true_score(result.best_candidate[COMPONENT]),
        accepted=len(result.candidates) - 1,
        busy=None if name == "sequential" else last.window_busy.get("task"),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Compare policies with the host's own loop.

    Args:
        argv: the arguments.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(prog="virtual", description=__doc__)
    parser.add_argument("--policies", nargs="+", default=["sequential", "full", "guarded:0", "guarded:4"])
    parser.add_argument("--calls", type=int, default=3000, help="metric calls of each run (%(default)s)")
    parser.add_argument("--slots", type=int, default=32, help="task slots (%(default)s)")
    parser.add_argument("--train", type=int, default=150, help="training examples (%(default)s)")
    parser.add_argument("--val", type=int, default=100, help="validation examples (%(default)s)")
    parser.add_argument("--seeds", type=int, default=16, help="number of seeds (%(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (%(default)s)")
    parser.add_argument("--json", help="where to save every figure")
    options = parser.parse_args(argv)
    one = partial(run_virtual, size=Size(options.calls, options.slots, options.val, options.train))
    runs: dict[str, list[Run]] = {}
    with ProcessPoolExecutor(options.jobs) as pool:
        for policy in options.policies:
            runs[policy] = list(pool.map(one, [policy] * options.seeds, range(options.seeds)))
    if options.json:
        figures = {policy: [asdict(run) for run in each] for policy, each in runs.items()}
        Path(options.json).write_text(json.dumps(figures, indent=2) + "\n", "utf-8")
    print(_table(options, runs))
    return 0


def _table(options: argparse.Namespace, runs: dict[str, list[Run]]) -> str:
    base = runs[options.policies[0]]
    lines = [
        (
            f"{options.slots} slots, valset {options.val}, {options.calls} calls, {options.seeds} seeds, virtual time; "
            f"mean (range); time: how many times faster than {options.policies[0]}"
        ),
        "",
        "| policy | true score | time | busy share | metric calls | accepted |",
        "|---|---|---|---|---|---|",
    ]
    for policy, each in runs.items():
        ratios = [before.seconds / run.seconds for before, run in zip(base, each, strict=True)]
        busy = [run.busy for run in each if run.busy is not None]
        cells = [
            _spread([run.true_score for run in each], "{:.2f}"),
            _spread(ratios, "{:.1f}"),
            _spread(busy, "{:.2f}") if busy else "-",
            _spread([run.metric_calls for run in each], "{:.0f}"),
            _spread([run.accepted for run in each], "{:.0f}"),
        ]
        lines.append(f"| {policy} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _spread(values: Sequence[float], form: str) -> str:
    low, middle, high = (form.format(value) for value in (min(values), statistics.mean(values), max(values)))
    return f"{middle} ({low} to {high})"


if __name__ == "__main__":
    sys.exit(main())
