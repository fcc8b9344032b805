"""The one immutable statistics object that every view reads, and the meter that makes it."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from math import isnan
from typing import TYPE_CHECKING

from flashevolve_plugins._model import Terminal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flashevolve_plugins._calls import Calls
    from flashevolve_plugins._model import ItemRecord, PoolEntry
    from flashevolve_plugins._scheduler import Scheduler


@dataclass(frozen=True)
class Snapshot:
    """What a run looks like at one moment. Durations and moments are seconds since the run began.

    Args:
        seconds: the moment.
        slots: resource name to its number of slots.
        busy: resource name to its busy slots.
        entry: the resource on which items begin.
        waiting: stage name to its waiting samples.
        running: stage name to its running samples.
        workers: stage name to the items that may be at work in it at once, ``None`` for any number.
        at_work: stage name to the items at work in it: of which a sample has started and not all have ended.
        finished: stage name to the items that have passed it.
        items: items in flight.
        queued: items that wait in the merge queue.
        ended: terminal's value to the number of items that ended so.
        samples: stage name to its finished samples.
        sample_seconds: stage name to the slot seconds they took.
        staleness: staleness at the start of the validation to the number of committed items.
        version: the pool's version.
        spent: metric calls settled.
        reserved: metric calls reserved.
        spared: metric calls that were not made, since what they would have given was known.
        feedback_calls: metric calls that reflective datasets made. The host makes them too, and its budget counts none.
        budget: metric calls in all, or ``None``.
        validates: whether artifacts are validated before they enter the pool.
        examples: of a validation, where the host says so before the first one; else 0.
        seed_score: the seed's validation score, or ``None`` before it is known.
        best_score: the best validation score, or ``None`` before the seed's is known.
        busy_seconds: resource name to the slot seconds used since the run began.
        window: (first, last) moment of the steady part: from the first rollout to the last offer.
        window_busy: resource name to the share of slot time used inside the window, 0 to 1.
        retries: samples that were tried again since they met an infrastructure failure, each time counted.
        failures: kind of infrastructure failure to their number.
        outage: seconds since a server answered last, while one does not; else 0.
        outage_reason: the last error of that server, in one line.
        outage_seconds: seconds of outages so far.
        abandoned: calls that nobody waits for any more and that have not returned.
    """

    seconds: float = 0.0
    slots: Mapping[str, int] = field(default_factory=dict)
    busy: Mapping[str, int] = field(default_factory=dict)
    entry: str = ""
    waiting: Mapping[str, int] = field(default_factory=dict)
    running: Mapping[str, int] = field(default_factory=dict)
    workers: Mapping[str, int | None] = field(default_factory=dict)
    at_work: Mapping[str, int] = field(default_factory=dict)
    finished: Mapping[str, int] = field(default_factory=dict)
    items: int = 0
    queued: int = 0
    ended: Mapping[str, int] = field(default_factory=dict)
    samples: Mapping[str, int] = field(default_factory=dict)
    sample_seconds: Mapping[str, float] = field(default_factory=dict)
    staleness: Mapping[int, int] = field(default_factory=dict)
    version: int = 0
    spent: int = 0
    reserved: int = 0
    spared: int = 0
    feedback_calls: int = 0
    budget: int | None = None
    validates: bool = True
    examples: int = 0
    seed_score: float | None = None
    best_score: float | None = None
    busy_seconds: Mapping[str, float] = field(default_factory=dict)
    window: tuple[float, float] = (0.0, 0.0)
    window_busy: Mapping[str, float] = field(default_factory=dict)
    retries: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    outage: float = 0.0
    outage_reason: str = ""
    outage_seconds: float = 0.0
    abandoned: int = 0

    @property
    def proposals(self) -> int:
        """Items that reached an end of their own: committed, merged or rejected."""
        own = (Terminal.COMMITTED, Terminal.MERGED, Terminal.REJECTED)
        return sum(self.ended.get(terminal.value, 0) for terminal in own)

    @property
    def accepted(self) -> int:
        """Items that entered the pool."""
        return self.ended.get(Terminal.COMMITTED.value, 0)


class Meter:
    """Counts what a driver does, with the driver's clock.

    Args:
        start: the driver's clock at the start of the run.
    """

    def __init__(self, start: float) -> None:
        self._start = start
        self.spared = 0
        self._busy: defaultdict[str, int] = defaultdict(int)
        #: Resource name to the moments at which samples ended, less those at which they started, summed.
        self._moments: defaultdict[str, float] = defaultdict(float)
        self._marks: list[tuple[float, dict[str, float]]] = []
        self._ended: Counter[str] = Counter()
        self._samples: defaultdict[str, int] = defaultdict(int)
        self._sample_seconds: defaultdict[str, float] = defaultdict(float)
        self._staleness: Counter[int] = Counter()
        self.seed_score: float | None = None
        self.best_score: float | None = None

    def _busy_seconds(self, now: float) -> dict[str, float]:
        """Resource name to the slot seconds used: of samples that ended, and of those that run up to now."""
        return {
            resource: moments + self._busy[resource] * self.seconds(now) for resource, moments in self._moments.items()
        }

    def seconds(self, now: float) -> float:
        """Seconds since the run began."""
        return now - self._start

    def sample_started(self, now: float, resource: str) -> None:
        """A slot of ``resource`` became busy."""
        self._busy[resource] += 1
        self._moments[resource] -= now - self._start

    def sample_ended(self, now: float, resource: str, stage: str, seconds: float) -> None:
        """A slot of ``resource`` became free after ``seconds`` of a sample of ``stage``."""
        self._busy[resource] -= 1
        self._moments[resource] += now - self._start
        self._samples[stage] += 1
        self._sample_seconds[stage] += seconds

    def offered(self, now: float) -> None:
        """An item was offered: the steady part reaches at least to here."""
        mark = (now, self._busy_seconds(now))
        if len(self._marks) < 2:  # noqa: PLR2004 - the first and the last
            self._marks.append(mark)
        else:
            self._marks[1] = mark

    def item_ended(self, record: ItemRecord) -> None:
        """An item reached its terminal."""
        self._ended[record.terminal.value] += 1
        if record.terminal is Terminal.COMMITTED:
            self._staleness[record.staleness] += 1

    def pool_updated(self, entry: PoolEntry) -> None:
        """An artifact entered the pool."""
        if isnan(entry.score):
            return
        if self.seed_score is None:
            self.seed_score = entry.score
        self.best_score = entry.score if self.best_score is None else max(self.best_score, entry.score)

    def snapshot(
        self, now: float, scheduler: Scheduler, feedback_calls: int = 0, calls: Calls | None = None, abandoned: int = 0
    ) -> Snapshot:
        """What the run looks like now."""
        outage, reason = (0.0, "") if calls is None else calls.trouble(now)
        window, share = (0.0, 0.0), {}
        if len(self._marks) == 2:  # noqa: PLR2004
            (first, before), (last, after) = self._marks
            window = (first - self._start, last - self._start)
            if last > first:
                share = {
                    name: (after.get(name, 0.0) - before.get(name, 0.0)) / (slots * (last - first))
                    for name, slots in scheduler.slots.items()
                    if slots
                }
        workforce = scheduler.workforce
        return Snapshot(
            seconds=now - self._start,
            slots=dict(scheduler.slots),
            busy=dict(scheduler.busy),
            entry=scheduler.entry,
            waiting=dict(scheduler.stage_waiting),
            running=dict(scheduler.stage_busy),
            workers={stage: workforce.caps.get(stage) for stage in workforce.at_work},
            at_work=dict(workforce.at_work),
            finished=dict(workforce.finished),
            items=len(scheduler.items),
            queued=len(scheduler.merge_queue.waiting),
            ended=dict(self._ended),
            samples=dict(self._samples),
            sample_seconds=dict(self._sample_seconds),
            staleness=dict(self._staleness),
            version=scheduler.version,
            spent=scheduler.ledger.spent,
            reserved=scheduler.ledger.reserved,
            spared=self.spared,
            feedback_calls=feedback_calls,
            budget=scheduler.ledger.limit,
            validates=scheduler.validates,
            examples=scheduler.examples,
            seed_score=self.seed_score,
            best_score=self.best_score,
            busy_seconds=self._busy_seconds(now),
            window=window,
            window_busy=share,
            retries=0 if calls is None else calls.retries,
            failures={} if calls is None else dict(calls.failures),
            outage=outage,
            outage_reason=reason,
            outage_seconds=0.0 if calls is None else calls.outage_seconds(now),
            abandoned=abandoned,
        )
