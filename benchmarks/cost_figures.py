"""One line of the cost table, and how lines become a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Figure:
    """One measured number.

    Args:
        name: what was measured.
        value: the number.
        unit: its unit.
        at_most: the target, if it is an upper bound.
        at_least: the target, if it is a lower bound; with neither the number is only reported.
    """

    name: str
    value: float
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None

    @property
    def target(self) -> str:
        """The target in words, empty where there is none."""
        if self.at_most is not None:
            return f"at most {self.at_most:g}"
        return "" if self.at_least is None else f"at least {self.at_least:g}"

    @property
    def met(self) -> bool | None:
        """Whether the target is met, ``None`` where there is none."""
        if self.at_most is not None:
            return self.value <= self.at_most
        return None if self.at_least is None else self.value >= self.at_least


def table(figures: Iterable[Figure]) -> str:
    """A Markdown table, one line per figure."""
    said = {True: "met", False: "missed", None: ""}
    rows = [(each.name, f"{_short(each.value)} {each.unit}".strip(), each.target, said[each.met]) for each in figures]
    return "\n".join(["| what | value | target | |", "|---|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)])


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"  # noqa: PLR2004 - three digits
