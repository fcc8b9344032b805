"""What policies see of stages that run, so that they may hand them on or stop them."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from math import fsum
from typing import TYPE_CHECKING, Any

from gepa.strategies.acceptance import ImprovementOrEqualAcceptance, StrictImprovementAcceptance
from gepa.strategies.proposal_selection import AllImprovements

from flashevolve_plugins._model import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from flashevolve_plugins._model import Stage
    from flashevolve_plugins.adapters.gepa.session import Session

    #: From the scores so far of every (candidate, examples) pair of a stage to what policies see of it.
    Shown: TypeAlias = Callable[[list[list[float | None]]], Progress]


def watched(session: Session, stage: Stage, sizes: Sequence[int], shown: Shown, *, hands_on: bool = False) -> Stage:
    """A stage that evaluates, as policies may watch it.

    It stays as it is where none does, where samples are whole batches, and where evaluations of examples are known.

    Args:
        session: the run.
        stage: the stage.
        sizes: numbers of examples of its (candidate, examples) pairs.
        shown: what policies see.
        hands_on: whether the item can go on with part of the results.
    """
    if not session.driver.policies.releases or session.evaluator.granularity != "example":
        return stage
    if len(stage.samples) != sum(sizes) * session.rollouts:  # some of it is known already
        return stage

    def progress(results: Sequence[Any]) -> Progress:
        return shown(scores_so_far(results, sizes, session.rollouts))

    return replace(stage, progress=progress, hands_on=hands_on)


def scores_so_far(results: Sequence[Any], sizes: Sequence[int], rollouts: int) -> list[list[float | None]]:
    """Scores of (candidate, examples) pairs, one for each example, ``None`` where it has not been evaluated yet.

    Args:
        results: of samples of one example each, every example as often as there are rollouts; ``None`` where a sample
            has not ended.
        sizes: numbers of examples of the pairs.
        rollouts: of every example.
    """
    parts = (results[end - rollouts : end] for end in range(rollouts, len(results) + 1, rollouts))
    scores = (
        None if any(each is None for each in part) else fsum(each.scores[0] for each in part) / rollouts
        for part in parts
    )
    return [list(islice(scores, size)) for size in sizes]


def sums_decide(engine: Any) -> bool:
    """Whether an item's gate compares sums of scores, and nothing else reads them there."""
    known = (StrictImprovementAcceptance, ImprovementOrEqualAcceptance)
    return type(engine.acceptance_criterion) in known and type(engine.selection_strategy) is AllImprovements


def gate_progress(engine: Any, scores: list[float | None], before: Sequence[float | None]) -> Progress:
    """What policies see of a gate. Scores that are still missing count as 0 to 1.

    Args:
        engine: the host's engine.
        scores: of the candidate so far.
        before: of what it was made from, on the same examples, so far.
    """
    known = fsum(score for score in before if score is not None)
    bounds = (known, known + sum(score is None for score in before))
    reaches = type(engine.acceptance_criterion) is ImprovementOrEqualAcceptance
    return Progress(scores, range(len(scores)), bounds if sums_decide(engine) else None, reaches)


def passes(progress: Progress) -> bool:
    """Whether a gate is passed whatever the scores that are still missing, if they are 0 to 1."""
    if progress.to_beat is None:
        return False
    reached, most = fsum(progress.known), progress.to_beat[1]
    return reached >= most if progress.reaches else reached > most
