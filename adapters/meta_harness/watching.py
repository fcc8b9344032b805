"""What policies see of an evaluation while it runs, and in which order its jobs start."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._errors import UsageError
from flashevolve_plugins._model import Progress
from flashevolve_plugins._ordering import in_place
from flashevolve_plugins.hooks.speculation import Decided

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import TypeAlias

    from flashevolve_plugins._model import Stage
    from flashevolve_plugins.adapters.meta_harness.host import Job, Proposal
    from flashevolve_plugins.adapters.meta_harness.session import Session

    #: Puts the results of a stage into the host's order.
    Sorted: TypeAlias = "Callable[[Sequence[Any]], Sequence[Any]]"


def refuse(plugins: Iterable[object], host: str) -> None:
    """Refuse plugins that could do nothing here.

    Args:
        plugins: those of the run.
        host: its name.

    Raises:
        UsageError: there is one.
    """
    for plugin in plugins:
        name = type(plugin).__name__
        if isinstance(plugin, Decided):
            raise UsageError(f"{name}() decides gates, and {host} has none: drop it; Trailing() stops evaluations.")
        if hasattr(plugin, "flashevolve_admit_provisional"):
            raise UsageError(
                f"{name}() builds on what is still being evaluated, and {host} copies what has its score: drop it; "
                "Trailing() stops evaluations."
            )


def arranged(session: Session, stage: Stage, jobs: Sequence[Job]) -> tuple[Stage, Sorted]:
    """An evaluation whose jobs start in the order that a policy says.

    Args:
        session: the run.
        stage: the evaluation, its samples in the host's order.
        jobs: its jobs.
    """
    candidates = _names(jobs)
    if session.lockstep or not candidates or not session.examples.ordered:
        return stage, list
    stage, order = session.examples.arrange(stage, candidates)
    return stage, partial(in_place, order=order)


def watched(session: Session, proposal: Proposal, stage: Stage, jobs: Sequence[Job]) -> tuple[Stage, Sorted]:
    """The same of a proposal's evaluation, which policies may stop if it is that of one candidate."""
    stage, placed = arranged(session, stage, jobs)
    names = names_of_one(jobs)
    if session.lockstep or not names or not session.driver.policies.releases:
        return stage, placed

    def progress(results: Sequence[Any]) -> Progress:
        scores = partial_scores(placed(results))
        return Progress(scores, names, parents=(proposal.version,), artifact=dict(proposal.artifact), validates=True)

    return replace(stage, progress=progress), placed


def scores_of_one(jobs: Sequence[Job], results: Sequence[Any]) -> dict[Any, float]:
    """A candidate's scores by the names of its jobs, as far as there are any; nothing of several candidates."""
    names = names_of_one(jobs)
    scores = partial_scores(results)
    return {name: score for name, score in zip(names, scores, strict=True) if score is not None} if names else {}


def names_of_one(jobs: Sequence[Job]) -> list[Any]:
    """The names of the jobs, if they are one candidate's."""
    candidates = _names(jobs)
    return candidates[0] if len(candidates) == 1 else []


def _names(jobs: Sequence[Job]) -> list[list[Any]]:
    """The names of each candidate's jobs; nothing where one has none. A name that comes again is the next one's."""
    candidates: list[list[Any]] = []
    for job in jobs:
        if job.name is None:
            return []
        if not candidates or job.name in candidates[-1]:
            candidates.append([])
        candidates[-1].append(job.name)
    return candidates


def partial_scores(results: Sequence[Any]) -> list[float | None]:
    """What is known of an evaluation job by job, for a decision to end it early.

    Args:
        results: of its jobs, in their order; ``None`` for one that has not ended.

    Returns:
        Each job's own score, in the host's unit: a truth value counts 0 or 1. ``None`` where there is none: the job has
        not ended, it failed, or its result says no score.
    """
    return [_score(each) for each in results]


def _score(result: Any) -> float | None:
    said = result
    for name in ("score", "objective"):
        said = getattr(result, name, said)
    return float(said) if isinstance(said, (int, float)) and isfinite(said) else None
