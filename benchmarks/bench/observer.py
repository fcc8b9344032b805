"""Watches a run from outside: pool changes through the host's callbacks, requests through a gauge."""

from __future__ import annotations

import threading
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from flashevolve_plugins.benchmarks.bench.record import Point

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PARTS = 120  # of the run, for the number of requests in flight over time


class Gauge:
    """How many requests are in flight, over time.

    Args:
        now: the clock, in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._levels: list[tuple[float, int]] = [(now(), 0)]
        self.requests = 0

    def change(self, by: int) -> None:
        """A request began (1) or ended (-1)."""
        with self._lock:
            self._levels.append((self._now(), self._levels[-1][1] + by))
            self.requests += by > 0

    @property
    def most(self) -> int:
        """The most requests that were in flight at once."""
        return max(level for _, level in self._levels)

    def means(self, end: float, parts: int = PARTS) -> list[float]:
        """The mean number in flight in each of the equal parts from the start to ``end``."""
        start = self._levels[0][0]
        width = (end - start) / parts
        if width <= 0:
            return [0.0] * parts
        sums = [0.0] * parts
        for (begin, level), (until, _) in pairwise([*self._levels, (end, 0)]):
            first, last = (min(parts - 1, max(0, int((at - start) / width))) for at in (begin, until))
            for part in range(first, last + 1):
                overlap = min(until, start + (part + 1) * width) - max(begin, start + part * width)
                sums[part] += level * max(0.0, overlap)
        return [each / width for each in sums]

    def integral(self, value: Callable[[int], float], begin: float, end: float) -> float:
        """A function of the number in flight, integrated over the time from ``begin`` to ``end``."""
        stays = pairwise([*self._levels, (end, 0)])
        return sum(value(level) * max(0.0, min(until, end) - max(at, begin)) for (at, level), (until, _) in stays)


class Observer:
    """gepa callbacks that note every change of the pool.

    Args:
        now: the clock, in seconds.
        calls: metric calls made so far.
        score: the true score of a candidate, or ``None`` where only the validation score is known.
    """

    def __init__(
        self, now: Callable[[], float], calls: Callable[[], int], score: Callable[[dict[str, str]], float] | None
    ) -> None:
        self._now = now
        self._calls = calls
        self._score = score
        self._start = now()
        self._depths: dict[int, int] = {}
        self._stage = "validate"
        self._since = self._start
        self.curve: list[Point] = []
        self.best = float("-inf")
        self.depth = 0
        self.host_calls = 0
        self.counts: Counter[str] = Counter()
        self.stages: dict[str, float] = {}

    def on_valset_evaluated(self, event: Any) -> None:
        """A candidate, the seed among them, was validated and entered the pool."""
        parents = [self._depths[parent] for parent in event["parent_ids"] if parent is not None]
        self._depths[event["candidate_idx"]] = depth = 1 + max(parents, default=-1)
        self.counts["sweeps"] += 1
        score = event["average_score"]
        if score > self.best:
            self.best, self.depth = score, depth
            score = score if self._score is None else self._score(event["candidate"])
        else:
            score = self.curve[-1].score
        self.curve.append(Point(self._now() - self._start, self._calls(), score))
        self._enter("other")

    def on_candidate_accepted(self, event: Any) -> None:
        """A proposal entered the pool."""
        del event
        self.counts["accepted"] += 1

    def on_candidate_rejected(self, event: Any) -> None:
        """A proposal did not."""
        del event
        self.counts["rejected"] += 1

    def on_optimization_end(self, event: Any) -> None:
        """The run is over."""
        self.host_calls = event["total_metric_calls"]

    @property
    def proposals(self) -> int:
        """Proposals that were evaluated on their minibatch."""
        return self.counts["accepted"] + self.counts["rejected"]

    # -- what a synchronous host is at; under flash these come together when an item has ended -----------------------

    def on_iteration_start(self, event: Any) -> None:
        """The host evaluates parents on their minibatches."""
        del event
        self._enter("rollout")

    def on_evaluation_end(self, event: Any) -> None:
        """Parents have been evaluated, or children (which have no number yet)."""
        self._enter("validate" if event["candidate_idx"] is None else "propose")

    def on_proposal_end(self, event: Any) -> None:
        """The host evaluates children on their minibatches."""
        del event
        self._enter("gate")

    def on_iteration_end(self, event: Any) -> None:
        """The host is between two iterations."""
        del event
        self._enter("other")

    def _enter(self, stage: str) -> None:
        now = self._now()
        self.stages[self._stage] = self.stages.get(self._stage, 0.0) + now - self._since
        self._stage, self._since = stage, now


def shares(parts: Mapping[str, float]) -> dict[str, float]:
    """Each part as a share of all."""
    whole = sum(parts.values())
    return {name: each / whole for name, each in parts.items()} if whole else {}
