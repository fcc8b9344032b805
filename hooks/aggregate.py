"""Aggregation in groups (Combee, arXiv 2604.04247): many reflect at once, and what they found is taken in by group."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

from flashevolve_plugins._policies import Batch, Plan
from flashevolve_plugins.hooks.depth import Merge
from flashevolve_plugins.hooks.specs import hookimpl
from flashevolve_plugins.hooks.staleness import require_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashevolve_plugins._model import ItemView
    from flashevolve_plugins._pool import Pool
    from flashevolve_plugins._snapshot import Snapshot


class Aggregate(Merge):
    """Waits until a whole group is there, and merges it in one call; a smaller one only when nothing else will come.

    Without barriers between the rounds, which Combee has: the next samples run while a group is merged.

    Args:
        group: how many go together. Default: about the square root of the number of slots.
        max_items: as for every :class:`QueuePolicy`.

    Raises:
        UsageError: an option that cannot work.
    """

    def __init__(self, group: int | None = None, max_items: int | None = None) -> None:
        super().__init__(max_items=max_items)
        self.group = group if group is None else require_count("Aggregate", "group", group, 1)
        self._size = group or 1

    def take(self, waiting: Sequence[ItemView], pool: Pool, *, last: bool) -> Batch:
        """A group, or nothing yet."""
        rest = [each for each in waiting if not each.failed_with]
        if not last and len(rest) < self._size and len(rest) == len(waiting):
            return Batch()
        self._limit = self.max_batch = self._size
        return super().take(waiting, pool, last=last)

    @hookimpl
    def flashevolve_plan(self, snapshot: Snapshot) -> Plan:
        """Learn how many slots there are; then as every policy with a queue."""
        slots = snapshot.slots.get(snapshot.entry, 1)
        plan = super().flashevolve_plan(snapshot)
        most = slots if plan.max_items is None else plan.max_items
        self._size = min(self.group or max(1, round(sqrt(slots))), most)
        return plan
