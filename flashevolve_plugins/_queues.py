"""Items with samples that wait for one resource, the one closest to a commit first, the oldest first within a stage."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class StageQueues:
    """One heap of item numbers per stage. Numbers that became void are dropped when they come to the top.

    Args:
        stages: stage names in the order an item passes them.
        waits: whether an item still has a sample that waits in a stage.
        may_start: whether one more sample of a stage may run.
    """

    def __init__(
        self, stages: Iterable[str], waits: Callable[[int, str], bool], may_start: Callable[[str], bool]
    ) -> None:
        self._waits = waits
        self._may_start = may_start
        self._heaps: dict[str, list[int]] = {name: [] for name in reversed(tuple(stages))}

    def push(self, stage: str, item: int) -> None:
        """Add an item whose ``stage`` has waiting samples. Adding it twice does no harm."""
        heapq.heappush(self._heaps[stage], item)

    def first(self) -> int | None:
        """The item that goes next, still in its queue, or ``None``."""
        for stage, heap in self._heaps.items():
            if not heap or not self._may_start(stage):
                continue
            while heap and not self._waits(heap[0], stage):
                heapq.heappop(heap)
            if heap:
                return heap[0]
        return None
