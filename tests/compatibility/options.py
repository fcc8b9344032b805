"""What a row of the compatibility matrix is: one option of a host, and the values of it that are tried."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Seeds of each case; see :func:`seeds`.
SEEDS = range(30)
HOSTS = ("gepa.optimize", "optimize_anything", "dspy.GEPA", "dspy.GEPA.compile")


@dataclass(frozen=True)
class Option:
    """One option of a host, or some values of it: several rows may speak of one option.

    Args:
        host: one of ``HOSTS``.
        name: the host's parameter.
        cases: a value's label to the keyword arguments of a run; a zero-argument callable is called anew for each run.
        note: what differs outside lockstep, in one line for the user; empty where nothing does.
        refused: the essential words of the sentence that refuses these values; empty where they work.
        unchanged: labels of cases in which a user sees no difference from a run without the option.
    """

    host: str
    name: str
    cases: Mapping[str, Mapping[str, Any]] = field(compare=False)
    note: str = ""
    refused: str = ""
    unchanged: tuple[str, ...] = ()

    def __post_init__(self):
        if self.host not in HOSTS:
            raise ValueError(f"host={self.host!r} must be one of {HOSTS}.")
        if not self.cases or set(self.unchanged) - set(self.cases):
            raise ValueError(f"{self.name}: cases must not be empty, and hold every label of unchanged.")

    @property
    def verdict(self):
        """``same``, ``same, with note`` or ``refused``."""
        return "refused" if self.refused else "same, with note" if self.note else "same"


def cases(options):
    """Every case of some options: its name to (option, label)."""
    return {f"{option.name}-{label}": (option, label) for option in options for label in option.cases}


def seeds(option):
    """The seeds of each case of an option: fewer where a run takes longer."""
    if option.host.startswith("dspy"):
        return SEEDS[:1] if option.name == "auto" else SEEDS[:3]
    return SEEDS
