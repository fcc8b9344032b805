"""Items whose stages the host asks for one by one, in virtual time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from virtual_items import STAGES, Queueing, queued_item, rejected_item, several

from flashevolve_plugins import FlashEvolveError
from flashevolve_plugins._events import SlotsChanged
from flashevolve_plugins._model import (
    ItemRecord,
    Limits,
    Outcome,
    PoolEntry,
    Sample,
    Stage,
    Terminal,
)
from flashevolve_plugins._policies import AcceptAll, Batch
from flashevolve_plugins._virtual import VirtualDriver

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashevolve_plugins._bodies import Body


def _stage(name: str, count: int) -> Stage:
    """Samples of one call and one second each; each gives its number."""
    samples = tuple(Sample(partial(int, i), "task", cost=1, seconds=lambda: 1.0) for i in range(count))
    return Stage(name, samples, commits=name == "validate")


class Watching(AcceptAll):
    """Writes down what ended."""

    def __init__(self) -> None:
        self.records: list[ItemRecord] = []

    def item_ended(self, record: ItemRecord) -> None:
        self.records.append(record)


def _rejected(count: int) -> Callable[[int], Body | None]:
    def body() -> Body:
        yield _stage("rollout", 3)
        return Outcome(Terminal.REJECTED, "not better")

    return lambda number: body() if number <= count else None


def _limits(slots: int, budget: int | None = None, **more: Any) -> Limits:
    return Limits(slots={"task": slots}, stages=STAGES, entry="task", budget=budget, **more)


def test_a_host_item_runs_its_stages_one_by_one_and_enters_the_pool() -> None:
    watching = Watching()
    driver = VirtualDriver(_limits(2, budget=20), watching)
    seed = driver.host_item()
    assert seed.run(_stage("rollout", 2)) == [0, 1]
    assert seed.run(_stage("validate", 4)) == [0, 1, 2, 3]
    assert driver.now() == 3
    seed.end(Terminal.COMMITTED, entries=[PoolEntry(1, "seed", 0.5)])
    assert driver.pool.version == 1
    assert [(record.number, record.terminal, record.spent) for record in watching.records] == [
        (1, Terminal.COMMITTED, 6)
    ]
    driver.offer_from(_rejected(2))
    ended = driver.next_ended()
    assert ended is not None
    driver.recorded(ended)
    assert (ended.record.number, ended.record.version) == (2, 1)
    assert driver.next_ended() is None
    assert driver.finish().seed_score == 0.5


def test_a_host_item_raises_what_its_sample_raised_and_can_go_on() -> None:
    def fail() -> None:
        raise ValueError("bad example")

    driver = VirtualDriver(_limits(2))
    item = driver.host_item()
    with pytest.raises(ValueError, match="bad example"):
        item.run(Stage("rollout", (Sample(fail, "task"),)))
    assert item.run(_stage("gate", 2)) == [0, 1]
    item.end(Terminal.REJECTED, "not better")
    assert driver.finish().ended == {"rejected": 1}


def test_a_host_item_the_budget_cannot_pay_for_raises_one_sentence() -> None:
    driver = VirtualDriver(_limits(2, budget=3))
    item = driver.host_item()
    with pytest.raises(FlashEvolveError, match=r"cannot go on with validate: the budget cannot pay"):
        item.run(_stage("validate", 4))
    item.end(Terminal.FAILED)
    assert driver.finish().ended == {"discarded": 1}


def test_a_host_item_that_never_ran_needs_no_end() -> None:
    driver = VirtualDriver(_limits(2))
    driver.host_item().end(Terminal.FAILED)
    assert driver.finish().ended == {}
    assert driver.host_item().run(_stage("rollout", 1)) == [0]


def test_what_is_offered_while_the_seed_is_validated_waits_for_it_and_is_not_stale() -> None:
    queueing = Queueing(lambda waiting, _: Batch((waiting[0].number,)))
    driver = VirtualDriver(_limits(3, holds=True), queueing)
    seed = driver.host_item()
    slow = Stage("validate", tuple(Sample(int, "task", seconds=lambda: 10.0) for _ in range(2)), commits=True)
    seed.run(slow, lambda: driver.offer_from(several(4, queued_item)))
    assert driver.now() == 10
    assert driver.snapshot().queued == 3  # their rollouts took 2, 3 and 4 seconds, one after the other
    assert queueing.asked == []
    seed.end(Terminal.COMMITTED, entries=[PoolEntry(1, "seed", 0.5)], counted=False)
    assert [waiting for waiting, _ in queueing.asked] == [(2, 3, 4)]
    records = []
    while (ended := driver.next_ended()) is not None:
        records.append(ended.record)
        driver.recorded(ended, [PoolEntry(driver.pool.version + 1, ended.number, 0.0, item=ended.number)])
    assert [(record.number, record.staleness) for record in records] == [(2, 0), (3, 1), (4, 2)]
    assert [(item.number, item.staleness) for item in queueing.judged] == [(3, 1), (4, 2)]
    assert driver.finish().seed_score == 0.5


def test_if_the_seed_fails_what_was_offered_meanwhile_has_its_end_too() -> None:
    def fail() -> None:
        raise ValueError("bad example")

    def body(number: int) -> Body:
        return queued_item(number) if number == 2 else rejected_item(number, 9.0)  # which waits when the seed fails

    queueing = Queueing(lambda waiting, _: Batch((waiting[0].number,)))
    driver = VirtualDriver(_limits(3, holds=True), queueing)
    with driver:
        seed = driver.host_item()
        stage = Stage("validate", (Sample(fail, "task", seconds=lambda: 2.5),), commits=True)
        with pytest.raises(ValueError, match="bad example"):
            seed.run(stage, lambda: driver.offer_from(several(9, body)))  # the slot that this frees is given to nobody
        seed.end(Terminal.FAILED, "bad example")
    assert [(record.number, record.terminal) for record in queueing.records] == [
        (1, Terminal.FAILED), *((number, Terminal.CANCELLED) for number in (2, 3, 4))
    ]  # fmt: skip
    assert queueing.asked == []


def test_two_host_items_at_once_are_refused() -> None:
    driver = VirtualDriver(_limits(2, max_items=1))
    driver.host_item().run(_stage("rollout", 1))
    with pytest.raises(FlashEvolveError, match="no slot was free"):
        driver.host_item()


def test_a_run_in_which_nothing_can_ever_run_says_so() -> None:
    driver = VirtualDriver(_limits(1))
    driver.tell(SlotsChanged("task", 0))
    driver.offer_from(_rejected(1))
    with pytest.raises(FlashEvolveError, match="Nothing runs in virtual time"):
        driver.next_ended()
