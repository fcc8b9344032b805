"""Stand-ins that let the host's own loop run over an item that has ended.

The host then does its callbacks, trackers, logs, trace entries and state updates itself, one item after the other,
each with its own iteration number: the serial history of the design.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gepa.core.callbacks import EvaluationSkippedEvent, notify_callbacks

from flashevolve_plugins._model import Discarded
from flashevolve_plugins.adapters.gepa.overlay import overlay
from flashevolve_plugins.adapters.gepa.recording import EndOfRecording

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashevolve_plugins.adapters.gepa.recording import Recording
    from flashevolve_plugins.adapters.gepa.session import Session


def proposer_stand_in(session: Session, current: Callable[[], Recording]) -> Any:
    """The host's reflective proposer with every call that costs answered from the recording.

    Args:
        session: the run.
        current: the recording of the item that the loop has come to.
    """
    host = session.proposer

    def propose(state: Any) -> list[Any]:
        recording = current()
        if recording.merge:
            return []
        if recording.forgotten:
            state.increment_evals(session.calls(recording.forgotten))
        try:
            proposals: list[Any] = type(host).propose(_heard(stand_in, recording), state)
            for proposal in proposals if recording.parents else ():
                proposal.parent_program_ids = recording.parents
            return proposals
        except EndOfRecording as end:
            session.settle()
            if isinstance(end.cause, Discarded):
                _tell_discarded(host, recording, state, end.cause)
                return []
            end.reraise()

    stand_in = overlay(
        host,
        {
            "propose": propose,
            "sampling_strategy": _Steps(sample_tasks=lambda *_: current().take("tasks")),
            "module_selector": lambda *_: current().take("components"),
            "adapter": _Steps(make_reflective_dataset=lambda *_: current().take("dataset")),
            "_batch_evaluate": lambda items: _evaluations(session, current(), items),
            "_propose_texts_batch_safe": lambda jobs: _texts(host, current()) if jobs else [],
        },
    )
    return stand_in


def _heard(proposer: Any, recording: Recording) -> Any:
    """The proposer; its callbacks hear of no evaluation's start if the item was discarded before its first one."""
    if recording.has("evaluated") or not isinstance(recording.end, Discarded):
        return proposer
    callbacks = [overlay(each, {"on_evaluation_start": None}) for each in proposer.callbacks or ()]
    return overlay(proposer, {"callbacks": callbacks})


def _evaluations(session: Session, recording: Recording, items: list[tuple[dict[str, str], list[Any]]]) -> list[Any]:
    """What the slots gave for (candidate, examples) pairs, told to those who listen to evaluations."""
    evaluations: list[Any] = recording.take("evaluated")
    for (candidate, batch), evaluation in zip(items, evaluations, strict=True):
        session.evaluator.tell(candidate, batch, evaluation, capture_traces=True)
    return evaluations


def _texts(host: Any, recording: Recording) -> list[Any]:
    """What the reflections proposed, ``None`` where one failed; their log lines are said now."""
    reflections = recording.take("reflections")
    results = [texts for reflection in reflections for texts in reflection.texts]
    goes_on = recording.has("evaluated") or not any(not isinstance(each, Exception) and each[0] for each in results)
    if isinstance(recording.end, Discarded) and not goes_on:
        raise EndOfRecording(recording.end)
    for reflection in reflections:
        for line in reflection.lines:
            host.logger.log(line)
    return [None if isinstance(each, Exception) else each for each in results]


class _Steps:
    """An object with the given methods."""

    def __init__(self, **methods: Any) -> None:
        self.__dict__.update(methods)


def _tell_discarded(host: Any, recording: Recording, state: Any, why: Discarded) -> None:
    """The item ended before its proposals were evaluated: the host's word for that is a skipped evaluation."""
    iteration = state.i + 1
    host.logger.log(f"Iteration {iteration}: Discarded before {why.stage}: {why.reason}")
    if recording.tasks and "selected_program_candidate" not in state.full_program_trace[-1]:  # the host did not say it
        parent, calls = recording.tasks[0].parent_idx, state.total_num_evals
        host.experiment_tracker.log_metrics(
            {"iteration": iteration, "selected_program_candidate": parent, "total_metric_calls": calls}, step=iteration
        )
    for task in recording.tasks:
        notify_callbacks(
            host.callbacks,
            "on_evaluation_skipped",
            EvaluationSkippedEvent(
                iteration=iteration,
                candidate_idx=task.parent_idx,
                reason=f"discarded: {why.reason}",
                scores=None,
                is_seed_candidate=task.parent_idx == 0,
            ),
        )


class SelectionStandIn:
    """The host's acceptance and selection, as they were decided when the item passed its gate.

    Args:
        session: the run.
        current: the recording of the item that the loop has come to.
    """

    def __init__(self, session: Session, current: Callable[[], Recording]) -> None:
        engine = session.engine
        self._session = session
        self._current = current
        self._verdicts: dict[int, bool] = {}
        self._reasons: dict[int, str] = {}
        self.selection = overlay(engine.selection_strategy, {"select": self._select})
        self.acceptance = overlay(engine.acceptance_criterion, {"should_accept": self._should_accept})
        self._report = engine._report_rejected_proposal

    def _select(self, proposals: list[Any], *_: Any) -> list[Any]:
        recording = self._current()
        if not recording.has("selected"):  # the strategy or the criterion raised
            self._session.settle()
            raise recording.end or EndOfRecording(None)
        verdicts = recording.take("verdicts")
        self._verdicts = {id(proposal): verdict for proposal, verdict in zip(proposals, verdicts, strict=True)}
        selected = [proposals[position] for position in recording.take("selected")]
        self._reasons = {id(proposals[position]): why for position, why in recording.take("left out").items()}
        if selected and not recording.has("validated") and isinstance(recording.end, Discarded):
            self._session.settle()
            self._reasons.update((id(proposal), f"Discarded: {recording.end}") for proposal in selected)
            return []
        return selected

    def _should_accept(self, proposal: Any, *_: Any) -> bool:
        return self._verdicts[id(proposal)]

    def report_rejected(self, proposal: Any, iteration: int, state: Any, **words: Any) -> None:
        """Report with the reason of the discard where there was one."""
        if id(proposal) in self._reasons:
            words["reason_override"] = self._reasons[id(proposal)]
        self._report(proposal, iteration, state, **words)
