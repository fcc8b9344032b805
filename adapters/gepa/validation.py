"""Full evaluations on the host's validation set: what is cached, what must run, and the host's own result type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from gepa.core.state import ValsetEvaluation, _candidate_hash

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashevolve_plugins._model import Stage
    from flashevolve_plugins.adapters.gepa.session import Session

Entry: TypeAlias = "tuple[Any, float, dict[str, float] | None]"
Finish: TypeAlias = "Callable[[list[Any]], list[tuple[ValsetEvaluation, int]]]"


class ValidationCache:
    """Results by (candidate, validation id). Kept apart from training ids, which the host's own cache mixes in.

    Args:
        enabled: whether the user asked for ``cache_evaluation``.
    """

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._entries: dict[tuple[str, Any], Entry] = {}

    def get(self, candidate: dict[str, str], example: Any) -> Entry | None:
        """What is known of a candidate on a validation example."""
        return self._entries.get((_candidate_hash(candidate), example)) if self._enabled else None

    def put(self, candidate: dict[str, str], example: Any, entry: Entry) -> None:
        """Remember a result."""
        if self._enabled:
            self._entries[_candidate_hash(candidate), example] = entry


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
        for example in ids:
            entry = session.cache.get(candidate, example)
            if entry is None:
                self.missing.append(example)
            else:
                self._known[example] = entry

    def batch(self) -> tuple[dict[str, str], list[Any]]:
        """What must run: candidate and examples."""
        return self._candidate, self._session.engine.valset.fetch(self.missing)

    def complete(self, evaluation: Any) -> tuple[ValsetEvaluation, int]:
        """Put the results of :meth:`batch` and what was known together.

        Args:
            evaluation: the ``EvaluationBatch`` of what ran, or ``None`` if nothing had to.

        Returns:
            The host's evaluation, and the metric calls it cost.
        """
        for position, example in enumerate(self.missing):
            objectives = evaluation.objective_scores
            entry = (
                evaluation.outputs[position],
                evaluation.scores[position],
                objectives[position] if objectives else None,
            )
            self._session.cache.put(self._candidate, example, entry)
            self._known[example] = entry
        objectives_by_id = {example: entry[2] for example, entry in self._known.items() if entry[2] is not None}
        return (
            ValsetEvaluation(
                outputs_by_val_id={example: entry[0] for example, entry in self._known.items()},
                scores_by_val_id={example: entry[1] for example, entry in self._known.items()},
                objective_scores_by_val_id=objectives_by_id or None,
            ),
            len(self.missing),
        )


def validation_stage(session: Session, candidates: list[dict[str, str]]) -> tuple[Stage, Finish, int]:
    """The validation of what passed its gate.

    Args:
        session: the run.
        candidates: what the selection strategy took; those at the end that the budget cannot pay for are left out,
            but never all of them.

    Returns:
        The stage, a function from its results to the host's evaluations with their costs in metric calls, and the
        number of candidates kept.
    """
    policy, valset, state = session.engine.val_evaluation_policy, session.engine.valset, session.state
    pending = [Pending(session, each, list(policy.get_eval_batch(valset, state))) for each in candidates]
    while len(pending) > 1 and sum(len(each.missing) for each in pending) > session.affordable():
        pending.pop()
    session.note_costs(validation=max(len(each.missing) for each in pending))
    running = [each for each in pending if each.missing]
    stage, merge = session.evaluation_stage("validate", [each.batch() for each in running], commits=True)

    def finish(results: list[Any]) -> list[tuple[ValsetEvaluation, int]]:
        merged = iter(merge(results))
        return [each.complete(next(merged) if each.missing else None) for each in pending]

    return stage, finish, len(pending)
