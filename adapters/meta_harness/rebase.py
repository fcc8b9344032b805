"""Reflective Async where the artifact is code: the proposer reads a stale candidate, in a session of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashevolve_plugins.hooks import StalenessPolicy

if TYPE_CHECKING:
    from flashevolve_plugins.hooks import ItemView, Judgement, Pool, Reflective


class Rebase(StalenessPolicy):
    """Sends a stale candidate back to the proposer, which sees what entered the pool since.

    Args:
        like: says how stale a candidate may be, how often it is sent back, and what becomes of it then.
    """

    def __init__(self, like: Reflective) -> None:
        self.max_staleness, self.max_patches, self.fallback = like.max_staleness, like.max_patches, like.fallback
        self.fallbacks = 0

    def judge(self, item: ItemView, pool: Pool) -> Judgement:
        """Patch: the item's body goes back to its first stage."""
        del pool
        if item.staleness <= self.max_staleness or item.evidence is None:
            return self.accept()
        if item.patches < self.max_patches:
            return self.patch(item.evidence.artifact, f"stale by {item.staleness}: sent back to the proposer")
        self.fallbacks += 1
        why = f"stale again after {item.patches} rebases"
        return self.accept(why) if self.fallback == "accept" else self.discard(why)
