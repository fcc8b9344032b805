"""A request, from any thread, to end a run at once. A context variable carries it to the run's driver, which looks."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_around: ContextVar[Cancellation | None] = ContextVar("flashevolve_cancellation", default=None)


class RunCancelledError(BaseException):
    """Raised on the run's thread, as Ctrl-C would be: who waited for the run does so no more."""


class Cancellation:
    """Whether the runs of a context are to end. Safe to use from any thread."""

    def __init__(self) -> None:
        self._requested = False
        self._wakes: list[Callable[[], None]] = []
        #: Whether a run has begun that looks here.
        self.is_watched = False

    def request(self) -> None:
        """Ask for the end."""
        self._requested = True
        for wake in tuple(self._wakes):
            wake()

    def watch(self, wake: Callable[[], None] = lambda: None) -> None:
        """A run has begun that looks here.

        Args:
            wake: lets it look now; called on the thread that asks for the end.
        """
        self._wakes.append(wake)
        self.is_watched = True

    def raise_if_requested(self) -> None:
        """End the run.

        Raises:
            RunCancelledError: the end was asked for.
        """
        if self._requested:
            raise RunCancelledError


def cancellation() -> Cancellation:
    """What a run that begins here and now looks at."""
    return _around.get() or Cancellation()


def run_under(around: Cancellation) -> None:
    """Let the runs that begin in this context look there."""
    _around.set(around)
