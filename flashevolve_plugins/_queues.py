"""Waiting samples of one resource, the one closest to a commit first, the oldest item first within a stage."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Waiting(NamedTuple):
    """A waiting sample. ``stage_number`` tells a stage of the item from an earlier one."""

    item: int
    sample: int
    stage_number: int


class StageQueues:
    """One heap per stage. Entries that became void are dropped when they come to the top.

    Args:
        stages: stage names in the order an item passes them.
    """

    def __init__(self, stages: Iterable[str]) -> None:
        self._heaps: dict[str, list[Waiting]] = {name: [] for name in reversed(tuple(stages))}

    def push(self, stage: str, entry: Waiting) -> None:
        """Add a waiting sample of ``stage``."""
        heapq.heappush(self._heaps[stage], entry)

    def first(self, valid: Callable[[Waiting], bool], may_start: Callable[[str], bool]) -> Waiting | None:
        """The sample to run next, still in its queue, or ``None``.

        Args:
            valid: whether an entry still stands for a waiting sample.
            may_start: whether one more sample of a stage may run.
        """
        for stage, heap in self._heaps.items():
            if not heap or not may_start(stage):
                continue
            while heap and not valid(heap[0]):
                heapq.heappop(heap)
            if heap:
                return heap[0]
        return None
