"""Every item has one record, however it and its run end. In virtual time."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from virtual_items import Watching, full_item, make_limits, make_stage, one_second, run_host, several

from flashevolve_plugins._model import (
    Outcome,
    Sample,
    Stage,
    Terminal,
)
from flashevolve_plugins._virtual import VirtualDriver

if TYPE_CHECKING:
    from flashevolve_plugins._bodies import Body


def test_every_item_is_recorded_exactly_once_and_the_snapshot_agrees() -> None:
    rng = random.Random(5)
    watching = Watching(max_staleness=2)
    driver = VirtualDriver(make_limits(9, budget=3_000, offer_cost=26), watching)

    def fail() -> None:
        raise ValueError("bad example")

    def body(number: int) -> Body:
        yield make_stage("rollout", 3, lambda: rng.lognormvariate(0, 1), then=23)
        if number % 5 == 0:
            yield Stage("propose", (Sample(fail, "task"),))
        return (yield from full_item(lambda: rng.lognormvariate(0, 1), validation=20, accept=rng.random() < 0.5))

    records = run_host(driver, body)
    last = driver.finish()
    assert watching.records == records
    assert sorted(record.number for record in records) == list(range(1, len(records) + 1))
    counts = Counter(record.terminal.value for record in records)
    assert last.ended == counts
    assert {"committed", "rejected", "failed", "discarded"} <= set(counts)
    assert all(record.story[-1] == record.terminal.value for record in records)
    assert all(record.started <= record.ended for record in records)
    assert last.accepted == last.version == counts["committed"]
    assert last.proposals == counts["committed"] + counts["rejected"]
    assert (last.items, last.reserved, last.spent) == (0, 0, sum(record.spent for record in records))


def test_a_host_that_raises_over_a_commit_turns_it_into_a_failure() -> None:
    def body(_: int) -> Body:
        yield make_stage("validate", 1, one_second)
        return Outcome(Terminal.COMMITTED)

    watching = Watching()
    driver = VirtualDriver(make_limits(1), watching)
    driver.offer_from(several(1, body))
    ended = driver.next_ended()
    assert ended is not None
    error = OSError("disk full")
    driver.recorded(ended, error=error)
    (record,) = watching.records
    assert (record.terminal, record.reason, record.error) == (
        Terminal.FAILED,
        "the host raised OSError: disk full",
        error,
    )
    assert driver.next_ended() is None
    assert driver.finish().ended == {"failed": 1}


def test_a_cancel_ends_every_item_and_keeps_what_was_paid_for() -> None:
    watching = Watching()
    driver = VirtualDriver(make_limits(4), watching)
    driver.offer_from(lambda _: full_item(one_second, validation=9))
    for _ in range(3):
        ended = driver.next_ended()
        assert ended is not None
        driver.recorded(ended)
    driver.stop("Ctrl-C", cancel=True)
    while (ended := driver.next_ended()) is not None:
        driver.recorded(ended)
    assert [record.terminal for record in watching.records[:3]] == [Terminal.COMMITTED] * 3
    cancelled = watching.records[3:]
    assert {(record.terminal, record.reason) for record in cancelled} == {(Terminal.CANCELLED, "Ctrl-C")}
    last = driver.finish()
    assert last.spent == sum(record.spent for record in watching.records)
    assert (last.items, last.reserved, sum(last.busy.values())) == (0, 0, 0)


def test_a_stop_lets_what_is_under_way_end_and_offers_nothing_more() -> None:
    offered: list[int] = []

    def source(number: int) -> Body:
        offered.append(number)
        return full_item(one_second, validation=9)

    driver = VirtualDriver(make_limits(4))
    driver.offer_from(source)
    driver.stop("enough")
    ends = []
    while (ended := driver.next_ended()) is not None:
        driver.recorded(ended)
        ends.append((ended.number, ended.outcome.terminal))
    assert ends == [(number, Terminal.COMMITTED) for number in offered]


def test_an_item_the_budget_cannot_pay_for_is_discarded_and_says_so() -> None:
    def body(_: int) -> Body:
        yield make_stage("rollout", 2, one_second)
        yield make_stage("validate", 9, one_second)
        return Outcome(Terminal.COMMITTED)

    driver = VirtualDriver(make_limits(1, budget=10, offer_cost=9))
    (record,) = run_host(driver, body)
    assert (record.terminal, record.reason) == (Terminal.DISCARDED, "the budget cannot pay for what it still needs")
    assert record.spent == 2


@pytest.mark.parametrize("how", ["an error", "the end"])
def test_leaving_a_driver_records_what_was_still_under_way(how: str) -> None:
    watching = Watching()
    closed: list[int] = []

    def body(number: int) -> Body:
        try:
            yield make_stage("rollout", 1, lambda: float(number))
            return Outcome(Terminal.COMMITTED)
        finally:
            closed.append(number)

    def run() -> VirtualDriver:
        with VirtualDriver(make_limits(3), watching) as driver:
            driver.offer_from(body)
            ended = driver.next_ended()
            assert ended is not None
            driver.recorded(ended)
            if how == "an error":
                raise OSError("disk full")
        return driver

    if how == "an error":
        with pytest.raises(OSError, match="disk full"):
            run()
    else:
        assert run().snapshot().ended == {"committed": 1, "cancelled": 3}
    reason = "the run ended with OSError" if how == "an error" else "the run is over"
    assert [(record.number, record.terminal, record.reason) for record in watching.records] == [
        (1, Terminal.COMMITTED, ""),
        (2, Terminal.CANCELLED, reason),
        (3, Terminal.CANCELLED, reason),
        (4, Terminal.CANCELLED, reason),
    ]
    assert closed == [1, 2, 3, 4]


def test_a_driver_that_was_stopped_before_its_first_offer_offers_nothing() -> None:
    asked: list[int] = []
    driver = VirtualDriver(make_limits(3))
    driver.stop("the seed was perfect")
    driver.offer_from(asked.append)
    assert driver.next_ended() is None
    assert asked == []


def test_an_item_that_cannot_be_paid_from_its_first_stage_on_is_the_last_one_offered() -> None:
    def body(_: int) -> Body:
        yield make_stage("rollout", 2, one_second, then=20)
        return Outcome(Terminal.COMMITTED)

    driver = VirtualDriver(make_limits(1, budget=10, offer_cost=1))
    (record,) = run_host(driver, body)
    assert (record.terminal, record.spent) == (Terminal.DISCARDED, 0)
