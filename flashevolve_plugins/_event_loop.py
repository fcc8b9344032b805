"""The run's one event loop, on a thread of its own: for coroutine samples, and for whatever else is awaited.

One loop, so that a program, its tools and its metric may share clients, which belong to the loop they were made in.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import queue
import threading
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from flashevolve_plugins._errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from typing_extensions import Self

T = TypeVar("T")
Outcome: TypeAlias = "tuple[T | None, BaseException | None]"
Ended: TypeAlias = "Callable[[T | None, BaseException | None], object]"
THREAD_NAME = "flashevolve-event-loop"
HELPER_NAME = "flashevolve-beside-loop"
CLOSE_SECONDS = 2.0  # for coroutines that are cancelled; one that blocks instead is abandoned then
_FOREIGN = (  # what asyncio, anyio and aiohttp say of it
    "is bound to a different event loop",
    "attached to a different loop",
    "belongs to a different loop",
    "Event loop is closed",
    "Timeout context manager should be used inside a task",
    "await wasn't used with future",  # of a second one that awaits it
)


def _nobody(_result: object, _error: BaseException | None) -> None:
    """Nobody wants to know."""


class RunIsOverError(BaseException):
    """Nobody waits for this any more: no failure of an example."""


class ForeignLoopError(UsageError):
    """Something was awaited that belongs to another event loop."""


class EventLoop:
    """An asyncio event loop on a daemon thread, from its first use until it is closed. Safe to use from any thread.

    What is started runs under a copy of the starter's context variables.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._futures: set[Future[Any]] = set()
        self._beside = _Threads()
        self._over = threading.Event()

    def start(self, function: Callable[[], Awaitable[T]], ended: Ended[T] = _nobody) -> Future[Outcome[T]]:
        """Start a coroutine function.

        Args:
            function: called on the loop's thread.
            ended: told there what it gave and what it raised, once it has really ended, cancelled or not.

        Returns:
            What it gave, and what it raised. Cancelling the future cancels what was started.

        Raises:
            RunIsOverError: the loop is closed.
        """
        future: Future[Outcome[T]] = Future()
        with self._lock:
            if self._over.is_set():
                raise RunIsOverError
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                given = self._loop, self._over
                self._thread = threading.Thread(target=_run, args=given, name=THREAD_NAME, daemon=True)
                self._thread.start()
            self._futures.add(future)
            self._loop.call_soon_threadsafe(_begin, function, future, ended)
        future.add_done_callback(self._futures.discard)
        return future

    def wait(self, awaitable: Awaitable[T]) -> T:
        """What an awaitable gives, or raises. For any thread but the loop's.

        Raises:
            RunIsOverError: the loop is closed.
            ForeignLoopError: it awaits what belongs to another loop.
        """
        try:
            value, error = self.start(partial(_given, awaitable)).result()
        except CancelledError:
            raise RunIsOverError from None
        finally:
            if inspect.iscoroutine(awaitable) and inspect.getcoroutinestate(awaitable) == inspect.CORO_CREATED:
                awaitable.close()  # it will not be awaited any more
        if error is not None:
            raise_if_foreign(error)
            raise error
        return value  # type: ignore[return-value]

    async def beside(self, call: Callable[[], T]) -> T:
        """What a blocking call gives, or raises, on a thread beside the loop. For the loop's thread."""
        value, error = await asyncio.wrap_future(self._beside.start(call))
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    def close(self) -> bool:
        """Cancel what runs, and end the thread.

        Returns:
            Whether the thread has ended: one that is blocked, instead of awaiting, is left to itself.
        """
        with self._lock:
            seconds = 0.0 if self._over.is_set() else CLOSE_SECONDS  # waited for once
            self._over.set()
        for future in list(self._futures):
            future.cancel()
        self._beside.close()
        if self._thread is None or self._loop is None:
            return True
        with suppress(RuntimeError):  # closed before
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def __enter__(self) -> Self:
        """Nothing starts yet."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close it."""
        self.close()


class _Threads:
    """Daemon threads for blocking calls, as many as there ever were calls at once."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads = 0

    def start(self, call: Callable[[], T]) -> Future[Outcome[T]]:
        future: Future[Outcome[T]] = Future()
        context = contextvars.copy_context()
        self._calls.put(partial(context.run, _fulfil, future, call, self._idle.release))
        if not self._idle.acquire(blocking=False):
            self._threads += 1
            threading.Thread(target=self._work, name=f"{HELPER_NAME}-{self._threads}", daemon=True).start()
        return future

    def close(self) -> None:
        """Let them end with what they do."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # an idle thread keeps nothing alive
        self._calls.put(None)  # for the next


def _fulfil(future: Future[Any], call: Callable[[], Any], ended: Callable[[], None]) -> None:
    """Call, and say that the call has ended before anybody hears what it gave: who hears may begin the next one."""
    if not future.set_running_or_notify_cancel():
        ended()
        return
    outcome: Outcome[Any]
    try:
        outcome = call(), None
    except BaseException as error:  # noqa: BLE001 - raised where it is awaited
        outcome = None, error
    ended()
    future.set_result(outcome)


def _run(loop: asyncio.AbstractEventLoop, over: threading.Event) -> None:
    asyncio.set_event_loop(loop)
    try:
        while not over.is_set():
            with suppress(KeyboardInterrupt, SystemExit):  # of a task that somebody else awaits, who is told
                loop.run_forever()
        while tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            with suppress(KeyboardInterrupt, SystemExit):
                loop.run_until_complete(asyncio.wait(tasks))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


def _begin(function: Callable[[], Awaitable[T]], future: Future[Outcome[T]], ended: Ended[T]) -> None:
    """Start a task. It is told of its end even if it is cancelled before it began."""
    loop = asyncio.get_running_loop()

    def tell(outcome: Outcome[T]) -> None:
        with suppress(InvalidStateError):  # nobody waits for it any more
            future.set_result(outcome)
        ended(*outcome)

    async def run() -> None:
        tell(await _outcome(function))  # at once: the next coroutine may block the loop, and callbacks come after it

    def done(task: asyncio.Task[None]) -> None:
        if task.cancelled():
            tell((None, CancelledError()))

    task = loop.create_task(run())

    def cancel(future: Future[Outcome[T]]) -> None:
        if future.cancelled():
            with suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(task.cancel)

    task.add_done_callback(done)
    if future.cancelled():
        task.cancel()
    else:
        future.add_done_callback(cancel)


async def _outcome(function: Callable[[], Awaitable[T]]) -> Outcome[T]:
    """What a function gives, or what it raises: leaving the interpreter must not end the loop under all others."""
    try:
        return await function(), None
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - raised where it is waited for
        return None, error


def is_async(function: Any) -> bool:
    """Whether calling it gives a coroutine, as far as that can be known without calling it."""
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


async def _given(awaitable: Awaitable[T]) -> T:
    return await awaitable


async def awaited(awaitable: Awaitable[T]) -> T:
    """What an awaitable gives, or raises; if it is cancelled by its own code, that is an ``Exception``.

    Raises:
        CancelledError: of ``concurrent.futures``, an ``Exception``: by its own code.
        ForeignLoopError: it awaits what belongs to another loop.
    """
    inner = asyncio.ensure_future(_outcome(partial(_given, awaitable)))
    try:
        await asyncio.wait({inner})
    except asyncio.CancelledError:
        inner.cancel()
        await asyncio.wait({inner})
        raise
    if inner.cancelled():
        raise CancelledError
    value, error = inner.result()
    if error is not None:
        raise_if_foreign(error)
        raise error
    return value  # type: ignore[return-value]


def raise_if_foreign(error: BaseException) -> None:
    """Raise a sentence in the place of an error that says that something belongs to another event loop.

    Raises:
        ForeignLoopError: it does.
    """
    for each in _chain(error):
        if isinstance(each, (RuntimeError, ValueError)) and any(sign in str(each) for sign in _FOREIGN):
            said = " ".join(str(each).split())
            raise ForeignLoopError(
                f"What was awaited belongs to another event loop ({said[:200]}): each run has an event loop of its "
                "own, so make the client, lock or queue inside the call that awaits it, or on its first use in a run."
            ) from error


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
