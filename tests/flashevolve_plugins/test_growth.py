"""The work per event, and what is kept, do not grow: counted, never timed."""

from __future__ import annotations

import gc
import queue
import random
import sys
import threading
import weakref
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from local_runs import PATIENCE
from virtual_items import STAGES, Watching, full_item, make_limits, make_stage, one_second, several, write_nothing

from flashevolve_plugins import _events as ev
from flashevolve_plugins._driver import SNAPSHOT_EVERY
from flashevolve_plugins._inline import InlineDriver
from flashevolve_plugins._local import LocalDriver
from flashevolve_plugins._model import Evidence, Limits, Outcome, Patch, PoolEntry, Sample, Stage, Terminal, Verdict
from flashevolve_plugins._policies import AcceptAll, Batch, Judgement, Work
from flashevolve_plugins._queues import StageQueues
from flashevolve_plugins._scheduler import Scheduler
from flashevolve_plugins._virtual import VirtualDriver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from flashevolve_plugins._bodies import Body
    from flashevolve_plugins._driver import Driver
    from flashevolve_plugins._model import ItemView
    from flashevolve_plugins._pool import Pool


class Counting(dict[Any, Any]):
    """Counts the elements that are looked at."""

    touched = 0

    def __getitem__(self, key: Any) -> Any:
        self.touched += 1
        return super().__getitem__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        self.touched += 1
        return super().get(key, default)

    def __iter__(self) -> Iterator[Any]:
        self.touched += len(self)
        return super().__iter__()

    def keys(self) -> Any:
        self.touched += len(self)
        return super().keys()

    def values(self) -> Any:
        self.touched += len(self)
        return super().values()

    def items(self) -> Any:
        self.touched += len(self)
        return super().items()


def _counted(scheduler: Scheduler) -> Counting:
    """The items of a Scheduler: from now on it is counted how many are looked at."""
    items = scheduler.items = scheduler._queues._items = Counting(scheduler.items)
    return items


def _finish(driver: Driver, source: Callable[[int], Body | None]) -> None:
    """The loop of a host that keeps nothing."""
    driver.offer_from(source)
    while (ended := driver.next_ended()) is not None:
        committed = ended.record.terminal is Terminal.COMMITTED
        driver.recorded(ended, [PoolEntry(driver.pool.version + 1, None, 0.0)] if committed else ())


def _mixed(items: int) -> Callable[[int], Body | None]:
    rng = random.Random(1)
    accept = [rng.random() < 0.2 for _ in range(items)]
    return several(items, lambda number: full_item(lambda: rng.expovariate(1.0), 20, accept[number - 1]))


# -- work per event -------------------------------------------------------------------------------------------------


def _items_looked_at(slots: int) -> float:
    """Per sample, under a budget."""
    driver = VirtualDriver(make_limits(slots, budget=1_000_000, offer_cost=26), Watching(max_staleness=20))
    driver._next_snapshot = float("inf")
    items = _counted(driver.scheduler)
    _finish(driver, _mixed(600))
    return items.touched / sum(driver.snapshot().samples.values())


def test_what_the_budget_is_expected_to_need_is_not_added_up_item_by_item() -> None:
    assert _items_looked_at(300) < 1.3 * _items_looked_at(10)


def _waiting_for_the_budget(items: int) -> tuple[Scheduler, Counting]:
    """So many items whose validations wait for what two validations, under way, may leave of the budget."""
    limits = Limits(slots={"task": items + 300}, stages=STAGES, entry="task", budget=200, max_items=items)
    scheduler = Scheduler(limits)
    (offer,) = scheduler.begin()
    for number in range(1, items + 1):
        assert offer == ev.OfferItem(number)
        _start, *rest = scheduler.handle(ev.ItemOffered(number, make_stage("rollout", 1, one_second, cost=0)))
        offer = rest[0] if rest else None
    for number in range(1, items + 1):
        scheduler.handle(ev.SampleFinished(number, 0))
        scheduler.handle(ev.StageReady(number, make_stage("validate", 100, one_second)))
    counting = _counted(scheduler)
    return scheduler, counting


def test_items_that_wait_for_the_budget_are_left_alone_until_it_changes_for_them() -> None:
    scheduler, items = _waiting_for_the_budget(400)
    assert scheduler.ledger.reserved == 200
    assert scheduler.stage_waiting["validate"] == 398 * 100
    for index in range(50):
        assert (
            scheduler.handle(ev.SampleFinished(1, index, 1)) == scheduler.handle(ev.SampleFinished(2, index, 1)) == []
        )
    assert items.touched < 10 * 100
    instructions = scheduler.handle(ev.SampleFinished(1, 50, 1))  # now nobody else can ever be paid for
    assert {type(each) for each in instructions} == {ev.EndItem}
    assert len(instructions) == 398


def test_a_budget_that_comes_free_wakes_who_waits_for_it() -> None:
    scheduler, _ = _waiting_for_the_budget(5)
    for index in range(50):
        scheduler.handle(ev.SampleFinished(1, index, 0))  # cost less than was reserved
        scheduler.handle(ev.SampleFinished(2, index, 0))
    assert scheduler.ledger.reserved == 200
    assert [item.number for item in scheduler.items.values() if item.reserved] == [1, 2, 3]


def test_an_item_takes_one_place_in_the_queue_however_many_samples_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    pushed = 0
    push = StageQueues.push

    def counting(queues: StageQueues, stage: str, item: int) -> None:
        nonlocal pushed
        pushed += 1
        push(queues, stage, item)

    monkeypatch.setattr(StageQueues, "push", counting)
    watching = Watching()
    driver = VirtualDriver(make_limits(4), watching)
    _finish(driver, _mixed(60))
    stages = sum(each[0] == "started" for each in watching.seen)
    assert len(watching.judged) > 10
    assert stages < pushed <= stages + len(watching.judged)


def _calls_of_a_snapshot(items: int) -> int:
    driver = VirtualDriver(make_limits(3 * items))
    driver.offer_from(several(items, lambda _: full_item(one_second)))
    count = 0

    def counting(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counting)
    try:
        snapshot = driver.snapshot()
    finally:
        sys.setprofile(before)
    assert snapshot.items == items
    return count


def test_a_snapshot_costs_the_same_however_many_items_are_under_way() -> None:
    assert _calls_of_a_snapshot(200) == _calls_of_a_snapshot(5)


# -- what is kept ---------------------------------------------------------------------------------------------------


class Payload:
    """Something that can be watched."""


def _leaving(kept: weakref.WeakSet[Payload], number: int) -> Body:
    """Holds payloads in every place an adapter could put one, and ends in another way each time."""

    def payload() -> Payload:
        made = Payload()
        kept.add(made)
        return made

    def holding(value: Any, *_held: Any) -> Any:
        return value

    def raising(held: Payload) -> None:
        inner = payload()
        raise ValueError(held, inner)

    def stage(name: str, call: Callable[[], Any], *, cost: int = 1) -> Stage:
        sample = Sample(
            call, "task", cost=cost, spent=partial(holding, 1, payload()), seconds=partial(holding, 1.0, payload())
        )
        return Stage(name, (sample, sample), commits=name == "validate")

    mine = payload()
    results = yield stage("rollout", payload)
    ending = number % 5
    if ending == 0:
        yield stage("gate", partial(raising, mine))
    if ending == 1:
        raise ValueError(mine, results)
    if ending == 2:
        yield stage("gate", payload, cost=10_000)
    if ending == 3:
        return Outcome(Terminal.REJECTED, "not better", (mine, results))
    return Outcome(Terminal.COMMITTED, payload=(mine, (yield stage("validate", payload))))


@pytest.mark.parametrize("kind", [VirtualDriver, LocalDriver, InlineDriver])
def test_an_ended_item_leaves_nothing_of_its_own_behind(kind: type[Driver]) -> None:
    kept: weakref.WeakSet[Payload] = weakref.WeakSet()
    ended: set[Terminal] = set()
    with kind(make_limits(3, budget=1_000)) as driver:
        driver.offer_from(several(40, partial(_leaving, kept)))
        while (last := driver.next_ended()) is not None:
            ended.add(last.record.terminal)
            driver.recorded(last)
        assert len(ended) == 4
        _let_workers_come_to_rest(driver)
        gc.collect()
        assert len(kept) == 0


def _let_workers_come_to_rest(driver: Driver) -> None:
    """A worker drops its sample right after it has reported its end: wait until each has taken a next one."""
    if not isinstance(driver, LocalDriver):
        return
    workers = driver._workers
    together = threading.Barrier(len(workers) + 1)
    reported: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def rest() -> Any:
        together.wait(PATIENCE)
        return (0, 0, None, None, 0.0)

    for worker in workers:
        worker._inbox = reported
        worker.tasks.put(rest)
    together.wait(PATIENCE)


def test_an_idle_worker_keeps_nothing_of_its_last_sample() -> None:
    gone = threading.Event()

    def call() -> Payload:
        payload = Payload()
        weakref.finalize(payload, gone.set)
        return payload

    def body() -> Body:
        yield Stage("rollout", (Sample(call, "task"),))
        return Outcome(Terminal.REJECTED, "not better")

    with LocalDriver(make_limits(1)) as driver:
        _finish(driver, several(1, lambda _: body()))
        assert gone.wait(PATIENCE)


def test_nothing_is_kept_of_items_while_the_run_goes_on() -> None:
    kept: weakref.WeakSet[Payload] = weakref.WeakSet()
    driver = VirtualDriver(make_limits(2))
    driver.offer_from(several(300, partial(_leaving, kept)))
    most = ended = 0
    while (last := driver.next_ended()) is not None:
        driver.recorded(last)
        del last
        ended += 1
        if ended % 60 == 0:
            gc.collect()
            most = max(most, len(kept))
    assert 0 < most < 60


class Forgetful(AcceptAll):
    """Merges two at a time, wants work before it judges, patches every third item, and keeps nothing."""

    holds = True

    def __init__(self, payload: Callable[[], Payload]) -> None:
        self._payload = payload

    def merge_batch(self, waiting: Sequence[ItemView], pool: Pool, *, last: bool) -> Batch:
        del pool
        tried = [each for each in waiting if each.failed_with]
        if tried:
            return Batch((tried[0].number,))
        if not last and len(waiting) < 2:
            return Batch()
        return Batch(tuple(each.number for each in waiting[:2]), write_nothing)

    def judge_stale(self, item: ItemView, pool: Pool) -> Judgement | Work:  # type: ignore[override]
        del pool
        if item.answer is None:
            held = self._payload()
            return Work(lambda _: (held, self._payload()))
        if item.number % 3 == 0 and item.patches == 0 and item.evidence is not None:
            return Judgement(Verdict.PATCH, "read", item.answer)
        return Judgement(Verdict.ACCEPT)


def _waiting(payload: Callable[[], Payload], number: int) -> Body:
    """Waits in the merge queue, or goes on without; every part of it holds payloads."""
    yield Stage("rollout", (Sample(payload, "task", seconds=partial(float, number % 7)),))
    evidence = Evidence(payload(), 1)
    try:
        if number % 4:
            yield Stage("queue", (), holds=True, evidence=evidence)
        yield Stage("validate", (Sample(payload, "task", seconds=one_second),), commits=True, evidence=evidence)
    except Patch as patch:
        yield Stage("gate", (Sample(partial(id, patch.artifact), "task"),))
    return Outcome(Terminal.COMMITTED, payload=payload(), evidence=evidence)


def _merging(payload: Callable[[], Payload], number: int, batch: Batch) -> Body:
    mine = payload()
    yield Stage("merge", (Sample(payload, "task", seconds=one_second),), evidence=Evidence((mine, batch), 1))
    ended = Terminal.COMMITTED if number % 2 else Terminal.REJECTED
    return Outcome(ended, payload=mine)


@pytest.mark.parametrize("kind", [VirtualDriver, LocalDriver])
def test_merges_and_judgements_leave_nothing_behind(kind: type[Driver]) -> None:
    kept: weakref.WeakSet[Payload] = weakref.WeakSet()
    seen: set[str] = set()
    most = 0

    def payload() -> Payload:
        made = Payload()
        kept.add(made)
        return made

    with kind(make_limits(3, max_items=6), Forgetful(payload)) as driver:
        driver.offer_from(several(200, partial(_waiting, payload)), partial(_merging, payload))
        ended = 0
        while (last := driver.next_ended()) is not None:
            seen |= {last.record.terminal.value, *(each.split("@")[0] for each in last.record.story)}
            entries = (
                [PoolEntry(driver.pool.version + 1, None, 0.0)] if last.record.terminal is Terminal.COMMITTED else []
            )
            driver.recorded(last, entries)
            del last
            ended += 1
            if ended % 60 == 0:
                gc.collect()
                most = max(most, len(kept))
        assert seen > {"committed", "merged", "rejected", "released", "patched", "merge"}
        assert driver.snapshot().samples["judge"] > 20
        assert 0 < most < 60
        _let_workers_come_to_rest(driver)
        gc.collect()
        assert len(kept) == 0
        assert not driver.scheduler.items
        assert not driver._open


# -- the tick -------------------------------------------------------------------------------------------------------


def test_the_tick_comes_as_often_as_snapshots_do() -> None:
    driver = VirtualDriver(make_limits(1))
    moments: list[float] = []
    driver.tick = lambda: moments.append(driver.now())
    _finish(driver, several(3, lambda _: full_item(lambda: 0.1, accept=False)))
    assert len(moments) > 2
    assert all(later - earlier >= SNAPSHOT_EVERY for earlier, later in pairwise(moments))


def test_the_tick_comes_on_the_callers_thread_while_nothing_ends() -> None:
    ticks: queue.SimpleQueue[int] = queue.SimpleQueue()

    def body() -> Body:
        def wait_for_ticks() -> None:
            for _ in range(2):
                assert ticks.get(timeout=PATIENCE) == caller

        yield Stage("rollout", (Sample(wait_for_ticks, "task"),))
        return Outcome(Terminal.REJECTED, "not better")

    caller = threading.get_ident()
    with LocalDriver(make_limits(1)) as driver:
        driver.tick = lambda: ticks.put(threading.get_ident())
        driver.offer_from(several(1, lambda _: body()))
        ended = driver.next_ended()
        assert ended is not None
        assert ended.record.error is None
        driver.recorded(ended)
