"""What a row of the compatibility matrix is: one option of a host, and the values of it that are tried."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: A case is run with the first of these; see :func:`seeds`. The rest is for cases that have not shown what they do by
#: then: a value that matters to some runs alone, or runs in which nothing was accepted yet.
SEEDS = range(30)
FEW = 5
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
    """The seeds that each case of an option is run with: fewer where a run takes longer."""
    if option.host.startswith("dspy"):
        return SEEDS[:1] if option.name == "auto" else SEEDS[:2]
    return SEEDS[:FEW]


def compare(option, label, compared):
    """Compare runs of a case with the host's own, seed after seed, and see that the case did something.

    Args:
        option: the row.
        label: of the case.
        compared: from a seed, and whether to see what the option does, to the candidates that the host had (2 where it
            raised) and whether it did anything; raises AssertionError where the runs are not equal.
    """
    most, changed, due = 0, False, label not in option.unchanged
    for seed in SEEDS:
        if seed >= len(seeds(option)) and most > 1 and changed is due:
            break
        candidates, change = compared(seed, not changed)
        most, changed = max(most, candidates), changed or change
    assert most > 1, "no run accepted anything"
    assert changed is due, "the option changes what it should not, or nothing"
