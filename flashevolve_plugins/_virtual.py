"""The virtual driver: the same Scheduler on a virtual clock, hours in a second.

A sample's ``call`` runs, without any real waiting, at the virtual moment at which it ends; how long it takes is its
``seconds``. A coroutine is waited for. Every scheduling claim is first a test in virtual time.
"""

from __future__ import annotations

import heapq
from contextlib import suppress
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._driver import Driver
from flashevolve_plugins._errors import FlashEvolveError

if TYPE_CHECKING:
    from flashevolve_plugins._calls import End
    from flashevolve_plugins._model import Sample


class VirtualDriver(Driver):
    """Runs samples in virtual time, on the caller's thread.

    Its arguments are those of :class:`Driver`.
    """

    def _prepare(self) -> None:
        self._clock = 0.0
        self._ends: list[tuple[float, int, int, int, Sample, float]] = []
        self._order = count()
        self._started: dict[tuple[int, int], int] = {}  # sample -> the order of its last start
        self._abandoned: set[int] = set()  # the orders of starts

    def now(self) -> float:
        """Virtual seconds since the driver was made."""
        return self._clock

    def _start(self, item: int, index: int, sample: Sample) -> None:
        seconds = 0.0 if sample.seconds is None else sample.seconds()
        order = self._started[item, index] = next(self._order)
        heapq.heappush(self._ends, (self._clock + seconds, order, item, index, sample, seconds))

    def _wait(self) -> End | None:
        due = self.due()
        if due < inf and not (self._ends and self._ends[0][0] <= due):
            self._clock = max(self._clock, due)
            return None
        if not self._ends:
            raise FlashEvolveError("Nothing runs in virtual time, and the run is not over.")
        self._clock, order, item, index, sample, seconds = heapq.heappop(self._ends)
        if order in self._abandoned:
            self._abandoned.remove(order)
            with suppress(Exception):  # nobody waits for what it gives
                self._call(sample)
            self._calls.came_back(sample.resource)
            return None
        del self._started[item, index]
        try:
            return item, index, self._call(sample), None, seconds
        except Exception as error:  # noqa: BLE001 - told to the Scheduler as the local driver does
            return item, index, None, error, seconds

    def _call(self, sample: Sample) -> Any:
        return self.loop.wait(sample.call()) if sample.asynchronous else sample.call()

    def _abandon_try(self, item: int, index: int) -> None:
        self._abandoned.add(self._started.pop((item, index)))

    def close(self) -> None:
        """Close the event loop, if there was a coroutine."""
        self._close_loop()
