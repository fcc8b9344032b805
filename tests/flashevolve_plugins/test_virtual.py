"""The virtual driver: scheduling claims in virtual time, with items as a host's generator bodies."""

from __future__ import annotations

import random
import sys
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from flashevolve_plugins._driver import SNAPSHOT_EVERY
from flashevolve_plugins._events import OfferCostChanged, SlotsChanged, StageSlotsChanged
from flashevolve_plugins._model import (
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
from flashevolve_plugins._policies import AcceptAll, Judgement
from flashevolve_plugins._pool import Pool
from flashevolve_plugins._virtual import VirtualDriver

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashevolve_plugins._driver import Body, Driver

STAGES = ("rollout", "propose", "gate", "validate")


def _stage(
    name: str, count: int, seconds: Callable[[], float], *, cost: int = 1, then: int = 0, resource: str = "task"
) -> Stage:
    samples = tuple(Sample(partial(int, i), resource, cost=cost, seconds=seconds) for i in range(count))
    return Stage(name, samples, then=then, commits=name == "validate")


def _one() -> float:
    return 1.0


def _item(seconds: Callable[[], float], validation: int = 100, accept: bool = True) -> Body:
    """Three rollouts, one proposal, three gate samples, a validation."""
    yield _stage("rollout", 3, seconds, then=3 + validation)
    yield _stage("propose", 1, seconds, cost=0, then=3 + validation)
    yield _stage("gate", 3, seconds, then=validation)
    if not accept:
        return Outcome(Terminal.REJECTED, "not better")
    scores = yield _stage("validate", validation, seconds)
    return Outcome(Terminal.COMMITTED, payload=scores)


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


def _run(driver: Driver, source: Callable[[int], Body | None]) -> list[ItemRecord]:
    """The loop of a host: tell it of one ended item after the other."""
    records = []
    driver.offer_from(source)
    while (ended := driver.next_ended()) is not None:
        entries = []
        if ended.record.terminal is Terminal.COMMITTED:
            entries.append(PoolEntry(driver.pool.version + 1, ended.number, 0.0, item=ended.number))
        driver.recorded(ended, entries)
        records.append(ended.record)
    return records


def _several(count: int, body: Callable[[int], Body]) -> Callable[[int], Body | None]:
    return lambda number: body(number) if number <= count else None


def _limits(slots: int, budget: int | None = None, **more: Any) -> Limits:
    return Limits(slots={"task": slots}, stages=STAGES, entry="task", budget=budget, **more)


# -- how long it takes ----------------------------------------------------------------------------------------------


def test_one_slot_takes_the_sum_of_all_samples() -> None:
    driver = VirtualDriver(_limits(1))
    records = _run(driver, _several(3, lambda _: _item(_one, validation=5)))
    assert driver.now() == 3 * (3 + 1 + 3 + 5)
    assert [record.ended for record in records] == [12, 24, 36]


def test_equal_samples_interleave_as_computed_by_hand() -> None:
    # Two items of 3 rollouts, 1 proposal, 3 gate samples. What the 3 slots do in each second, item number behind it; of
    # samples that end at the same moment, the one that started first frees its slot first:
    # 0: r1 r1 r1 | 1: r2 r2 p1 | 2: r2 g1 g1 | 3: g1 p2 - | 4: g2 g2 g2
    driver = VirtualDriver(_limits(3))
    records = _run(driver, _several(2, lambda _: _item(_one, accept=False)))
    assert [(record.number, record.started, record.ended) for record in records] == [(1, 0, 4), (2, 1, 5)]
    assert driver.now() == 5


def test_what_is_closest_to_its_commit_takes_the_slot_that_becomes_free() -> None:
    # Two slots, written as above: 0: r1 r1 | 1: r2 v1 | 2: v1 r2 | 3: r3 v2 | 4: v2 r3 | 5: r4 v3 | 6: v3 r4 | 7: v4 v4
    def body(_: int) -> Body:
        yield _stage("rollout", 2, _one)
        yield _stage("validate", 2, _one)
        return Outcome(Terminal.COMMITTED)

    driver = VirtualDriver(_limits(2))
    records = _run(driver, _several(4, body))
    assert [(record.number, record.ended) for record in records] == [(1, 3), (2, 5), (3, 7), (4, 8)]


def test_resources_do_not_wait_for_each_other() -> None:
    def body(_: int) -> Body:
        yield _stage("rollout", 1, _one)
        yield _stage("propose", 1, lambda: 10.0, resource="reflection")
        return Outcome(Terminal.REJECTED, "not better")

    limits = Limits(slots={"task": 1, "reflection": 2}, stages=STAGES, entry="task")
    driver = VirtualDriver(limits)
    records = _run(driver, _several(4, body))
    # Proposals run 1-11, 2-12, then 11-21, 12-22: two at a time, one rollout ahead of each.
    assert [record.ended for record in records] == [11, 12, 21, 22]


@pytest.mark.parametrize("seed", range(5))
def test_slots_stay_busy_between_the_first_and_the_last_offer(seed: int) -> None:
    rng = random.Random(seed)
    limits = _limits(32, budget=10_000, offer_cost=106)
    driver = VirtualDriver(limits)
    records = _run(driver, lambda _: _item(lambda: rng.lognormvariate(0, 0.8), accept=rng.random() < 0.3))
    last = driver.finish()
    assert last.window_busy["task"] > 0.97
    assert last.window[0] == 0
    assert last.window[1] > 0.8 * last.seconds
    assert last.spent <= 10_000
    assert last.reserved == 0
    assert sum(record.spent for record in records) == last.spent


def test_a_slow_sample_holds_up_nobody_else() -> None:
    def body(number: int) -> Body:
        yield _stage("rollout", 1, lambda: 100.0 if number == 1 else 1.0)
        return Outcome(Terminal.REJECTED, "not better")

    driver = VirtualDriver(_limits(2))
    records = _run(driver, _several(50, body))
    assert [record.number for record in records] == [*range(2, 51), 1]
    assert driver.now() == 100


def test_equal_seeds_give_equal_runs_and_other_seeds_do_not() -> None:
    def run(seed: int) -> tuple[list[tuple[Any, ...]], float]:
        rng = random.Random(seed)
        watching = Watching(max_staleness=1)
        driver = VirtualDriver(_limits(7, budget=2_000, offer_cost=106), watching)
        _run(driver, lambda _: _item(lambda: rng.lognormvariate(0, 1), accept=rng.random() < 0.5))
        return watching.seen, driver.now()

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_more_slots_and_stage_caps_take_effect_while_the_run_goes_on() -> None:
    driver = VirtualDriver(_limits(1, stage_slots={"rollout": (1, 2)}))

    def body(number: int) -> Body:
        yield _stage("rollout", 2, _one)
        if number == 1:
            driver.tell(SlotsChanged("task", 4))
        if number == 2:
            driver.tell(StageSlotsChanged("rollout", 0))
        if number == 3:
            driver.tell(OfferCostChanged(1))
        return Outcome(Terminal.REJECTED, "not better")

    records = _run(driver, _several(3, body))
    # Item 1 alone in 1 slot: 2. Item 2 in 4 slots, at most 2 rollouts at once: 3. Item 3 with one rollout at once: 5.
    assert [record.ended for record in records] == [2, 3, 5]


# -- cost per event -------------------------------------------------------------------------------------------------


def _calls(items: int, slots: int) -> float:
    """Python and C calls per sample of a whole run."""
    rng = random.Random(1)
    driver = VirtualDriver(_limits(slots), Watching(max_staleness=4))
    accept = iter([rng.random() < 0.05 for _ in range(items)])
    source = _several(items, lambda _: _item(lambda: rng.lognormvariate(0, 0.5), validation=20, accept=next(accept)))
    count = 0

    def counting(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    driver._next_snapshot = float("inf")  # a view's cost, twice a second, not an event's
    before = sys.getprofile()
    sys.setprofile(counting)
    try:
        _run(driver, source)
    finally:
        sys.setprofile(before)
    return count / sum(driver.snapshot().samples.values())


def test_the_work_per_event_does_not_grow_with_the_items_that_ended() -> None:
    assert _calls(800, 8) < 1.1 * _calls(80, 8)


def test_the_work_per_event_does_not_grow_with_the_items_under_way() -> None:
    assert _calls(800, 160) < 1.2 * _calls(800, 10)


def test_snapshots_come_at_most_twice_a_second() -> None:
    moments: list[float] = []

    class Looking(Watching):
        def snapshot(self, snapshot: Any) -> None:
            moments.append(snapshot.seconds)

    driver = VirtualDriver(_limits(3), Looking())
    _run(driver, _several(30, lambda _: _item(lambda: 0.01, validation=20)))
    assert len(moments) > 2
    assert all(later - earlier >= SNAPSHOT_EVERY for earlier, later in pairwise(moments))
