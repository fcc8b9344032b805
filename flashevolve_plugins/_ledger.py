"""The budget: reserved before a stage starts, settled sample by sample. And the items that wait for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from flashevolve_plugins._item import State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flashevolve_plugins._item import Item


class Earlier(Protocol):
    """Metric calls that were paid for before the run was taken up, and count once somebody asks for their results."""

    @property
    def unserved(self) -> int:
        """All of them that nobody has asked for yet."""

    def unserved_of(self, item: int) -> int:
        """Those of an item that is begun again."""


@dataclass
class Ledger:
    """Metric calls spent and reserved.

    Args:
        limit: metric calls in all, or ``None`` for no limit.
        spent: metric calls settled so far.
        reserved: metric calls promised to stages that have started.
        earlier: what an earlier run has paid for, if this one takes it up.
    """

    limit: int | None
    spent: int = 0
    reserved: int = 0
    earlier: Earlier | None = None

    @property
    def free(self) -> float:
        """Metric calls that may still be reserved, without what was paid for earlier and will count."""
        return self._left - self.reserved

    @property
    def _unserved(self) -> int:
        return 0 if self.earlier is None else self.earlier.unserved

    @property
    def _left(self) -> float:
        return float("inf") if self.limit is None else self.limit - self.spent - self._unserved

    def due(self, item: Item) -> int:
        """Metric calls that an item still has to reserve to be committed, without those that it paid for earlier."""
        return item.need - (0 if self.earlier is None else self.earlier.unserved_of(item.number))

    def affords(self, cost: int) -> bool:
        """Whether ``cost`` can be reserved now."""
        return cost <= self.free

    def affords_offer(self, cost: int) -> bool:
        """Whether an item that needs ``cost`` may be asked for: it may be one that paid for some of it earlier."""
        return cost <= self.free + self._unserved

    def could_ever_afford(self, cost: int) -> bool:
        """Whether ``cost`` could be reserved if every reservation came back unspent."""
        return cost <= self._left

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
        due = self._ledger.due(item)
        least, most = self._needs if self.numbers else (due, due)
        self._needs = min(least, due), max(most, due)
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
            due = self._ledger.due(item)
            if self._ledger.affords(due) or not self._ledger.could_ever_afford(due):
                leaving.append(item)
            else:
                self.add(item)
        return leaving
