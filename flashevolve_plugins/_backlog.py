"""The items whose samples wait for a slot, by resource."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from flashevolve_plugins._item import State
from flashevolve_plugins._queues import StageQueues

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flashevolve_plugins._item import Item
    from flashevolve_plugins._ledger import Parking
    from flashevolve_plugins._workforce import Workforce


class Backlog:
    """Queues of items, one for each resource.

    Args:
        resources: their names.
        stages: stage names in the order an item passes them.
        items: all items in flight.
        parking: those that wait for the budget instead.
        workforce: who is at work in each stage.
    """

    def __init__(
        self,
        resources: Iterable[str],
        stages: Iterable[str],
        items: Mapping[int, Item],
        parking: Parking,
        workforce: Workforce,
    ) -> None:
        self._items, self._parking, self._workforce = items, parking, workforce
        self.by_resource = {
            name: StageQueues(stages, partial(self._waits, name), partial(self._goes_on, name), workforce.full)
            for name in resources
        }

    def add(self, item: Item) -> None:
        """The item's waiting samples may start. Adding it twice does no harm."""
        for resource in item.waiting:
            self.by_resource[resource].push(item.stage.name, item.number)
        self.begun(item)

    def begun(self, item: Item) -> None:
        """If the item has begun its stage, it goes on there, however full the stage may be."""
        if item.at_work and item.stage.name in self._workforce.caps:
            for resource in item.waiting:
                self.by_resource[resource].push_begun(item.stage.name, item.number)

    def _waits(self, resource: str, number: int, stage: str) -> bool:
        item = self._items.get(number)
        return (
            item is not None
            and resource in item.waiting
            and item.stage.name == stage
            and item.state in (State.WAITING, State.RUNNING)
            and number not in self._parking.numbers
        )

    def _goes_on(self, resource: str, number: int, stage: str) -> bool:
        return self._waits(resource, number, stage) and self._items[number].at_work
