"""What a kind of driver supplies: a clock, and how a sample is started, waited for and left to itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flashevolve_plugins._calls import End
    from flashevolve_plugins._event_loop import EventLoop
    from flashevolve_plugins._model import Sample


class DriverKind(ABC):
    """The part of a driver that differs between threads, virtual time and lockstep."""

    _loop: EventLoop | None = None

    @abstractmethod
    def _prepare(self) -> None:
        """Make what this kind of driver needs; comes before everything else."""

    @abstractmethod
    def now(self) -> float:
        """The driver's clock, in seconds."""

    @abstractmethod
    def _start(self, item: int, index: int, sample: Sample) -> None:
        """Let a sample run."""

    @abstractmethod
    def _wait(self) -> End | None:
        """Wait for a sample to end. ``None``: :meth:`due` has come, or for a while nothing ended that is waited for."""

    def _abandon_try(self, item: int, index: int) -> None:
        """Wait no more for a sample that runs; when it returns after all, tell :meth:`Calls.came_back`."""
        raise NotImplementedError

    def _cancel(self, item: int, index: int) -> None:  # noqa: B027 - most samples cannot be stopped
        """Stop a running sample if that is possible."""

    def wake(self) -> None:  # noqa: B027 - a driver that does not wait cannot be woken
        """End a wait. Safe inside a signal handler."""

    @abstractmethod
    def close(self) -> None:
        """Give back what the driver holds. Samples that still run are abandoned."""

    @property
    def loop(self) -> EventLoop:
        """The event loop of coroutine samples. An adapter that awaits more in the run gives the one that it uses."""
        if self._loop is None:
            from flashevolve_plugins._event_loop import EventLoop  # noqa: PLC0415 - only runs with coroutines pay

            self._loop = EventLoop()
        return self._loop

    @loop.setter
    def loop(self, loop: EventLoop) -> None:
        self._loop = loop

    def _close_loop(self) -> bool:
        return self._loop is None or self._loop.close()
