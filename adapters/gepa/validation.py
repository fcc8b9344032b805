"""Full evaluations on the host's validation set: what is cached, what must run, and the host's own result type."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from gepa.core.state import ValsetEvaluation, _candidate_hash

from flashevolve_plugins._model import Progress
from flashevolve_plugins._ordering import in_place
from flashevolve_plugins.adapters.gepa.watching import watched

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flashevolve_plugins._model import Stage
    from flashevolve_plugins.adapters.gepa.session import Session

Entry: TypeAlias = "tuple[Any, float, dict[str, float] | None]"
Merge: TypeAlias = "Callable[[list[Any]], list[Any]]"
Finish: TypeAlias = "Callable[[list[Any]], list[Validated]]"
#: A validation that has run already: how its results are read, and they.
Early: TypeAlias = "tuple[Finish, list[Any]]"


@dataclass(frozen=True)
class Validated:
    """One candidate's evaluation on validation ids.

    Args:
        evaluation: the host's.
        cost: metric calls.
        tell: tells those who listen to evaluations of what ran.
    """

    evaluation: ValsetEvaluation
    cost: int
    tell: Callable[[], None]


class ValidationCache:
    """Results by (candidate, validation id). Kept apart from training ids, which the host's own cache mixes in.

    Args:
        enabled: whether the user asked for ``cache_evaluation``.
    """

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self._entries: dict[tuple[str, Any], Entry] = {}

    def get(self, candidate: dict[str, str], example: Any) -> Entry | None:
        """What is known of a candidate on a validation example."""
        return self._entries.get((_candidate_hash(candidate), example)) if self.enabled else None

    def put(self, candidate: dict[str, str], ids: list[Any], evaluation: Any) -> dict[Any, Entry]:
        """Remember the results of an ``EvaluationBatch``, and return them by id."""
        objectives = evaluation.objective_scores or [None] * len(ids)
        entries = dict(zip(ids, zip(evaluation.outputs, evaluation.scores, objectives, strict=True), strict=True))
        if self.enabled:
            self._entries.update(((_candidate_hash(candidate), example), entry) for example, entry in entries.items())
        return entries


class Pending:
    """One candidate's evaluation on validation ids, split into what is known and what must run.

    Args:
        session: the run.
        candidate: component name to text.
        ids: validation ids, in the host's order.
    """

    def __init__(self, session: Session, candidate: dict[str, str], ids: list[Any]) -> None:
        self._session = session
        self._candidate = candidate
        self._known: dict[Any, Entry] = {}
        self.missing: list[Any] = []
        self._examples: list[Any] | None = None
        for example in ids:
            entry = session.cache.get(candidate, example)
            if entry is None:
                self.missing.append(example)
            else:
                self._known[example] = entry

    @property
    def cost(self) -> int:
        """Metric calls of what must run."""
        return len(self.missing) * self._session.rollouts

    def batch(self) -> tuple[dict[str, str], list[Any]]:
        """What must run: candidate and examples."""
        if self._examples is None:
            self._examples = self._session.engine.valset.fetch(self.missing) if self.missing else []
        return self._candidate, self._examples

    def progress(self, parents: Sequence[int], scores: list[list[float | None]]) -> Progress:
        """What policies see while it runs."""
        return Progress(
            [*(entry[1] for entry in self._known.values()), *scores[0]],
            [*self._known, *self.missing],
            parents=tuple(each + 1 for each in parents),
            artifact=self._candidate,
            validates=True,
        )

    def complete(self, evaluation: Any, *, capture_traces: bool = True) -> Validated:
        """Put the results of :meth:`batch` and what was known together.

        Args:
            evaluation: the ``EvaluationBatch`` of what ran, or ``None`` if nothing had to.
            capture_traces: whether it ran with traces.
        """
        if self.missing:
            self._known |= self._session.cache.put(self._candidate, self.missing, evaluation)
        objectives_by_id = {example: entry[2] for example, entry in self._known.items() if entry[2] is not None}
        result = ValsetEvaluation(
            outputs_by_val_id={example: entry[0] for example, entry in self._known.items()},
            scores_by_val_id={example: entry[1] for example, entry in self._known.items()},
            objective_scores_by_val_id=objectives_by_id or None,
        )
        told = partial(self._session.evaluator.tell, *self.batch(), evaluation, capture_traces=capture_traces)
        return Validated(result, self.cost, told if self.missing else lambda: None)


def ordered(session: Session, stage: Stage, finish: Merge, names: list[list[Any]]) -> tuple[Stage, Merge]:
    """A validation in the order of a policy, where one has an order and every sample is an example.

    Args:
        session: the run.
        stage: the validation in the host's order.
        finish: from its results to one evaluation for each candidate.
        names: of the examples of each candidate.
    """
    if not session.examples.ordered or session.evaluator.granularity != "example":
        return stage, finish
    progress = stage.progress
    stage, order = session.examples.arrange(stage, names, session.rollouts)
    if progress is not None:
        stage = replace(stage, progress=lambda results: progress(in_place(results, order)))
    return stage, lambda results: finish(in_place(results, order))


def validation_stage(
    session: Session, candidates: Sequence[tuple[dict[str, str], Sequence[int]]], scope: Callable[[], Any]
) -> tuple[Stage, Finish, int]:
    """The validation of what passed its gate.

    Args:
        session: the run.
        candidates: what the selection strategy took, each with the indices of its parents; those at the end that the
            budget cannot pay for are left out, but never all of them.
        scope: enters the scoped view of the item's iteration.

    Returns:
        The stage, a function from its results to the host's evaluations with their costs in metric calls, and the
        number of candidates kept.
    """
    policy, valset, state = session.engine.val_evaluation_policy, session.engine.valset, session.state
    with scope():
        pending = [Pending(session, each, list(policy.get_eval_batch(valset, state))) for each, _ in candidates]
    while len(pending) > 1 and sum(each.cost for each in pending) > session.affordable():
        pending.pop()
    session.note_costs(validation=max(each.cost for each in pending))
    running = [each for each in pending if each.missing]
    stage, merge = session.evaluation_stage("validate", [each.batch() for each in running], commits=True)
    merge = session.known.keeping(merge, [(each.batch()[0], each.missing) for each in running])
    if len(pending) == len(running) == 1:
        stage = watched(session, stage, [len(pending[0].missing)], partial(pending[0].progress, candidates[0][1]))
    stage, merge = ordered(session, stage, merge, [each.missing for each in running])

    def finish(results: list[Any]) -> list[Validated]:
        merged = iter(merge(results))
        return [each.complete(next(merged) if each.missing else None) for each in pending]

    return stage, finish, len(pending)
