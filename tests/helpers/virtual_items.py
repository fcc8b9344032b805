"""Items, limits and a host's loop for tests in virtual time."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._model import (
    Evidence,
    ItemRecord,
    ItemView,
    Limits,
    Outcome,
    PoolEntry,
    Sample,
    Stage,
    Terminal,
    Verdict,
)
from flashevolve_plugins._policies import AcceptAll, Batch, Judgement

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flashevolve_plugins._bodies import Body, Merger
    from flashevolve_plugins._driver import Driver
    from flashevolve_plugins._pool import Pool

STAGES = ("rollout", "propose", "gate", "queue", "judge", "merge", "validate")


def make_stage(
    name: str, count: int, seconds: Callable[[], float], *, cost: int = 1, then: int = 0, resource: str = "task"
) -> Stage:
    samples = tuple(Sample(partial(int, i), resource, cost=cost, seconds=seconds) for i in range(count))
    return Stage(name, samples, then=then, commits=name == "validate")


def one_second() -> float:
    return 1.0


def full_item(seconds: Callable[[], float], validation: int = 100, accept: bool = True) -> Body:
    """Three rollouts, one proposal, three gate samples, a validation."""
    yield make_stage("rollout", 3, seconds, then=3 + validation)
    yield make_stage("propose", 1, seconds, cost=0, then=3 + validation)
    yield make_stage("gate", 3, seconds, then=validation)
    if not accept:
        return Outcome(Terminal.REJECTED, "not better")
    scores = yield make_stage("validate", validation, seconds)
    return Outcome(Terminal.COMMITTED, payload=scores)


def gained(artifact: Any, gain: float = 1.0) -> Evidence:
    """What a gate says of an artifact."""
    return Evidence(artifact, parent=1, before=(0.0,), after=(gain,))


def queue_stage(artifact: Any, gain: float = 1.0, validation: int = 4) -> Stage:
    return Stage("queue", (), then=validation, holds=True, shared=validation, evidence=gained(artifact, gain))


def queued_item(number: int, gain: float = 1.0, validation: int = 4) -> Body:
    """One rollout of as many seconds as its number, a wait in the merge queue, a validation of one second."""
    yield make_stage("rollout", 1, lambda: float(number), then=validation)
    yield queue_stage(f"artifact {number}", gain, validation)
    scores = yield make_stage("validate", validation, one_second)
    return Outcome(Terminal.COMMITTED, payload=scores)


def merging(accept: bool = True, validation: int = 4, seconds: Callable[[], float] = one_second) -> Merger:
    """Makes merges that write for a second, or ``seconds``, and pass their gate or not."""

    def body(number: int, batch: Batch) -> Body:
        yield make_stage("merge", 1, seconds, then=validation)
        if not accept:
            return Outcome(Terminal.REJECTED, "not better", evidence=gained(f"{number} of {batch.members}", -1.0))
        yield make_stage("validate", validation, one_second)
        return Outcome(Terminal.COMMITTED, evidence=gained(f"{number} of {batch.members}"))

    return body


def rejected_item(_: int, seconds: float = 1.0) -> Body:
    """Rejected after one rollout."""
    yield make_stage("rollout", 1, lambda: seconds)
    return Outcome(Terminal.REJECTED, "not better")


class Watching(AcceptAll):
    """Writes down what it is told; discards what is staler than it likes."""

    def __init__(self, max_staleness: int | None = None) -> None:
        self.max_staleness = max_staleness
        self.seen: list[tuple[Any, ...]] = []
        self.records: list[ItemRecord] = []
        self.judged: list[ItemView] = []

    def judge_stale(self, item: ItemView, pool: Pool) -> Judgement:
        assert item.staleness == len(pool.since(item.version)) > 0
        self.judged.append(item)
        if self.max_staleness is not None and item.staleness > self.max_staleness:
            return Judgement(Verdict.DISCARD, f"{item.staleness} entries too old")
        return Judgement(Verdict.ACCEPT)

    def stage_started(self, item: int, stage: str) -> None:
        self.seen.append(("started", item, stage))

    def stage_finished(self, item: int, stage: str) -> None:
        self.seen.append(("finished", item, stage))

    def item_ended(self, record: ItemRecord) -> None:
        self.records.append(record)
        self.seen.append(("ended", record.number, record.terminal))

    def pool_updated(self, entry: PoolEntry) -> None:
        self.seen.append(("pool", entry.item, entry.version))


class Queueing(Watching):
    """Lets items wait, and lets leave what ``take`` says, given the waiting items and whether nothing else is left.

    Writes down who waited when it was asked, and whether that was the last call.
    """

    holds = True

    def __init__(self, take: Callable[[Sequence[ItemView], bool], Batch], max_staleness: int | None = None) -> None:
        super().__init__(max_staleness)
        self._take = take
        self.asked: list[tuple[tuple[int, ...], bool]] = []
        self.waited: list[ItemView] = []

    def merge_batch(self, waiting: Sequence[ItemView], pool: Pool, *, last: bool) -> Batch:
        del pool
        self.asked.append((tuple(each.number for each in waiting), last))
        self.waited.extend(waiting)
        return self._take(waiting, last)


def write_nothing(*_: Any) -> None:
    """Stands for a merging policy's function; the bodies of merges here do not call it."""


def run_host(driver: Driver, source: Callable[[int], Body | None], merger: Merger | None = None) -> list[ItemRecord]:
    """The loop of a host: tell it of one ended item after the other. Returns the records, as observers have them."""
    records = []
    driver.offer_from(source, merger)
    while (ended := driver.next_ended()) is not None:
        entries = []
        if ended.record.terminal is Terminal.COMMITTED:
            entries.append(PoolEntry(driver.pool.version + 1, ended.number, 0.0, item=ended.number))
        driver.recorded(ended, entries)
        records.append(replace(ended.record, entries=tuple(entry.version for entry in entries)))
    return records


def cancel_after(driver: Driver, count: int) -> None:
    """A host that cancels when it has been told of so many items."""
    ended = driver.next_ended()
    while ended is not None:
        driver.recorded(ended, [PoolEntry(1, None, 0.0)] if ended.record.terminal is Terminal.COMMITTED else [])
        count -= 1
        if count == 0:
            driver.stop("Ctrl-C", cancel=True)
        ended = driver.next_ended()


def ends_of(records: Sequence[ItemRecord]) -> dict[int, str]:
    """The terminal of each item."""
    return {record.number: record.terminal.value for record in records}


def several(count: int, body: Callable[[int], Body]) -> Callable[[int], Body | None]:
    return lambda number: body(number) if number <= count else None


def make_limits(slots: int, budget: int | None = None, **more: Any) -> Limits:
    return Limits(slots={"task": slots}, stages=STAGES, entry="task", budget=budget, **more)
