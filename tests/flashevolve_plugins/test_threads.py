"""The local driver's threads: whose calls come on which, how they end, and what Ctrl-C leaves."""

from __future__ import annotations

import asyncio
import queue
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from local_runs import PATIENCE, make_limits, make_stage, opened, our_threads, run_host

from flashevolve_plugins._local import LocalDriver
from flashevolve_plugins._model import (
    ItemRecord,
    Limits,
    Outcome,
    PoolEntry,
    Terminal,
    Verdict,
)
from flashevolve_plugins._policies import AcceptAll, Judgement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashevolve_plugins._bodies import Body
    from flashevolve_plugins._model import ItemView
    from flashevolve_plugins._pool import Pool
    from flashevolve_plugins._snapshot import Snapshot

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
        yield make_stage(*[threading.get_ident] * 3)
        with policies.call("body"):
            pass
        yield make_stage(*[threading.get_ident] * 5, name="validate")
        with policies.call("body"):
            pass
        return Outcome(Terminal.COMMITTED)

    with opened(make_limits(4), policies) as driver:
        records = run_host(driver, lambda number: body(number) if number <= items else None)
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
    driver = LocalDriver(make_limits())
    item = driver.host_item()
    item.run(make_stage(*[threading.get_ident] * 4))
    item.run(make_stage(sample, asynchronous=True))
    assert set(threading.enumerate()) > before
    driver.close()
    assert set(threading.enumerate()) <= before
    assert driver.abandoned == 0


def test_close_may_come_twice_and_without_a_run() -> None:
    driver = LocalDriver(make_limits())
    driver.close()
    driver.host_item().run(make_stage(threading.get_ident))
    driver.close()
    driver.close()
    assert (driver.abandoned, our_threads()) == (0, [])


def test_close_counts_a_worker_that_does_not_come_back() -> None:
    started, release = threading.Event(), threading.Event()

    def blocked() -> None:
        started.set()
        release.wait(PATIENCE)

    def body(number: int) -> Body:
        yield make_stage(blocked if number == 1 else threading.get_ident)
        return Outcome(Terminal.REJECTED, "not better")

    driver = LocalDriver(make_limits(2))
    try:
        driver.offer_from(lambda number: body(number) if number <= 2 else None)
        ended = driver.next_ended()
        assert ended is not None
        assert ended.number == 2
        assert started.wait(PATIENCE)
        abandoned = [worker for worker in driver._workers if not worker.idle]
        driver.close()
        assert driver.abandoned == 1
        assert abandoned == our_threads()
    finally:
        release.set()
    for worker in abandoned:
        worker.join(PATIENCE)
    assert our_threads() == []


def test_a_worker_that_has_just_delivered_its_end_is_joined_and_not_abandoned() -> None:
    closing = threading.Event()

    class Inbox(queue.SimpleQueue[Any]):
        """Holds the worker right after the delivery, as a busy machine may."""

        def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
            super().put(item, block, timeout)
            closing.wait(PATIENCE)

    driver = LocalDriver(make_limits(1))
    driver._inbox = Inbox()
    driver.host_item().run(make_stage(threading.get_ident))
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
        yield make_stage(endless, asynchronous=True)
        return Outcome(Terminal.COMMITTED)

    driver = LocalDriver(make_limits(1))
    driver.offer_from(body)
    assert started.wait(PATIENCE)
    driver.close()
    assert cancelled.is_set()
    assert our_threads() == []


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
    """The first SIGINT raises KeyboardInterrupt on the main thread, whatever the test runner made of it."""
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals reach the main thread only")
    first = iter((KeyboardInterrupt(),))

    def interrupt(_signum: int, _frame: object) -> None:
        for error in first:
            raise error

    before = signal.signal(signal.SIGINT, interrupt)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(sys.platform == "win32", reason="needs pthread_kill")
@pytest.mark.usefixtures("interrupting")
@pytest.mark.parametrize("cancel", [False, True])
def test_an_interrupted_wait_leaves_a_driver_that_can_stop_and_close(cancel: bool) -> None:
    driver = Waiting(make_limits(2))
    interrupted = threading.Event()

    def interrupt() -> str:
        assert driver.waits.wait(PATIENCE)
        # Again and again: a signal that comes just before the wait begins is noticed only after it.
        while not interrupted.wait(0.05):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return "finished"

    def body(_: int) -> Body:
        results = yield make_stage(interrupt)
        return Outcome(Terminal.COMMITTED, payload=results)

    driver.offer_from(lambda number: body(number) if number == 1 else None)
    try:
        with pytest.raises(KeyboardInterrupt):
            driver.next_ended()
        interrupted.set()
        driver.stop("Ctrl-C", cancel=cancel)
        ended = driver.next_ended()
        assert ended is not None
        if cancel:
            assert ended.outcome == Outcome(Terminal.CANCELLED, "Ctrl-C")
        else:
            assert ended.outcome == Outcome(Terminal.COMMITTED, payload=["finished"])
        assert ended.record.spent == 1
        driver.recorded(ended)
        assert driver.next_ended() is None
    finally:
        interrupted.set()
        driver.close()
    assert our_threads() == []


@pytest.mark.skipif(sys.platform == "win32", reason="needs pthread_kill")
@pytest.mark.usefixtures("interrupting")
def test_an_interrupted_driver_can_be_closed_at_once() -> None:
    driver = Waiting(make_limits(2))
    interrupted = threading.Event()

    def interrupt() -> None:
        assert driver.waits.wait(PATIENCE)
        while not interrupted.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            interrupted.wait(0.05)

    def body(_: int) -> Body:
        yield make_stage(interrupt)
        return Outcome(Terminal.COMMITTED)

    driver.offer_from(lambda number: body(number) if number == 1 else None)
    try:
        with pytest.raises(KeyboardInterrupt):
            driver.next_ended()
        (worker,) = driver._workers
        driver.close()
        assert driver.abandoned == 1
    finally:
        interrupted.set()
    worker.join(PATIENCE)
    assert not worker.is_alive()
