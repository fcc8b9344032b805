"""What is to be done later, on the driver's clock."""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Timers:
    """Actions and their moments, in seconds of the driver's clock. All on the caller's thread."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def add(self, moment: float, action: Callable[[], None]) -> None:
        """Do something at a moment. Whoever changes its mind lets the action do nothing."""
        heapq.heappush(self._heap, (moment, next(self._order), action))

    @property
    def next(self) -> float | None:
        """The next moment, or ``None``."""
        return self._heap[0][0] if self._heap else None

    def run(self, now: float) -> None:
        """Do what is due."""
        while self._heap and self._heap[0][0] <= now:
            heapq.heappop(self._heap)[2]()

    def clear(self) -> None:
        """Forget everything."""
        self._heap.clear()
