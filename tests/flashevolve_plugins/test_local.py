"""The local driver: real threads, one event loop, and everything else on the caller's thread."""

from __future__ import annotations

import asyncio
import gc
import itertools
import queue
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from local_runs import PATIENCE, VARIABLE, make_limits, make_stage, opened, our_threads, run_host

from flashevolve_plugins import _local
from flashevolve_plugins._local import THREAD_NAME, _Worker
from flashevolve_plugins._model import (
    Discarded,
    Limits,
    Outcome,
    Sample,
    Stage,
    Terminal,
)

if TYPE_CHECKING:
    from flashevolve_plugins._bodies import Body


def _raise(error: BaseException) -> Any:
    raise error


# -- where samples run ----------------------------------------------------------------------------------------------


def test_samples_run_at_once_on_named_daemon_threads() -> None:
    together = threading.Barrier(4)

    def sample() -> tuple[str, bool, int]:
        together.wait(PATIENCE)
        thread = threading.current_thread()
        return thread.name, thread.daemon, threading.get_ident()

    with opened() as driver:
        results = driver.host_item().run(make_stage(*[sample] * 4))
    assert {name for name, _, _ in results} == {f"{THREAD_NAME}-{number}" for number in (1, 2, 3, 4)}
    assert all(daemon for _, daemon, _ in results)
    assert threading.get_ident() not in {ident for _, _, ident in results}


def test_no_more_threads_are_made_than_samples_ran_at_once() -> None:
    with opened(make_limits(3)) as driver:
        item = driver.host_item()
        for _ in range(5):
            item.run(make_stage(*[threading.get_ident] * 7))
        assert 1 <= len(our_threads(THREAD_NAME)) <= 3


def test_a_thread_that_a_busy_machine_keeps_from_ending_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in no sample, so no call was abandoned."""
    looks, go, run, join = itertools.count(1), threading.Event(), _Worker.run, _Worker.join

    def end_late(worker: _Worker) -> None:
        run(worker)
        assert go.wait(PATIENCE)

    def look(worker: _Worker, timeout: float | None = None) -> None:
        if next(looks) == 3:
            go.set()
        join(worker, timeout)

    monkeypatch.setattr(_local, "JOIN_SECONDS", PATIENCE)
    monkeypatch.setattr(_Worker, "run", end_late)
    monkeypatch.setattr(_Worker, "join", look)
    with opened(make_limits(1)) as driver:
        driver.host_item().run(make_stage(threading.get_ident))
    assert driver.abandoned == 0
    assert go.is_set()


def test_a_resource_with_one_slot_has_one_thread_and_shares_it_with_no_other() -> None:
    threads: dict[str, set[int]] = {"task": set(), "only": set()}

    def sample(resource: str, together: threading.Barrier) -> None:
        threads[resource].add(threading.get_ident())
        together.wait(PATIENCE)

    limits = Limits(slots={"task": 2, "only": 1}, stages=("rollout",), entry="task")
    with opened(limits) as driver:
        item = driver.host_item()
        for _ in range(20):  # else by chance
            together = threading.Barrier(3)
            resources = ("task", "only", "task")
            item.run(Stage("rollout", tuple(Sample(partial(sample, each, together), each) for each in resources)))
    assert len(threads["only"]) == 1
    assert len(threads["task"]) == 2
    assert threads["only"].isdisjoint(threads["task"])


def test_results_come_in_sample_order_whoever_ends_first() -> None:
    second_is_done = threading.Event()

    def first() -> str:
        assert second_is_done.wait(PATIENCE)
        return "first"

    def second() -> str:
        second_is_done.set()
        return "second"

    with opened() as driver:
        assert driver.host_item().run(make_stage(first, second)) == ["first", "second"]


def test_every_sample_sees_the_callers_context_and_keeps_its_changes_to_itself() -> None:
    def sample() -> str:
        seen = VARIABLE.get()
        VARIABLE.set("changed by a sample")
        return seen

    with opened(make_limits(1)) as driver:
        item = driver.host_item()
        token = VARIABLE.set("caller's")
        try:
            assert item.run(make_stage(sample, sample)) == ["caller's", "caller's"]
            assert VARIABLE.get() == "caller's"
            VARIABLE.set("caller's, later")
            assert item.run(make_stage(sample)) == ["caller's, later"]
        finally:
            VARIABLE.reset(token)


def test_an_idle_worker_keeps_nothing_of_its_last_sample_alive() -> None:
    class Heavy:
        pass

    gone = threading.Event()

    def body(_: int) -> Body:
        heavy = Heavy()
        weakref.finalize(heavy, gone.set)
        yield make_stage(lambda: id(heavy))
        return Outcome(Terminal.REJECTED, "not better")

    with opened(make_limits(1)) as driver:
        run_host(driver, lambda number: body(number) if number == 1 else None)
        assert len(driver._workers) == 1
        gc.collect()
        assert gone.wait(PATIENCE)


# -- coroutine samples ----------------------------------------------------------------------------------------------


def test_coroutine_samples_share_one_event_loop_thread_and_run_at_once() -> None:
    arrived: list[tuple[int, int, str]] = []

    async def sample() -> str:
        arrived.append((threading.get_ident(), id(asyncio.get_running_loop()), threading.current_thread().name))
        while len(arrived) < 3:  # noqa: ASYNC110 - to take turns is the point
            await asyncio.sleep(0)
        return "done"

    with opened() as driver:
        assert driver.host_item().run(make_stage(sample, sample, sample, asynchronous=True)) == ["done"] * 3
        assert our_threads(THREAD_NAME) == []
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

    with opened() as driver:
        item = driver.host_item()
        token = VARIABLE.set("caller's")
        try:
            assert item.run(make_stage(sample, sample, asynchronous=True)) == ["caller's", "caller's"]
            VARIABLE.set("caller's, later")
            assert item.run(make_stage(sample, asynchronous=True)) == ["caller's, later"]
            assert VARIABLE.get() == "caller's, later"
        finally:
            VARIABLE.reset(token)


def test_a_caller_with_an_event_loop_of_its_own_is_not_disturbed() -> None:
    async def sample() -> int:
        return threading.get_ident()

    async def main() -> tuple[list[int], bool]:
        with opened() as driver:
            results = driver.host_item().run(make_stage(sample, asynchronous=True))
        return results, asyncio.get_running_loop().is_running()

    results, running = asyncio.run(main())
    assert running
    assert results != [threading.get_ident()]


def test_blocking_and_coroutine_samples_mix_in_one_stage() -> None:
    waiting: queue.Queue[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = queue.Queue()

    async def waits() -> str:
        blocking_is_done = asyncio.Event()
        waiting.put((asyncio.get_running_loop(), blocking_is_done))
        await blocking_is_done.wait()
        return "coroutine"

    def blocks() -> str:
        loop, blocking_is_done = waiting.get(timeout=PATIENCE)
        loop.call_soon_threadsafe(blocking_is_done.set)
        return "thread"

    stage = Stage("rollout", (Sample(waits, "task", asynchronous=True), Sample(blocks, "task")))
    with opened() as driver:
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
            yield make_stage(endless, asynchronous=True)
        except Discarded as why:
            signals.append(why)
            return Outcome(why.terminal, payload="partial")
        return Outcome(Terminal.COMMITTED)

    with opened(make_limits(1)) as driver:
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
@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, GeneratorExit])
def test_whatever_a_sample_raises_is_thrown_into_its_body(kind: type[BaseException], asynchronous: bool) -> None:
    error = kind("in a sample")

    async def raise_later() -> None:
        raise error

    caught: list[BaseException] = []

    def body(_: int) -> Body:
        try:
            yield make_stage(raise_later if asynchronous else lambda: _raise(error), asynchronous=asynchronous)
        except kind as raised:
            caught.append(raised)
        results = yield make_stage(threading.get_ident)
        return Outcome(Terminal.REJECTED, "not better", payload=results)

    with opened(make_limits(1)) as driver:
        (record,) = run_host(driver, lambda number: body(number) if number == 1 else None)
    assert caught == [error]
    assert (record.terminal, record.error) == (Terminal.REJECTED, None)


def test_a_host_item_raises_what_its_sample_raised() -> None:
    error = ValueError("bad example")
    with opened() as driver:
        with pytest.raises(ValueError, match="bad example") as raised:
            driver.host_item().run(make_stage(lambda: _raise(error)))
        assert raised.value is error
