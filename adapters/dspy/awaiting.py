"""Metrics that are `async def`: awaited on one event loop for the whole run, so that they may share clients."""

from __future__ import annotations

import functools
import inspect
import threading
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from anyio.from_thread import start_blocking_portal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from anyio.from_thread import BlockingPortal

T = TypeVar("T")
THREAD_NAME = "flashevolve-metric-loop"


@contextmanager
def awaited_metric(adapter: Any, feedback_called: Callable[[], None]) -> Iterator[None]:
    """Let a dspy adapter's metric give awaitables, for the length of the block.

    Whoever calls the metric waits on its own thread. The awaitable runs under that thread's context variables.

    Args:
        adapter: the host's live adapter; it is as it was when the block is left.
        feedback_called: told of every metric call that a reflective dataset makes, on the thread that makes it.
    """
    metric, feedback = adapter.metric_fn, adapter.feedback_map
    with ExitStack() as stack:
        loop = _Loop(stack)
        adapter.metric_fn = metric and _awaited(metric, loop)
        adapter.feedback_map = {name: _feedback(function, loop, feedback_called) for name, function in feedback.items()}
        try:
            yield
        finally:
            loop.over = True
            adapter.metric_fn, adapter.feedback_map = metric, feedback


class _RunIsOverError(BaseException):
    """Nobody waits for this metric any more: no failure of its example."""


class _Loop:
    """An event loop on a thread of its own, from the first awaitable until the stack is unwound."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._lock = threading.Lock()
        self._portal: BlockingPortal | None = None
        self.over = False

    def wait(self, awaitable: Awaitable[T]) -> T:
        """What an awaitable gives, or raises."""
        try:
            value, leaving = self._running().call(_outcome, awaitable)
        except CancelledError as error:
            raise _RunIsOverError if self.over else error from error
        finally:
            if inspect.iscoroutine(awaitable) and inspect.getcoroutinestate(awaitable) == inspect.CORO_CREATED:
                awaitable.close()  # it will not be awaited any more
        if leaving is not None:
            raise leaving
        return value  # type: ignore[return-value]

    def _running(self) -> BlockingPortal:
        with self._lock:
            if self.over:
                raise _RunIsOverError
            if self._portal is None:
                self._portal = self._stack.enter_context(start_blocking_portal())
                self._portal.call(_name_thread)
            return self._portal


async def _outcome(awaitable: Awaitable[T]) -> tuple[T | None, BaseException | None]:
    """What an awaitable gives, or the exception that would end the event loop under all others."""
    try:
        return await awaitable, None
    except (KeyboardInterrupt, SystemExit) as leaving:
        return None, leaving


def _name_thread() -> None:
    threading.current_thread().name = THREAD_NAME


def _awaited(metric: Callable[..., Any], loop: _Loop) -> Callable[..., Any]:
    @functools.wraps(metric)  # Flex code asks for the metric's signature
    def awaited(*arguments: Any, **named: Any) -> Any:
        score = metric(*arguments, **named)
        return loop.wait(score) if inspect.isawaitable(score) else score

    return awaited


def _feedback(function: Callable[..., Any], loop: _Loop, called: Callable[[], None]) -> Callable[..., Any]:
    """A predictor's feedback. The host makes it of what the metric gives, which it takes for a plain score."""

    def feedback(**what: Any) -> Any:
        called()
        told = function(**what)
        if not inspect.isawaitable(told["score"]):
            return told
        score = loop.wait(told["score"])
        if not hasattr(score, "feedback"):
            return {"score": score, "feedback": f"This trajectory got a score of {score}."}
        if score["feedback"] is None:
            score["feedback"] = f"This trajectory got a score of {score['score']}."
        return score

    return feedback
