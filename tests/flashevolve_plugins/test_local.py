"""The local driver: real threads, one event loop, and everything else on the caller's thread."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import queue
import signal
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from flashevolve_plugins._local import THREAD_NAME, LocalDriver
from flashevolve_plugins._model import (
    Discarded,
    ItemRecord,
    Limits,
    Outcome,
    PoolEntry,
    Sample,
    Stage,
    Terminal,
    Verdict,
)
from flashevolve_plugins._policies import AcceptAll, Judgement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flashevolve_plugins._driver import Body
    from flashevolve_plugins._model import ItemView
    from flashevolve_plugins._pool import Pool
    from flashevolve_plugins._snapshot import Snapshot

PATIENCE = 30.0  # seconds until a test that would hang fails instead

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="unset")


def _limits(slots: int = 4, **more: Any) -> Limits:
    return Limits(slots={"task": slots}, stages=("rollout", "validate"), entry="task", **more)


def _stage(*calls: Callable[[], Any], name: str = "rollout", asynchronous: bool = False) -> Stage:
    return Stage(name, tuple(Sample(call, "task", cost=1, asynchronous=asynchronous) for call in calls))


@contextmanager
def _open(limits: Limits | None = None, policies: AcceptAll | None = None) -> Iterator[LocalDriver]:
    driver = LocalDriver(limits or _limits(), policies)
    try:
        yield driver
    finally:
        driver.close()


def _run(driver: LocalDriver, source: Callable[[int], Body | None]) -> list[ItemRecord]:
    records = []
    driver.offer_from(source)
    while (ended := driver.next_ended()) is not None:
        committed = ended.record.terminal is Terminal.COMMITTED
        version = driver.pool.version + 1
        driver.recorded(ended, [PoolEntry(version, None, 0.0, item=ended.number)] if committed else [])
        records.append(ended.record)
    return records


def _threads(prefix: str = "flashevolve") -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(prefix)]


def _raise(error: BaseException) -> Any:
    raise error


# -- where samples run ----------------------------------------------------------------------------------------------


def test_samples_run_at_once_on_named_daemon_threads() -> None:
    together = threading.Barrier(4)

    def sample() -> tuple[str, bool, int]:
        together.wait(PATIENCE)
        thread = threading.current_thread()
        return thread.name, thread.daemon, threading.get_ident()

    with _open() as driver:
        results = driver.host_item().run(_stage(*[sample] * 4))
    assert {name for name, _, _ in results} == {f"{THREAD_NAME}-{number}" for number in (1, 2, 3, 4)}
    assert all(daemon for _, daemon, _ in results)
    assert threading.get_ident() not in {ident for _, _, ident in results}


def test_no_more_threads_are_made_than_samples_ran_at_once() -> None:
    with _open(_limits(3)) as driver:
        item = driver.host_item()
        for _ in range(5):
            item.run(_stage(*[threading.get_ident] * 7))
        assert 1 <= len(_threads(THREAD_NAME)) <= 3


def test_results_come_in_sample_order_whoever_ends_first() -> None:
    second_is_done = threading.Event()

    def first() -> str:
        assert second_is_done.wait(PATIENCE)
        return "first"

    def second() -> str:
        second_is_done.set()
        return "second"

    with _open() as driver:
        assert driver.host_item().run(_stage(first, second)) == ["first", "second"]


def test_every_sample_sees_the_callers_context_and_keeps_its_changes_to_itself() -> None:
    def sample() -> str:
        seen = VARIABLE.get()
        VARIABLE.set("changed by a sample")
        return seen

    with _open(_limits(1)) as driver:
        item = driver.host_item()
        token = VARIABLE.set("caller's")
        try:
            assert item.run(_stage(sample, sample)) == ["caller's", "caller's"]
            assert VARIABLE.get() == "caller's"
            VARIABLE.set("caller's, later")
            assert item.run(_stage(sample)) == ["caller's, later"]
        finally:
            VARIABLE.reset(token)


def test_an_idle_worker_keeps_nothing_of_its_last_sample_alive() -> None:
    class Heavy:
        pass

    def body(_: int) -> Body:
        heavy = Heavy()
        gone.append(weakref.ref(heavy))
        yield _stage(lambda: id(heavy))
        return Outcome(Terminal.REJECTED, "not better")

    gone: list[weakref.ref[Heavy]] = []
    with _open(_limits(1)) as driver:
        _run(driver, lambda number: body(number) if number == 1 else None)
        (worker,) = driver._workers
        worker_is_idle = threading.Event()
        driver._tasks.put(worker_is_idle.set)  # runs once the worker has let go of the sample
        assert worker_is_idle.wait(PATIENCE)
        gc.collect()
        assert [reference() for reference in gone] == [None]


# -- coroutine samples ----------------------------------------------------------------------------------------------


def test_coroutine_samples_share_one_event_loop_thread_and_run_at_once() -> None:
    arrived: list[tuple[int, int, str]] = []

    async def sample() -> str:
        arrived.append((threading.get_ident(), id(asyncio.get_running_loop()), threading.current_thread().name))
        while len(arrived) < 3:
            await asyncio.sleep(0)
        return "done"

    with _open() as driver:
        assert driver.host_item().run(_stage(sample, sample, sample, asynchronous=True)) == ["done"] * 3
        assert _threads(THREAD_NAME) == []
    assert len(set(arrived)) == 1
    thread, _, name = arrived[0]
    assert thread != threading.get_ident()
    assert name == "flashevolve-event-loop"


def test_coroutine_samples_see_the_callers_context_and_keep_their_changes_to_themselves() -> None:
    async def sample() -> str:
        seen = VARIABLE.get()
        VARIABLE.set("changed by a sample")
        await asyncio.sleep(0)
        return seen

    with _open() as driver:
        item = driver.host_item()
        token = VARIABLE.set("caller's")
        try:
            assert item.run(_stage(sample, sample, asynchronous=True)) == ["caller's", "caller's"]
            VARIABLE.set("caller's, later")
            assert item.run(_stage(sample, asynchronous=True)) == ["caller's, later"]
            assert VARIABLE.get() == "caller's, later"
        finally:
            VARIABLE.reset(token)


def test_a_caller_with_an_event_loop_of_its_own_is_not_disturbed() -> None:
    async def sample() -> int:
        return threading.get_ident()

    async def main() -> tuple[list[int], bool]:
        with _open() as driver:
            results = driver.host_item().run(_stage(sample, asynchronous=True))
        return results, asyncio.get_running_loop().is_running()

    results, running = asyncio.run(main())
    assert running
    assert results != [threading.get_ident()]


def test_blocking_and_coroutine_samples_mix_in_one_stage() -> None:
    blocking_is_done = threading.Event()

    async def waits() -> str:
        while not blocking_is_done.is_set():
            await asyncio.sleep(0)
        return "coroutine"

    def blocks() -> str:
        blocking_is_done.set()
        return "thread"

    stage = Stage("rollout", (Sample(waits, "task", asynchronous=True), Sample(blocks, "task")))
    with _open() as driver:
        assert driver.host_item().run(stage) == ["coroutine", "thread"]


def test_a_cancel_reaches_a_coroutine_and_its_end_is_reported() -> None:
    started, cancelled = threading.Event(), threading.Event()

    async def endless() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    signals: list[Discarded] = []

    def body(number: int) -> Body:
        try:
            yield _stage(endless, asynchronous=True)
        except Discarded as why:
            signals.append(why)
            return Outcome(why.terminal, payload="partial")
        return Outcome(Terminal.COMMITTED)

    with _open(_limits(1)) as driver:
        driver.offer_from(body)
        assert started.wait(PATIENCE)
        driver.stop("Ctrl-C", cancel=True)
        ended = driver.next_ended()
        assert ended is not None
        assert ended.outcome == Outcome(Terminal.CANCELLED, "Ctrl-C", "partial")
        driver.recorded(ended)
        assert driver.next_ended() is None
    assert cancelled.is_set()
    assert [(why.terminal, why.stage) for why in signals] == [(Terminal.CANCELLED, "rollout")]
    assert driver.abandoned == 0


# -- what samples raise ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_whatever_a_sample_raises_is_thrown_into_its_body(kind: type[BaseException], asynchronous: bool) -> None:
    error = kind("in a sample")

    async def raise_later() -> None:
        raise error

    caught: list[BaseException] = []

    def body(_: int) -> Body:
        try:
            yield _stage(raise_later if asynchronous else lambda: _raise(error), asynchronous=asynchronous)
        except kind as raised:
            caught.append(raised)
        results = yield _stage(threading.get_ident)
        return Outcome(Terminal.REJECTED, "not better", payload=results)

    with _open(_limits(1)) as driver:
        (record,) = _run(driver, lambda number: body(number) if number == 1 else None)
    assert caught == [error]
    assert (record.terminal, record.error) == (Terminal.REJECTED, None)


def test_a_host_item_raises_what_its_sample_raised() -> None:
    error = ValueError("bad example")
    with _open() as driver:
        with pytest.raises(ValueError, match="bad example") as raised:
            driver.host_item().run(_stage(lambda: _raise(error)))
        assert raised.value is error


# -- whose thread ---------------------------------------------------------------------------------------------------


class OnOneThread(AcceptAll):
    """Fails when two calls overlap or come from different threads."""

    def __init__(self) -> None:
        self.entered = threading.Lock()
        self.calls: list[tuple[str, int]] = []
        self.overlaps = 0

    @contextmanager
    def call(self, name: str) -> Iterator[None]:
        if not self.entered.acquire(blocking=False):
            self.overlaps += 1
        self.calls.append((name, threading.get_ident()))
        yield
        self.entered.release()

    def judge_stale(self, item: ItemView, pool: Pool) -> Judgement:
        with self.call("judge_stale"):
            return Judgement(Verdict.ACCEPT)

    def stage_started(self, item: int, stage: str) -> None:
        with self.call("stage_started"):
            pass

    def stage_finished(self, item: int, stage: str) -> None:
        with self.call("stage_finished"):
            pass

    def pool_updated(self, entry: PoolEntry) -> None:
        with self.call("pool_updated"):
            pass

    def item_ended(self, record: ItemRecord) -> None:
        with self.call("item_ended"):
            pass

    def run_started(self, snapshot: Snapshot) -> None:
        with self.call("run_started"):
            pass

    def snapshot(self, snapshot: Snapshot) -> None:
        with self.call("snapshot"):
            pass

    def run_finished(self, snapshot: Snapshot) -> None:
        with self.call("run_finished"):
            pass


def _busy_run(items: int = 20) -> tuple[OnOneThread, list[ItemRecord], int]:
    """A run whose bodies and policies write down where they are called."""
    policies = OnOneThread()

    def body(_: int) -> Body:
        with policies.call("body"):
            pass
        yield _stage(*[threading.get_ident] * 3)
        with policies.call("body"):
            pass
        yield _stage(*[threading.get_ident] * 5, name="validate")
        with policies.call("body"):
            pass
        return Outcome(Terminal.COMMITTED)

    with _open(_limits(4), policies) as driver:
        records = _run(driver, lambda number: body(number) if number <= items else None)
        driver.finish()
        return policies, records, driver.abandoned


def test_bodies_and_policies_are_called_on_the_callers_thread_never_two_at_once() -> None:
    policies, records, _ = _busy_run()
    assert {ident for _, ident in policies.calls} == {threading.get_ident()}
    assert policies.overlaps == 0
    counts = {name: sum(call == name for call, _ in policies.calls) for name, _ in policies.calls}
    assert counts.pop("judge_stale") > 0
    assert counts.pop("snapshot") > 0
    assert counts == {
        "run_started": 1,
        "body": 60,
        "stage_started": 40,
        "stage_finished": 40,
        "pool_updated": 20,
        "item_ended": 20,
        "run_finished": 1,
    }
    assert [record.terminal for record in records] == [Terminal.COMMITTED] * 20


def test_several_drivers_on_several_threads_keep_to_themselves() -> None:
    together = threading.Barrier(4)

    def run() -> tuple[int, OnOneThread, list[ItemRecord], int]:
        together.wait(PATIENCE)
        return (threading.get_ident(), *_busy_run())

    with ThreadPoolExecutor(4, thread_name_prefix="caller") as callers:
        runs = [future.result(PATIENCE) for future in [callers.submit(run) for _ in range(4)]]
    assert len({ident for ident, *_ in runs}) == 4
    for ident, policies, records, abandoned in runs:
        assert {where for _, where in policies.calls} == {ident}
        assert policies.overlaps == 0
        assert sorted(record.number for record in records) == list(range(1, 21))
        assert abandoned == 0


# -- the end --------------------------------------------------------------------------------------------------------


def test_close_joins_idle_workers_and_the_event_loop() -> None:
    async def sample() -> None:
        """Nothing."""

    before = set(threading.enumerate())
    driver = LocalDriver(_limits())
    item = driver.host_item()
    item.run(_stage(*[threading.get_ident] * 4))
    item.run(_stage(sample, asynchronous=True))
    assert set(threading.enumerate()) > before
    driver.close()
    assert set(threading.enumerate()) <= before
    assert driver.abandoned == 0


def test_close_may_come_twice_and_without_a_run() -> None:
    driver = LocalDriver(_limits())
    driver.close()
    driver.host_item().run(_stage(threading.get_ident))
    driver.close()
    driver.close()
    assert (driver.abandoned, _threads()) == (0, [])


def test_close_counts_a_worker_that_does_not_come_back() -> None:
    started, release = threading.Event(), threading.Event()

    def blocked() -> None:
        started.set()
        release.wait(PATIENCE)

    def body(number: int) -> Body:
        yield _stage(blocked if number == 1 else threading.get_ident)
        return Outcome(Terminal.REJECTED, "not better")

    driver = LocalDriver(_limits(2))
    try:
        driver.offer_from(lambda number: body(number) if number <= 2 else None)
        ended = driver.next_ended()
        assert ended is not None
        assert ended.number == 2
        assert started.wait(PATIENCE)
        abandoned = [worker for worker in driver._workers if not worker.idle]
        driver.close()
        assert driver.abandoned == 1
        assert abandoned == _threads()
    finally:
        release.set()
    for worker in abandoned:
        worker.join(PATIENCE)
    assert _threads() == []


@pytest.mark.xfail(strict=True, reason="a worker turns idle only after its end is delivered; close() then joins it for 0 s")
def test_a_worker_that_has_just_delivered_its_end_is_joined_and_not_abandoned() -> None:
    closing = threading.Event()

    class Inbox(queue.SimpleQueue[Any]):
        """Holds the worker right after the delivery, as a busy machine may."""

        def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
            super().put(item, block, timeout)
            closing.wait(PATIENCE)

    driver = LocalDriver(_limits(1))
    driver._inbox = Inbox()
    driver.host_item().run(_stage(threading.get_ident))
    (worker,) = driver._workers
    join = worker.join

    def join_once_it_may_go_on(timeout: float | None = None) -> None:
        if timeout != 0:
            closing.set()
        join(timeout)

    worker.join = join_once_it_may_go_on  # type: ignore[method-assign]
    try:
        driver.close()
        assert driver.abandoned == 0
    finally:
        closing.set()
        join(PATIENCE)


def test_close_cancels_coroutines_that_still_run() -> None:
    started, cancelled = threading.Event(), threading.Event()

    async def endless() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    def body(_: int) -> Body:
        yield _stage(endless, asynchronous=True)
        return Outcome(Terminal.COMMITTED)

    driver = LocalDriver(_limits(1))
    driver.offer_from(body)
    assert started.wait(PATIENCE)
    driver.close()
    assert cancelled.is_set()
    assert _threads() == []


# -- Ctrl-C ---------------------------------------------------------------------------------------------------------


class Waiting(LocalDriver):
    """Says when the caller's thread waits for a sample."""

    def __init__(self, limits: Limits) -> None:
        self.waits = threading.Event()
        super().__init__(limits)

    def _wait(self) -> Any:
        self.waits.set()
        return super()._wait()


@pytest.fixture
def interrupting() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt on the main thread, whatever the test runner made of it."""
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals reach the main thread only")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(sys.platform == "win32", reason="needs pthread_kill")
@pytest.mark.usefixtures("interrupting")
@pytest.mark.parametrize("goes_on", [False, True])
def test_an_interrupted_wait_leaves_a_driver_that_can_stop_and_close(goes_on: bool) -> None:
    driver = Waiting(_limits(2))
    interrupted = threading.Event()

    def interrupt() -> str:
        assert driver.waits.wait(PATIENCE)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        assert interrupted.wait(PATIENCE)
        return "finished"

    def body(_: int) -> Body:
        results = yield _stage(interrupt)
        return Outcome(Terminal.COMMITTED, payload=results)

    driver.offer_from(lambda number: body(number) if number == 1 else None)
    try:
        with pytest.raises(KeyboardInterrupt):
            driver.next_ended()
        interrupted.set()
        if goes_on:
            driver.stop("Ctrl-C")
            ended = driver.next_ended()
            assert ended is not None
            assert ended.outcome == Outcome(Terminal.COMMITTED, payload=["finished"])
            driver.recorded(ended)
            assert driver.next_ended() is None
        else:
            driver.stop("Ctrl-C", cancel=True)
            ended = driver.next_ended()
            assert ended is not None
            assert (ended.record.terminal, ended.record.spent) == (Terminal.CANCELLED, 1)
    finally:
        interrupted.set()
        driver.close()
    assert not driver.scheduler.items or not goes_on
