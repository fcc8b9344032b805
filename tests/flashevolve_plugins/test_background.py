"""A blocking call that is awaited, and how the run inside hears that it is to end."""

import asyncio
import contextvars
import threading
from contextlib import suppress

import pytest
from local_runs import make_limits, make_stage
from threads_told import until

from flashevolve_plugins import _background
from flashevolve_plugins._background import THREAD_NAME, in_background
from flashevolve_plugins._cancellation import RunCancelledError, cancellation
from flashevolve_plugins._inline import InlineDriver
from flashevolve_plugins._local import LocalDriver
from flashevolve_plugins._virtual import VirtualDriver

SCRATCH = contextvars.ContextVar("scratch", default=None)


async def cancelled(call, when):
    """Await a call in the background, and cancel that once there was an event."""
    waits = asyncio.ensure_future(in_background(call))
    await until(when)
    waits.cancel()
    with suppress(asyncio.CancelledError):
        await waits
    return waits.cancelled()


def test_it_gives_what_the_call_gives_from_a_daemon_thread_of_its_own():
    def call():
        me = threading.current_thread()
        return me.name, me.daemon, SCRATCH.get()

    async def main():
        SCRATCH.set("the caller's")
        return await in_background(call)

    assert asyncio.run(main()) == (THREAD_NAME, True, "the caller's")


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_it_raises_what_the_call_raises(kind):
    def call():
        raise kind("mine")

    with pytest.raises(kind, match="mine"):
        asyncio.run(in_background(call))


@pytest.mark.parametrize("kind", [LocalDriver, InlineDriver, VirtualDriver])
def test_a_driver_ends_its_run_when_who_awaits_it_is_cancelled(kind):
    """The local driver is woken while it waits; the others look between two samples."""
    began, seen = threading.Event(), []
    blocks = threading.Event()

    def first():
        began.set()
        if kind is not LocalDriver:  # it runs here, on the driver's thread
            asked.wait(60)

    def call():
        asked_for = cancellation()
        request = asked_for.request
        asked_for.request = lambda: (request(), asked.set())
        with kind(make_limits()) as driver:
            item = driver.host_item()
            try:
                item.run(make_stage(first, lambda: blocks.wait(60) if kind is LocalDriver else seen.append("second")))
            except RunCancelledError as error:
                seen.append(type(error))
                raise

    asked = threading.Event()
    try:
        assert asyncio.run(cancelled(call, began))
        assert seen == [RunCancelledError]
    finally:
        blocks.set()


def test_a_call_that_does_not_end_is_left_after_a_while(monkeypatch):
    monkeypatch.setattr(_background, "CANCEL_SECONDS", 0.05)
    began, over, watched = threading.Event(), threading.Event(), []

    def call():
        cancellation().watch()
        watched.append(cancellation())
        began.set()
        over.wait(60)

    assert asyncio.run(cancelled(call, began))
    (thread,) = [each for each in threading.enumerate() if each.name == THREAD_NAME]
    assert thread.daemon
    with pytest.raises(RunCancelledError):
        watched[0].raise_if_requested()
    over.set()
    thread.join(60)


def test_without_a_run_inside_nothing_is_waited_for(monkeypatch):
    monkeypatch.setattr(_background, "CANCEL_SECONDS", 600)
    began, over = threading.Event(), threading.Event()

    def call():
        began.set()
        over.wait(60)

    assert asyncio.run(cancelled(call, began))
    over.set()


def test_a_run_that_begins_after_the_cancellation_ends_at_once():
    began, goes_on, seen = threading.Event(), threading.Event(), []

    def call():
        began.set()
        goes_on.wait(60)
        with LocalDriver(make_limits()) as driver:
            try:
                driver.host_item().run(make_stage(lambda: None))
            except RunCancelledError:
                seen.append("ended")
                raise

    assert asyncio.run(cancelled(call, began))
    (thread,) = [each for each in threading.enumerate() if each.name == THREAD_NAME]
    goes_on.set()
    thread.join(60)
    assert seen == ["ended"]


def test_a_run_that_nobody_awaits_is_never_asked_to_end():
    with LocalDriver(make_limits()) as driver:
        assert driver.host_item().run(make_stage(lambda: "done")) == ["done"]


def test_in_virtual_time_a_coroutine_is_waited_for_and_its_error_thrown():
    async def works():
        await asyncio.sleep(0)
        return threading.current_thread().name

    async def fails():
        raise KeyError("mine")

    with VirtualDriver(make_limits()) as driver:
        item = driver.host_item()
        assert item.run(make_stage(works, works, asynchronous=True)) == ["flashevolve-event-loop"] * 2
        with pytest.raises(KeyError, match="mine"):
            item.run(make_stage(fails, asynchronous=True))
    assert "flashevolve-event-loop" not in {each.name for each in threading.enumerate()}
