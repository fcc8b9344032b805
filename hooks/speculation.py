"""Policies that leave a stage before its last sample has ended: where all is decided, and where much speaks for it."""

from __future__ import annotations

import logging
from math import erf, fsum, nan, sqrt
from typing import TYPE_CHECKING

from flashevolve_plugins._errors import UsageError
from flashevolve_plugins._policies import Release
from flashevolve_plugins.hooks.depth import best_entry
from flashevolve_plugins.hooks.specs import hookimpl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashevolve_plugins._model import ItemView, PoolEntry, Progress
    from flashevolve_plugins._pool import Pool

logger = logging.getLogger("flashevolve_plugins")

MOST_RISK = 0.5
CLOSE = 1e-9  # sums of fractions that differ by less may be equal


class Decided:
    """Leaves a gate once its question is decided, whatever the scores that are missing: no bias, nothing is guessed.

    What can no longer pass is stopped. What passes in any case goes on to its validation while the rest of the gate
    runs, where the host lets it. Only where the gate compares sums of scores and nothing else reads them; and only
    while scores lie within 0 and 1: one outside is warned of, and switches it off.
    """

    def __init__(self) -> None:
        self._off = False
        self._read = 0  # entries of the pool

    @hookimpl
    def flashevolve_release_stage(self, item: ItemView, progress: Progress, pool: Pool) -> Release | None:
        """Stop what fails, and hand on what passes."""
        if self._off or progress.to_beat is None or self._outside(progress, pool):
            return None
        known, (least, most) = progress.known, progress.to_beat
        reached, missing = fsum(known), len(progress.scores) - len(known)
        whole = least.is_integer() and reached.is_integer()
        highest = reached + missing
        if highest < least - CLOSE or (whole and highest == least and not progress.reaches):
            return Release(
                stops=True, reason=f"subsample score can reach {highest:.4g} at most, not better than {least:.4g}"
            )
        if progress.hands_on and reached > most + CLOSE and item.stage != "rollout":
            return Release(stops=False)
        return None

    def _outside(self, progress: Progress, pool: Pool) -> bool:
        """Whether scores are known that are not within 0 and 1: of the gate, of its rival, of validations."""
        assert progress.to_beat is not None  # noqa: S101 - asked by the caller
        scores = [*progress.known, progress.to_beat[0] / len(progress.scores)]
        for entry in pool.since(self._read):
            scores += entry.scores.values()
        self._read = pool.version
        outside = next((score for score in scores if not 0 <= score <= 1), None)
        if outside is not None:
            self._off = True
            logger.warning(
                "Gates run to their ends from now on: a score of %s is outside of 0 to 1, within which Decided() knows "
                "what scores can still come.",
                outside,
            )
        return self._off


class Speculative:
    """Goes on with part of a stage: FlashEvolve's speculative stage completion (arXiv 2605.08520).

    Args:
        evaluate: the share of a validation, above 0 to 1, from which on an artifact that is above the best and its
            parents on the same examples may be built on; 1 is never before its end. Its validation goes on, and
            confirms it or not.
        rollout: the share of a minibatch, above 0 to 1, with which a rollout goes to its reflection. The rest counts at
            the gate.

    Raises:
        UsageError: a value outside its range.
    """

    def __init__(self, evaluate: float = 0.7, rollout: float = 1.0) -> None:
        for name, value in {"evaluate": evaluate, "rollout": rollout}.items():
            _require(0 < _number(value) <= 1, f"Speculative({name}={value!r})", "a share above 0 and up to 1")
        self.evaluate, self.rollout = evaluate, rollout

    @hookimpl
    def flashevolve_release_stage(self, item: ItemView, progress: Progress) -> Release | None:
        """Hand on a rollout."""
        share = len(progress.known) / len(progress.scores)
        early = item.stage == "rollout" and progress.hands_on and self.rollout <= share < 1
        return Release(stops=False) if early else None

    @hookimpl
    def flashevolve_admit_provisional(self, progress: Progress, pool: Pool) -> bool:
        """Admit what is above the best and its parents on the same examples."""
        if len(progress.known) < self.evaluate * len(progress.scores):
            return False
        rivals = [best_entry(pool.entries), *(pool.entries[parent - 1] for parent in progress.parents)]
        return all(fsum(_differences(progress, rival)) > 0 for rival in rivals)


class Trailing:
    """Stops a validation that is too unlikely to end above the best.

    The chance is that of a normal distribution: the scores that are missing are taken to differ from the best's by
    nothing on average, with the variance of the differences that are known.

    Args:
        after: the share of the validation, above 0 to 1, from which on it may be stopped.
        risk: the chance below which it is, 0 to 0.5.

    Raises:
        UsageError: a value outside its range.
    """

    def __init__(self, after: float = 0.25, risk: float = 0.05) -> None:
        _require(0 < _number(after) <= 1, f"Trailing(after={after!r})", "a share above 0 and up to 1")
        _require(0 <= _number(risk) <= MOST_RISK, f"Trailing(risk={risk!r})", f"a number from 0 to {MOST_RISK}")
        self.after, self.risk = after, risk

    @hookimpl
    def flashevolve_release_stage(self, item: ItemView, progress: Progress, pool: Pool) -> Release | None:
        """Stop a validation, unless its artifact is built on already."""
        known, total = len(progress.known), len(progress.scores)
        if not progress.validates or not self.after * total <= known < total or item.number in pool.provisional:
            return None
        best = best_entry(pool.entries)
        differences = _differences(progress, best)
        if len(differences) < 2 or _chance(differences, total) >= self.risk:  # noqa: PLR2004 - else no variance
            return None
        mean = fsum(progress.known) / known
        reason = f"validation stopped after {known} of {total} examples: {mean:.3f}, where the best had "
        return Release(stops=True, reason=f"{reason}{_mean(best, progress):.3f}")


def _number(value: object) -> float:
    """The value; NaN, which is in no range, if it is no number."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else nan


def _require(possible: bool, given: str, allowed: str) -> None:  # noqa: FBT001 - the condition
    if not possible:
        raise UsageError(f"{given} must be {allowed}.")


def _differences(progress: Progress, entry: PoolEntry) -> list[float]:
    """What the artifact has more than an entry, on the examples that both were validated on."""
    pairs = zip(progress.examples, progress.scores, strict=True)
    return [score - entry.scores[name] for name, score in pairs if score is not None and name in entry.scores]


def _mean(entry: PoolEntry, progress: Progress) -> float:
    pairs = zip(progress.examples, progress.scores, strict=True)
    scores = [entry.scores[name] for name, score in pairs if score is not None and name in entry.scores]
    return fsum(scores) / max(1, len(scores))


def _chance(differences: Sequence[float], total: int) -> float:
    """The chance that differences sum up to more than 0 in the end."""
    known = len(differences)
    reached = fsum(differences)
    variance = fsum((each - reached / known) ** 2 for each in differences) / (known - 1)
    spread = sqrt(variance * (total - known))
    if not spread:  # nothing is known of how they differ: a tie is a tie, and any other sum stays as it is
        return 0.5 * (1 + (reached > 0) - (reached < 0))
    return 0.5 * (1 + erf(reached / spread / sqrt(2)))
