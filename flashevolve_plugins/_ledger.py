"""The budget: reserved before a stage starts, settled sample by sample."""

from __future__ import annotations

from dataclasses import dataclass


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
