"""Merging where the artifact is code: a stale candidate's change goes onto what is best now, without a proposer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashevolve_plugins.hooks import StalenessPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashevolve_plugins.adapters.meta_harness.three_way import Carried
    from flashevolve_plugins.hooks import ItemView, Judgement, Pool

MAX_PATCHES = 3


class Carry(StalenessPolicy):
    """Carries a stale candidate's change onto what is best now, where the two do not touch; it is checked again then.

    Args:
        carried: from an item's number to its change on what is best now. Changes nothing.
    """

    def __init__(self, carried: Callable[[int], Carried]) -> None:
        self._carried = carried

    def judge(self, item: ItemView, pool: Pool) -> Judgement:
        """Patch, if it can be; else the candidate goes on as it was made."""
        del pool
        if item.evidence is None or item.patches >= MAX_PATCHES:
            return self.accept()
        carried = self._carried(item.number)
        if carried.conflict:
            return self.accept(f"stale by {item.staleness}, goes on as it was made: {carried.conflict}")
        if not carried.files:
            return self.discard("what is best now holds its change already")
        return self.patch(carried, f"stale by {item.staleness}: its change was carried onto what is best now")
