"""Several rollouts of one example: their mean is its score, and the one nearest to the mean is what is shown of it."""

from __future__ import annotations

import logging
from copy import copy
from math import fsum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gepa.core.adapter import EvaluationBatch

    from flashevolve_plugins.adapters.gepa.evaluation import Evaluator

logger = logging.getLogger("flashevolve_plugins")


def warn_of_repetition(evaluator: Evaluator, adapter: Any, rollouts: int) -> None:
    """Say so where something remembers answers: every rollout of an example would be the first one.

    Args:
        evaluator: the run's.
        adapter: the host's adapter.
        rollouts: how many of each example.
    """
    remembers = getattr(evaluator, "remembers", "") or _cache_of(adapter)
    if rollouts > 1 and remembers:
        logger.warning(
            "rollouts=%s repeats what it was answered the first time, since %s: turn that off.", rollouts, remembers
        )


def _cache_of(adapter: Any) -> str:
    """What gepa's own adapters may have been told to remember."""
    mode = getattr(adapter, "cache_mode", "off")
    return f"EngineConfig(cache_evaluation=True) keeps every result ({mode})" if mode != "off" else ""


def mean_of(rollouts: Sequence[EvaluationBatch]) -> EvaluationBatch:
    """One evaluation from several of the same examples.

    Every score is the mean. Output and trace of an example are those of the rollout whose score is nearest to it, the
    first of several; where the traces are not one for each example, all come from the rollout that is nearest in sum.

    Args:
        rollouts: evaluations of one candidate on the same examples.

    Returns:
        The evaluation, with the metric calls of all of them.
    """
    if len(rollouts) == 1:
        return rollouts[0]
    scores = [fsum(each) / len(rollouts) for each in zip(*(part.scores for part in rollouts), strict=True)]
    whole = _nearest([fsum(part.scores) for part in rollouts], fsum(scores))
    mean = copy(rollouts[whole])
    if all(part.trajectories is None or len(part.trajectories) == len(scores) for part in rollouts):
        chosen = [
            rollouts[_nearest([part.scores[place] for part in rollouts], score)] for place, score in enumerate(scores)
        ]
        mean.outputs = [part.outputs[place] for place, part in enumerate(chosen)]
        if mean.trajectories is not None:
            mean.trajectories = [_trace(part, place) for place, part in enumerate(chosen)]
    mean.scores = scores
    mean.objective_scores = _objectives(rollouts)
    mean.num_metric_calls = sum(
        len(part.scores) if part.num_metric_calls is None else part.num_metric_calls for part in rollouts
    )
    return mean


def _trace(part: EvaluationBatch, place: int) -> Any:
    return None if part.trajectories is None else part.trajectories[place]


def _nearest(scores: Sequence[float], mean: float) -> int:
    return min(range(len(scores)), key=lambda place: abs(scores[place] - mean))


def _objectives(rollouts: Sequence[EvaluationBatch]) -> list[dict[str, float]] | None:
    """The mean of each objective over the rollouts that have it."""
    named = [part.objective_scores for part in rollouts if part.objective_scores is not None]
    if len(named) < len(rollouts):
        return None
    means = []
    for example in zip(*named, strict=True):
        names = dict.fromkeys(name for scores in example for name in scores)
        found = {name: [float(scores[name]) for scores in example if name in scores] for name in names}
        means.append({name: fsum(values) / len(values) for name, values in found.items()})
    return means
