"""Who is at work in each stage, and how many may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashevolve_plugins._errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flashevolve_plugins._item import Item


class Workforce:
    """Workers per stage. One works on one item, from its first sample's start until its last sample has ended.

    Args:
        stages: stage names.
    """

    def __init__(self, stages: Iterable[str]) -> None:
        #: Stage name to its workers; stages that are not in it may have any number.
        self.caps: dict[str, int] = {}
        self.at_work = dict.fromkeys(stages, 0)
        #: Stage name to the items that have passed it, those that had nothing to do there left out.
        self.finished = dict.fromkeys(self.at_work, 0)
        #: Stages whose workers are all at work. Always the same object.
        self.full: set[str] = set()

    def change(self, caps: Mapping[str, int]) -> frozenset[str]:
        """Set all caps anew. What is at work stays at work.

        Returns:
            The stages that had no cap before.

        Raises:
            UsageError: a stage that is not there, or that would be left without a worker.
        """
        for stage, workers in caps.items():
            if stage not in self.at_work:
                raise UsageError(f"There is no stage {stage!r}: the stages are {', '.join(self.at_work)}.")
            if workers < 1:
                raise UsageError(f"Stage {stage!r} needs a worker: {workers} is too few.")
        fresh = frozenset(caps).difference(self.caps)
        self.caps = dict(caps)
        self.full.clear()
        self.full.update(stage for stage, workers in caps.items() if self.at_work[stage] >= workers)
        return fresh

    def begins(self, item: Item) -> None:
        """A worker takes an item."""
        stage, item.at_work = item.stage.name, True
        self.at_work[stage] += 1
        if stage in self.caps and self.at_work[stage] >= self.caps[stage]:
            self.full.add(stage)

    def ends(self, item: Item, *, finished: bool = False) -> None:
        """No sample of the item's stage will run any more. If a worker has the item, it is done with it.

        Args:
            item: the item.
            finished: whether it goes on from there. What ran on of a stage that an item had left does not count.
        """
        stage = item.stage.name
        self.finished[stage] += finished and item.reserved and item.origin is None
        if not item.at_work:
            return
        item.at_work = False
        self.at_work[stage] -= 1
        if stage in self.full and self.at_work[stage] < self.caps[stage]:
            self.full.remove(stage)
