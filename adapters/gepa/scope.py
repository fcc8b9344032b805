"""The scoped view: what host code reads as the current iteration while it is called outside the host's own loop."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def at_iteration(state: Any, iteration: int, spent: int) -> Iterator[None]:
    """Let the host's state say that ``iteration`` is under way and ``spent`` metric calls are used.

    All host code runs on one thread, so for the length of the block the state itself says so, and is restored after.

    Args:
        state: the host's ``GEPAState``.
        iteration: what ``state.i`` reads.
        spent: what ``state.total_num_evals`` reads.
    """
    kept_i, kept_spent = state.i, state.total_num_evals
    state.i, state.total_num_evals = iteration, spent
    state.full_program_trace.append({"i": iteration})
    try:
        yield
    finally:
        state.full_program_trace.pop()
        state.i, state.total_num_evals = kept_i, kept_spent
