"""Items that wait until others, or what runs on of their own earlier stages, have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flashevolve_plugins._item import Item


class Waits:
    """Who waits for the end of which items. The Scheduler's.

    Args:
        items: the items under way, by number.
    """

    def __init__(self, items: Mapping[int, Item]) -> None:
        self._items = items
        self._awaited: dict[int, set[int]] = {}

    def begins(self, item: Item) -> bool:
        """Whether the item's stage may begin; if not, :meth:`ended` gives the item when it may."""
        stage = item.stage
        awaited = set(item.tails) if stage.joins else set()
        if stage.after is not None and stage.after in self._items:
            awaited.add(stage.after)
        if awaited:
            self._awaited[item.number] = awaited
        return not awaited

    def ended(self, ended: Item) -> list[Item]:
        """An item has ended: those whose stages may begin now, the oldest first."""
        if ended.origin is not None:
            self._items[ended.origin].tails.discard(ended.number)
        self._awaited.pop(ended.number, None)
        free = []
        for number, awaited in sorted(self._awaited.items()):
            awaited.discard(ended.number)
            if not awaited:
                del self._awaited[number]
                free.append(self._items[number])
        return free
