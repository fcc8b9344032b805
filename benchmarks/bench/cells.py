"""What is compared where: a cell is one setting, a run one rival in it with one seed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Clock = Literal["virtual", "server"]

#: Of the simulated server's seconds: fast, and slow enough that this machine's processor is not what is measured.
TIME_SCALE = 0.05


@dataclass(frozen=True)
class Cell:
    """One setting, the same for every rival.

    Args:
        landscape: a preset's name, or ``file:NAME`` for a file of examples.
        profile: a server profile's name, or ``given`` for a server that was given by its URL.
        slots: the host's threads, and flash's task slots.
        val: validation examples.
        calls: metric calls.
        train: training examples.
        time_scale: factor on the simulated server's seconds; virtual time knows none.
    """

    landscape: str = "additive"
    profile: str = "h100"
    slots: int = 32
    val: int = 100
    calls: int = 3000
    train: int = 150
    time_scale: float = TIME_SCALE

    @property
    def title(self) -> str:
        """The setting in words."""
        return (
            f"{self.landscape}, {self.profile}, {self.slots} slot{'s' * (self.slots > 1)}, valset {self.val}, "
            f"{self.calls:,} calls"
        )


@dataclass(frozen=True)
class RunKey:
    """Which run.

    Args:
        clock: ``"virtual"`` or ``"server"``.
        cell: where.
        rival: who, by name.
        seed: of landscape, server and optimizer.
    """

    clock: Clock
    cell: Cell
    rival: str
    seed: int

    @property
    def path(self) -> str:
        """Where its record is kept, below the folder of results."""
        cell = self.cell
        parts = [cell.landscape, cell.profile, f"{cell.slots}slots", f"{cell.train}train", f"{cell.val}val"]
        parts.append(f"{cell.calls}calls")
        if self.clock == "server":
            parts.append(f"scale{cell.time_scale:g}")
        return record_path(self.clock, "-".join(parts), self.rival, str(self.seed))

    def __str__(self) -> str:
        """The run in words."""
        return f"{self.clock}: {self.cell.title}, {self.rival}, seed {self.seed}"


def record_path(*names: str) -> str:
    """Where a record is kept, below the folder of results: a folder for each name, the file for the last.

    Args:
        names: what tells it from others; what no file name can hold is replaced.
    """
    return "/".join(re.sub(r"[^\w.+-]+", "_", name) for name in names) + ".json"
