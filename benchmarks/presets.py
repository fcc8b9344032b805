"""Named landscapes: which hazard an optimizer meets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flashevolve_plugins.benchmarks.landscape import Landscape

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PRESETS", "SEED_INSTRUCTION", "Preset"]

#: What every program begins with; it states no rule.
SEED_INSTRUCTION = "Answer the question."


@dataclass(frozen=True)
class Preset:
    """A kind of landscape.

    Args:
        about: the hazard, in one line.
        options: parameters of ``Landscape`` that differ from its defaults.
        parts: predictors of the program, over which the rules are dealt out.
    """

    about: str
    options: Mapping[str, Any] = field(default_factory=dict)
    parts: int = 1

    def landscape(self, seed: int) -> Landscape:
        """The landscape that a seed draws."""
        return Landscape(seed=seed, **self.options)


_DISTRACTORS = {"distractors": 16, "distractor_harm": 0.12, "wrong_name": 0.35, "distractor_name": 0.7}
_LENGTH = {"length_limit": 9, "length_harm": 0.05}
_CONFLICTS = {"conflicts": 8}

PRESETS = {
    "additive": Preset("every rule stated adds the same"),
    "distractors": Preset("one name in four is a sentence that costs 12 % of everything", _DISTRACTORS),
    "length": Preset("above nine sentences each further one costs 5 % of everything", _LENGTH),
    "conflicts": Preset("sixteen of the twenty rules are pairs of which both together are worth neither", _CONFLICTS),
    "all": Preset("distractors, length limit and conflicts at once", {**_DISTRACTORS, **_LENGTH, **_CONFLICTS}),
    "overwriting": Preset("each reflection drops one in ten of the sentences it finds", {"forgotten": 0.1}),
    "components": Preset("three predictors, each with a third of the rules", parts=3),
    "merges-lose-60": Preset("a merge loses 60 % of every change (30 % elsewhere)", {"lost": 0.6}),
    "merges-lose-80": Preset("a merge loses 80 % of every change", {"lost": 0.8}),
    "merges-lose-more": Preset(
        "a merge of n changes loses 30 % and 7 % for each beyond the first", {"lost_per_change": 0.07}
    ),
}
