"""Items with samples that wait for one resource, the one closest to a commit first, the oldest first within a stage."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from collections.abc import Set as AbstractSet


class StageQueues:
    """Heaps of item numbers per stage. Numbers that became void are dropped when they come to the top.

    Args:
        stages: stage names in the order an item passes them.
        waits: whether an item still has a sample that waits in a stage.
        goes_on: whether such an item has begun the stage.
        full: stages in which no further item may begin, now; it changes, and is always the same object.
    """

    def __init__(
        self,
        stages: Iterable[str],
        waits: Callable[[int, str], bool],
        goes_on: Callable[[int, str], bool],
        full: AbstractSet[str],
    ) -> None:
        self._waits, self._goes_on = waits, goes_on
        self._full = full
        self._heaps: dict[str, list[int]] = {name: [] for name in reversed(tuple(stages))}
        self._begun: dict[str, list[int]] = {name: [] for name in self._heaps}

    def push(self, stage: str, item: int) -> None:
        """Add an item whose ``stage`` has waiting samples. Adding it twice does no harm."""
        heapq.heappush(self._heaps[stage], item)

    def push_begun(self, stage: str, item: int) -> None:
        """Say that an item which was added has begun the stage. Only needed for stages that may become full."""
        self._first_begun(stage)
        heapq.heappush(self._begun[stage], item)

    def first(self) -> int | None:
        """The item that goes next, still in its queue, or ``None``. In a full stage, of those that have begun it."""
        for stage, heap in self._heaps.items():
            if not heap:
                continue
            if stage in self._full:
                begun = self._first_begun(stage)
                if begun is None:
                    continue
                return begun
            while heap and not self._waits(heap[0], stage):
                heapq.heappop(heap)
            if heap:
                return heap[0]
        return None

    def _first_begun(self, stage: str) -> int | None:
        heap = self._begun[stage]
        while heap and not self._goes_on(heap[0], stage):
            heapq.heappop(heap)
        return heap[0] if heap else None
