"""The token clock on an event loop: one timer wakes whoever has something to read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashevolve_plugins.benchmarks.server.latency import TokenClock

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from flashevolve_plugins.benchmarks.server.latency import LatencyModel, Progress

__all__ = ["Engine"]


class Engine:
    """Runs requests on the loop's clock. Every method is called on the loop's thread.

    Args:
        model: the speeds.
        loop: whose clock and timer are used.
    """

    def __init__(self, model: LatencyModel, loop: asyncio.AbstractEventLoop) -> None:
        """Start with nothing running."""
        self._loop = loop
        self._clock = TokenClock(model, loop.time())
        self._reports: dict[int, Callable[[Progress], None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def running(self) -> int:
        """Requests that hold a slot."""
        return self._clock.running

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot."""
        return self._clock.waiting

    @property
    def slot_seconds(self) -> float:
        """Seconds of use, summed over all slots, up to the last event."""
        return self._clock.slot_seconds

    def submit(
        self, prompt_tokens: int, output_tokens: int, marks: int, report: Callable[[Progress], None], slowness: float
    ) -> int:
        """Add a request and return its key; ``report`` is called at each of its marks, perhaps before this returns."""
        key = self._clock.submit(self._loop.time(), prompt_tokens, output_tokens, marks, slowness)
        self._reports[key] = report
        self._deliver()
        return key

    def abort(self, key: int) -> bool:
        """Free the request's slot or place in the queue; return whether it was still there."""
        there = self._clock.abort(self._loop.time(), key)
        if there:
            del self._reports[key]
        self._deliver()
        return there

    def settle(self) -> None:
        """Bring the numbers up to this moment."""
        self._deliver()

    def _deliver(self) -> None:
        """Report what was reached and set the timer for what comes next."""
        for progress in self._clock.advance(self._loop.time()):
            report = self._reports.pop(progress.key) if progress.finished else self._reports[progress.key]
            report(progress)
        due = self._clock.next_time()
        if due is None or (self._timer is not None and self._timer.when() <= due):
            return  # a timer that fires too early sets the right one
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._wake)

    def _wake(self) -> None:
        """Answer the timer."""
        self._timer = None
        self._deliver()
