"""The virtual driver: scheduling claims in virtual time, with items as a host's generator bodies."""

from __future__ import annotations

import random
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from virtual_items import STAGES, Watching, full_item, make_limits, make_stage, one_second, run_host, several

from flashevolve_plugins._driver import SNAPSHOT_EVERY
from flashevolve_plugins._events import OfferCostChanged, SlotsChanged, WorkersChanged
from flashevolve_plugins._model import (
    Limits,
    Outcome,
    Terminal,
)
from flashevolve_plugins._virtual import VirtualDriver

if TYPE_CHECKING:
    from flashevolve_plugins._bodies import Body

# -- how long it takes ----------------------------------------------------------------------------------------------


def test_one_slot_takes_the_sum_of_all_samples() -> None:
    driver = VirtualDriver(make_limits(1))
    records = run_host(driver, several(3, lambda _: full_item(one_second, validation=5)))
    assert driver.now() == 3 * (3 + 1 + 3 + 5)
    assert [record.ended for record in records] == [12, 24, 36]


def test_equal_samples_interleave_as_computed_by_hand() -> None:
    # Two items of 3 rollouts, 1 proposal, 3 gate samples. What the 3 slots do in each second, item number behind it; of
    # samples that end at the same moment, the one that started first frees its slot first:
    # 0: r1 r1 r1 | 1: r2 r2 p1 | 2: r2 g1 g1 | 3: g1 p2 - | 4: g2 g2 g2
    driver = VirtualDriver(make_limits(3))
    records = run_host(driver, several(2, lambda _: full_item(one_second, accept=False)))
    assert [(record.number, record.started, record.ended) for record in records] == [(1, 0, 4), (2, 1, 5)]
    assert driver.now() == 5


def test_what_is_closest_to_its_commit_takes_the_slot_that_becomes_free() -> None:
    # Two slots, written as above: 0: r1 r1 | 1: r2 v1 | 2: v1 r2 | 3: r3 v2 | 4: v2 r3 | 5: r4 v3 | 6: v3 r4 | 7: v4 v4
    def body(_: int) -> Body:
        yield make_stage("rollout", 2, one_second)
        yield make_stage("validate", 2, one_second)
        return Outcome(Terminal.COMMITTED)

    driver = VirtualDriver(make_limits(2))
    records = run_host(driver, several(4, body))
    assert [(record.number, record.ended) for record in records] == [(1, 3), (2, 5), (3, 7), (4, 8)]


def test_resources_do_not_wait_for_each_other() -> None:
    def body(_: int) -> Body:
        yield make_stage("rollout", 1, one_second)
        yield make_stage("propose", 1, lambda: 10.0, resource="reflection")
        return Outcome(Terminal.REJECTED, "not better")

    limits = Limits(slots={"task": 1, "reflection": 2}, stages=STAGES, entry="task")
    driver = VirtualDriver(limits)
    records = run_host(driver, several(4, body))
    # Proposals run 1-11, 2-12, then 11-21, 12-22: two at a time, one rollout ahead of each.
    assert [record.ended for record in records] == [11, 12, 21, 22]


@pytest.mark.parametrize("seed", range(5))
def test_slots_stay_busy_between_the_first_and_the_last_offer(seed: int) -> None:
    rng = random.Random(seed)
    limits = make_limits(32, budget=10_000, offer_cost=106)
    driver = VirtualDriver(limits)
    records = run_host(driver, lambda _: full_item(lambda: rng.lognormvariate(0, 0.8), accept=rng.random() < 0.3))
    last = driver.finish()
    assert last.window_busy["task"] > 0.97
    assert last.window[0] == 0
    assert last.window[1] > 0.8 * last.seconds
    assert last.spent <= 10_000
    assert last.reserved == 0
    assert sum(record.spent for record in records) == last.spent


def test_a_slow_sample_holds_up_nobody_else() -> None:
    def body(number: int) -> Body:
        yield make_stage("rollout", 1, lambda: 100.0 if number == 1 else 1.0)
        return Outcome(Terminal.REJECTED, "not better")

    driver = VirtualDriver(make_limits(2))
    records = run_host(driver, several(50, body))
    assert [record.number for record in records] == [*range(2, 51), 1]
    assert driver.now() == 100


def test_equal_seeds_give_equal_runs_and_other_seeds_do_not() -> None:
    def run(seed: int) -> tuple[list[tuple[Any, ...]], float]:
        rng = random.Random(seed)
        watching = Watching(max_staleness=1)
        driver = VirtualDriver(make_limits(7, budget=2_000, offer_cost=106), watching)
        run_host(driver, lambda _: full_item(lambda: rng.lognormvariate(0, 1), accept=rng.random() < 0.5))
        return watching.seen, driver.now()

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_more_slots_and_fewer_workers_take_effect_while_the_run_goes_on() -> None:
    driver = VirtualDriver(make_limits(1))

    def body(number: int) -> Body:
        yield make_stage("rollout", 2, one_second)
        if number == 1:
            driver.tell(SlotsChanged("task", 4))
            driver.tell(WorkersChanged({"rollout": 1}))
        if number == 4:
            driver.tell(OfferCostChanged(1))
        return Outcome(Terminal.REJECTED, "not better")

    records = run_host(driver, several(4, body))
    # Item 1 alone in 1 slot: 2. Then 4 slots, in which three rollouts would go on side by side, but one worker.
    assert [record.ended for record in records] == [2, 3, 4, 5]


# -- cost per event -------------------------------------------------------------------------------------------------


def _calls(items: int, slots: int) -> float:
    """Python and C calls per sample of a whole run."""
    rng = random.Random(1)
    driver = VirtualDriver(make_limits(slots), Watching(max_staleness=4))
    accept = iter([rng.random() < 0.05 for _ in range(items)])
    source = several(items, lambda _: full_item(lambda: rng.lognormvariate(0, 0.5), validation=20, accept=next(accept)))
    count = 0

    def counting(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    driver._next_snapshot = float("inf")  # a view's cost, twice a second, not an event's
    before = sys.getprofile()
    sys.setprofile(counting)
    try:
        run_host(driver, source)
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

    driver = VirtualDriver(make_limits(3), Looking())
    run_host(driver, several(30, lambda _: full_item(lambda: 0.01, validation=20)))
    assert len(moments) > 2
    assert all(later - earlier >= SNAPSHOT_EVERY for earlier, later in pairwise(moments))
