"""Runs ``dspy.GEPA`` once and measures it from outside, in the same way whatever its executor."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dspy

if TYPE_CHECKING:
    from flashevolve_plugins.benchmarks.tasks import Task


@dataclass(frozen=True)
class Result:
    """What one run did.

    Args:
        name: the executor's name.
        seconds: wall time of ``compile``.
        metric_calls: as the host counts them.
        proposals: proposals that were evaluated on their minibatch.
        accepted: candidates that entered the pool, without the seed.
        requests: LLM requests.
        busy: mean number of requests in flight over the whole run, as a share of the slots.
        window_busy: the executor's own figure from first rollout to last offer; ``None`` for the host's loop.
        best_score: best validation score.
        true_score: the same program's score without noise, where it can be computed.
        cpu_seconds: CPU time of this process.
    """

    name: str
    seconds: float
    metric_calls: int
    proposals: int
    accepted: int
    requests: int
    busy: float
    window_busy: float | None
    best_score: float
    true_score: float | None
    cpu_seconds: float

    @property
    def proposals_per_minute(self) -> float:
        """Proposals per minute of wall time."""
        return 60 * self.proposals / self.seconds


class CountingLM(dspy.LM):
    """A ``dspy.LM`` that keeps the integral of its requests in flight."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Begin to count anew."""
        self.requests = self._in_flight = 0
        self.request_seconds = 0.0
        self._at = time.monotonic()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Send one request."""
        self._change(1)
        try:
            return super().__call__(*args, **kwargs)
        finally:
            self._change(-1)

    def _change(self, by: int) -> None:
        with self._lock:
            now = time.monotonic()
            self.request_seconds += self._in_flight * (now - self._at)
            self._at = now
            self._in_flight += by
            self.requests += by > 0

    def __deepcopy__(self, memo: Any) -> CountingLM:
        return self  # every copy of the program shares one count


class _Counting:
    """gepa callbacks that count proposals and candidates."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def on_candidate_accepted(self, event: Any) -> None:
        """A proposal entered the pool."""
        del event
        self.counts["accepted"] += 1

    def on_candidate_rejected(self, event: Any) -> None:
        """A proposal did not."""
        del event
        self.counts["rejected"] += 1


def run_gepa(name: str, task: Task, lm: CountingLM, *, executor: Any, **options: Any) -> Result:
    """Run ``dspy.GEPA`` once.

    Args:
        name: what to call the run.
        task: what to optimize on.
        lm: task and reflection model in one.
        executor: ``None`` for the host's own loop, or a ``Flash``.
        options: further arguments of ``dspy.GEPA``; ``num_threads`` and a budget are needed.
    """
    counting = _Counting()
    optimizer = dspy.GEPA(
        metric=task.metric,
        reflection_lm=lm,
        track_stats=True,
        gepa_kwargs={"callbacks": [counting]},
        executor=executor,
        **options,
    )
    lm.reset()
    started, cpu = time.monotonic(), time.process_time()
    with dspy.context(lm=lm, adapter=task.adapter):
        best = optimizer.compile(task.program(), trainset=task.trainset, valset=task.valset)
    seconds = time.monotonic() - started
    details = best.detailed_results
    last_run = getattr(executor, "last_run", None)
    return Result(
        name=name,
        seconds=seconds,
        metric_calls=details.total_metric_calls,
        proposals=counting.counts.total(),
        accepted=counting.counts["accepted"],
        requests=lm.requests,
        busy=lm.request_seconds / (seconds * options["num_threads"]),
        window_busy=None if last_run is None else last_run.window_busy.get("task"),
        best_score=max(details.val_aggregate_scores),
        true_score=None if task.true_score is None else task.true_score(best.signature.instructions),
        cpu_seconds=time.process_time() - cpu,
    )
