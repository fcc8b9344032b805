"""The budget: reserved before a stage starts, settled sample by sample. And the items that wait for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashevolve_plugins._item import State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flashevolve_plugins._item import Item


@dataclass
class Ledger:
    """Metric calls spent and reserved.

    Args:
        limit: metric calls in all, or ``None`` for no limit.
        spent: metric calls settled so far.
        reserved: metric calls promised to stages that have started.
    """

    limit: int | None
    spent: int = 0
    reserved: int = 0

    @property
    def free(self) -> float:
        """Metric calls that may still be reserved."""
        return float("inf") if self.limit is None else self.limit - self.spent - self.reserved

    def affords(self, cost: int) -> bool:
        """Whether ``cost`` can be reserved now."""
        return cost <= self.free

    def could_ever_afford(self, cost: int) -> bool:
        """Whether ``cost`` could be reserved if every reservation came back unspent."""
        return self.limit is None or self.spent + cost <= self.limit

    def reserve(self, cost: int) -> None:
        """Promise ``cost`` metric calls."""
        self.reserved += cost

    def settle(self, reserved: int, spent: int) -> None:
        """Give ``reserved`` back and count what was really spent."""
        self.reserved -= reserved
        self.spent += spent


class Parking:
    """The items whose next stage the budget cannot pay for now.

    Args:
        ledger: the budget.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.numbers: dict[int, None] = {}
        self._ledger = ledger
        self._needs = (0, 0)  # none of them needs less or more

    def add(self, item: Item) -> None:
        """An item comes to wait."""
        least, most = self._needs if self.numbers else (item.need, item.need)
        self._needs = min(least, item.need), max(most, item.need)
        self.numbers[item.number] = None

    def leaving(self, items: Mapping[int, Item]) -> list[Item]:
        """Let those go that the budget can pay for now or never will, and forget those that wait no more."""
        least, most = self._needs
        if not self._ledger.affords(least) and self._ledger.could_ever_afford(most):
            return []
        numbers, self.numbers = self.numbers, {}
        leaving = []
        for number in numbers:
            item = items.get(number)
            if item is None or item.state is not State.WAITING:
                continue
            if self._ledger.affords(item.need) or not self._ledger.could_ever_afford(item.need):
                leaving.append(item)
            else:
                self.add(item)
        return leaving
