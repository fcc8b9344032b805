"""The run's event loop: what it gives, how it ends, and what it says of things that belong to another one."""

import asyncio
import contextvars
import functools
import gc
import threading
from collections.abc import Iterator

import pytest

from flashevolve_plugins import UsageError, _event_loop
from flashevolve_plugins._event_loop import (
    HELPER_NAME,
    THREAD_NAME,
    EventLoop,
    RunIsOverError,
    _Threads,
    awaited,
    is_async,
)

SCRATCH: contextvars.ContextVar[str] = contextvars.ContextVar("scratch", default="nobody's")


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    with EventLoop() as made:
        yield made


async def here() -> tuple[str, object, str]:
    return threading.current_thread().name, asyncio.get_running_loop(), SCRATCH.get()


def test_all_is_awaited_on_one_thread_under_the_starters_context(loop):
    first = loop.wait(here())
    SCRATCH.set("the starter's")
    (second, error) = loop.start(here).result(60)
    SCRATCH.set("nobody's")
    assert error is None
    assert first[:2] == second[:2]
    assert (first[0], first[2], second[2]) == (THREAD_NAME, "nobody's", "the starter's")


def test_nothing_starts_before_it_is_used():
    with EventLoop():
        assert THREAD_NAME not in {each.name for each in threading.enumerate()}


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit, StopAsyncIteration])
def test_what_is_raised_is_raised_where_it_is_waited_for_and_the_loop_goes_on(kind, loop):
    async def fail() -> None:
        raise kind("mine")

    with pytest.raises(kind, match="mine"):
        loop.wait(fail())
    assert loop.wait(here())[0] == THREAD_NAME


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_leaving_the_interpreter_in_a_task_of_its_own_ends_no_other(kind, loop):
    async def fail() -> None:
        raise kind

    async def gathers() -> None:
        await asyncio.gather(fail(), asyncio.sleep(0))

    with pytest.raises(kind):
        loop.wait(gathers())
    assert loop.wait(here())[0] == THREAD_NAME


def test_cancelling_before_it_has_begun_is_told_like_any_other_end(loop):
    """Else who counts on hearing of every end waits for ever."""
    ended, block, blocked = threading.Event(), threading.Event(), threading.Event()
    told = []

    async def blocks() -> None:
        blocked.set()
        block.wait(60)

    def tell(result: object, error: BaseException | None) -> None:
        told.append((result, type(error).__name__))
        ended.set()

    loop.start(blocks)
    assert blocked.wait(60)
    loop.start(here, tell).cancel()
    block.set()
    assert ended.wait(60)
    assert told == [(None, "CancelledError")]


def test_closing_cancels_what_awaits_and_lets_it_clean_up():
    cleaned, began = [], threading.Event()

    async def endless() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(threading.current_thread().name)

    loop = EventLoop()
    future = loop.start(endless)
    assert began.wait(60)
    assert loop.close()
    assert cleaned == [THREAD_NAME]
    assert future.cancelled()
    assert loop.close()  # again changes nothing


def test_who_waits_when_it_is_closed_is_told_that_the_run_is_over():
    loop, began, told = EventLoop(), threading.Event(), []

    async def endless() -> None:
        began.set()
        await asyncio.Event().wait()

    def waits() -> None:
        try:
            loop.wait(endless())
        except RunIsOverError as error:
            told.append(error)

    thread = threading.Thread(target=waits)
    thread.start()
    assert began.wait(60)
    loop.close()
    thread.join(60)
    assert told


def test_what_comes_after_the_end_is_not_begun_and_leaves_nothing_unawaited():
    loop = EventLoop()
    loop.close()
    with pytest.raises(RunIsOverError):
        loop.wait(here())
    gc.collect()  # a coroutine never awaited would be a warning, which is an error here


def test_a_coroutine_that_blocks_is_left_to_itself(monkeypatch):
    monkeypatch.setattr(_event_loop, "CLOSE_SECONDS", 0.05)
    loop, began, over = EventLoop(), threading.Event(), threading.Event()

    async def blocks() -> None:
        began.set()
        over.wait(60)

    loop.start(blocks)
    assert began.wait(60)
    assert not loop.close()
    (thread,) = [each for each in threading.enumerate() if each.name == THREAD_NAME]
    assert thread.daemon
    over.set()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("kind", [ValueError, SystemExit, StopIteration])
def test_blocking_calls_run_beside_it_under_the_callers_context(kind, loop):
    began, together = [], threading.Barrier(3)

    def blocks() -> tuple[str, str]:
        began.append(threading.current_thread())
        together.wait(60)
        return threading.current_thread().name, SCRATCH.get()

    def fails() -> None:
        raise kind("mine")

    async def all_at_once() -> list[tuple[str, str]]:
        SCRATCH.set("the coroutine's")
        return await asyncio.gather(*(loop.beside(blocks) for _ in range(3)))

    found = loop.wait(all_at_once())
    assert {name for _, name in found} == {"the coroutine's"}
    assert {name for name, _ in found} == {f"{HELPER_NAME}-{n}" for n in (1, 2, 3)}
    with pytest.raises(RuntimeError if kind is StopIteration else kind):  # as of any coroutine
        loop.wait(loop.beside(fails))
    assert loop.wait(loop.beside(threading.current_thread)) in began  # no further thread
    assert all(thread.daemon for thread in began)


def test_who_hears_of_a_call_beside_the_loop_begins_the_next_one_on_its_thread():
    threads, hold, heard, second = _Threads(), threading.Event(), threading.Event(), []

    def hear(_):  # on the call's own thread, in the moment in which its end is told
        second.append(threads.start(threading.current_thread))
        heard.set()

    threads.start(lambda: hold.wait(60)).add_done_callback(hear)
    hold.set()
    assert heard.wait(60)
    thread, error = second[0].result(60)
    threads.close()
    assert (thread.name, error, threads._threads) == (f"{HELPER_NAME}-1", None, 1)
    thread.join(60)


def test_one_that_cancels_itself_raises_an_exception_and_a_cancelled_one_is_cancelled(loop):
    async def cancels() -> None:
        raise asyncio.CancelledError

    async def caught() -> str:
        try:
            await awaited(cancels())
        except Exception as error:  # noqa: BLE001 - that it is one is the point
            return type(error).__module__
        return "nothing"

    assert loop.wait(caught()) == "concurrent.futures._base"
    seen = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("inner")
            raise

    async def outer() -> None:
        task = asyncio.ensure_future(awaited(endless()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    loop.wait(outer())
    assert seen == ["inner"]


FOREIGN = {
    "asyncio's locks": RuntimeError("<asyncio.locks.Lock object [locked]> is bound to a different event loop"),
    "futures": RuntimeError("Task <Task> got Future <Future> attached to a different loop"),
    "gather": ValueError("The future belongs to a different loop than the one specified as the loop argument"),
    "a closed loop": RuntimeError("Event loop is closed"),
    "aiohttp": RuntimeError("Timeout context manager should be used inside a task"),
}


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("wrapped", [False, True])
def test_what_belongs_to_another_loop_is_told_in_one_sentence(name, wrapped, loop):
    async def fail() -> None:
        try:
            raise FOREIGN[name]
        except (RuntimeError, ValueError) as error:
            if wrapped:
                raise ConnectionError("Connection error.") from error
            raise

    for wait in (fail, lambda: awaited(fail())):
        with pytest.raises(
            UsageError, match="belongs to another event loop .*: each run has .* first use in a run"
        ) as caught:
            loop.wait(wait())
        assert str(FOREIGN[name]) in str(caught.value)
        assert caught.value.__cause__ is not None


@pytest.mark.parametrize("error", [RuntimeError("no loop today"), KeyError("Event loop is closed")], ids=str)
def test_other_errors_stay_what_they_are(error, loop):
    async def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        loop.wait(fail())
    assert caught.value is error


class Callable:
    async def __call__(self) -> None:
        """Nothing."""


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (here, True),
        (functools.partial(functools.partial(here)), True),
        (Callable(), True),
        (print, False),
        (None, False),
    ],
    ids=["a function", "partials", "an instance", "a plain function", "nothing"],
)
def test_what_gives_a_coroutine_is_known_before_it_is_called(function, expected):
    assert is_async(function) is expected


def test_what_has_ended_is_told_even_if_the_next_coroutine_blocks_the_loop():
    release, ready, told = threading.Event(), threading.Event(), []
    with EventLoop() as loop:

        async def make():
            return asyncio.Event()

        gate, _ = loop.start(make).result(60)

        async def ends():
            await gate.wait()
            return "ended"

        async def blocks():
            await gate.wait()
            ready.set()
            release.wait(60)

        first = loop.start(ends, lambda *outcome: told.append(outcome))
        second = loop.start(blocks)

        async def open_gate():
            gate.set()

        loop.start(open_gate)
        assert ready.wait(60)
        try:
            assert first.result(0) == ("ended", None)
            assert told == [("ended", None)]
        finally:
            release.set()
        second.result(60)
