"""Metrics that are `async def`: awaited on the run's event loop, so that they may share clients with the program."""

from __future__ import annotations

import functools
import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._event_loop import awaited, is_async

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flashevolve_plugins._event_loop import EventLoop


@contextmanager
def awaited_metric(adapter: Any, loop: EventLoop, feedback_called: Callable[[], None]) -> Iterator[None]:
    """Let a dspy adapter's metric give awaitables, for the length of the block.

    Whoever calls the metric waits on its own thread. The awaitable runs under that thread's context variables.

    Args:
        adapter: the host's live adapter; it is as it was when the block is left.
        loop: the run's event loop.
        feedback_called: told of every metric call that a reflective dataset makes, on the thread that makes it.
    """
    metric, feedback = adapter.metric_fn, adapter.feedback_map
    adapter.metric_fn = metric and _awaited(metric, loop)
    adapter.feedback_map = {name: _feedback(function, loop, feedback_called) for name, function in feedback.items()}
    try:
        yield
    finally:
        adapter.metric_fn, adapter.feedback_map = metric, feedback


def metric_on(loop: EventLoop, metric: Callable[..., Any]) -> Callable[..., Any]:
    """A metric for coroutines of this loop: awaited there, and called on a thread beside it if it may block.

    Args:
        loop: the run's event loop.
        metric: the user's own.
    """
    gives_coroutines = is_async(metric)

    @functools.wraps(metric)  # Flex code asks for the metric's signature
    async def ask(*arguments: Any, **named: Any) -> Any:
        if gives_coroutines:
            return await awaited(metric(*arguments, **named))
        score = await loop.beside(functools.partial(metric, *arguments, **named))
        return await awaited(score) if inspect.isawaitable(score) else score

    return ask


def is_async_program(student: Any) -> bool:
    """Whether a program can be called as a coroutine only: one that has a `forward` too is called as the host does."""
    has_forward = hasattr(type(student), "forward") or "forward" in vars(student)  # asked for by name, it warns
    return not has_forward and is_async(getattr(student, "aforward", None))


def _awaited(metric: Callable[..., Any], loop: EventLoop) -> Callable[..., Any]:
    @functools.wraps(metric)  # Flex code asks for the metric's signature
    def awaited(*arguments: Any, **named: Any) -> Any:
        score = metric(*arguments, **named)
        return loop.wait(score) if inspect.isawaitable(score) else score

    return awaited


def _feedback(function: Callable[..., Any], loop: EventLoop, called: Callable[[], None]) -> Callable[..., Any]:
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
