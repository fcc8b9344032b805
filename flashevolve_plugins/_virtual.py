"""The virtual driver: the same Scheduler on a virtual clock, hours in a second.

A sample's ``call`` runs, without any real waiting, at the virtual moment at which it ends; how long it takes is its
``seconds``. Every scheduling claim is first a test in virtual time.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._driver import Driver
from flashevolve_plugins._errors import FlashEvolveError

if TYPE_CHECKING:
    from flashevolve_plugins._model import Sample


class VirtualDriver(Driver):
    """Runs samples in virtual time, on the caller's thread.

    Its arguments are those of :class:`Driver`.
    """

    def _prepare(self) -> None:
        self._clock = 0.0
        self._ends: list[tuple[float, int, int, int, Sample, float]] = []
        self._order = count()

    def now(self) -> float:
        """Virtual seconds since the driver was made."""
        return self._clock

    def _start(self, item: int, index: int, sample: Sample) -> None:
        seconds = 0.0 if sample.seconds is None else sample.seconds()
        heapq.heappush(self._ends, (self._clock + seconds, next(self._order), item, index, sample, seconds))

    def _wait(self) -> tuple[int, int, Any, BaseException | None, float]:
        if not self._ends:
            raise FlashEvolveError("Nothing runs in virtual time, and the run is not over.")
        self._clock, _, item, index, sample, seconds = heapq.heappop(self._ends)
        try:
            return item, index, sample.call(), None, seconds
        except Exception as error:  # noqa: BLE001 - told to the Scheduler as the local driver does
            return item, index, None, error, seconds

    def close(self) -> None:
        """Nothing is held."""
