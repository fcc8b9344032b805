"""Blocking host calls for callers with an event loop of their own: awaited there, run on a thread."""

from __future__ import annotations

import functools
import sys
import threading
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar, cast

from flashevolve_plugins._cancellation import Cancellation, run_under

if TYPE_CHECKING:
    import inspect
    from collections.abc import Awaitable, Callable

T = TypeVar("T")
THREAD_NAME = "flashevolve-run"
CANCEL_SECONDS = 10.0  # for a run that was asked to end


async def in_background(call: Callable[[], T]) -> T:
    """What a blocking call gives, or raises, on a thread of its own, under a copy of the caller's context variables.

    If the awaiting task is cancelled, flash's runs inside the call are asked to end and waited for, at most
    ``CANCEL_SECONDS``; the cancellation goes on then. A call without such a run is left to itself, on a daemon thread.

    Args:
        call: it may run flash.
    """
    import anyio  # noqa: PLC0415 - importing flash must stay light

    finished, soon, cancelled = anyio.Event(), _into_this_loop(), anyio.get_cancelled_exc_class()
    around, outcomes = Cancellation(), list[tuple[Any, "BaseException | None"]]()

    def run() -> None:
        run_under(around)
        try:
            outcomes.append((call(), None))
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            outcomes.append((None, error))
        with suppress(RuntimeError):  # that loop is closed: nobody waits
            soon(finished.set)

    threading.Thread(target=copy_context().run, args=(run,), name=THREAD_NAME, daemon=True).start()
    try:
        await finished.wait()
    except cancelled:
        around.request()
        if around.is_watched:
            with anyio.move_on_after(CANCEL_SECONDS, shield=True):
                await finished.wait()
        raise
    finally:
        around.request()  # of no effect on a call that is over
    result, error = outcomes.pop()
    if error is not None:
        raise error
    return cast("T", result)


def _into_this_loop() -> Callable[[Callable[[], object]], object]:
    """How another thread lets something run in the event loop that runs here: asyncio's or trio's."""
    import asyncio  # noqa: PLC0415 - importing flash must stay light

    with suppress(RuntimeError):  # there is none
        return asyncio.get_running_loop().call_soon_threadsafe
    return cast("Any", sys.modules["trio"]).lowlevel.current_trio_token().run_sync_soon  # type: ignore[no-any-return]


def awaitable(function: Callable[..., Any], signature: inspect.Signature, name: str) -> Callable[..., Awaitable[Any]]:
    """A coroutine function that calls a blocking function in the background.

    Args:
        function: called with the same arguments.
        signature: the one to show.
        name: the name to show, without the class.
    """

    @functools.wraps(function)
    async def wrapper(*arguments: Any, **named: Any) -> Any:
        return await in_background(functools.partial(function, *arguments, **named))

    own = function.__name__
    wrapper.__name__, wrapper.__qualname__ = name, f"{function.__qualname__.removesuffix(own)}{name}"
    wrapper.__signature__ = signature  # type: ignore[attr-defined]
    wrapper.__doc__ = f"Await ``{own}``, which runs on a thread; cancelling ends the run.\n\n{function.__doc__ or ''}"
    return wrapper
