"""From the gate to the validation: what the host selects, what waits in the merge queue, what is validated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gepa.proposer.base import CandidateProposal, SubsampleEvaluation

from flashevolve_plugins._model import Evidence, Outcome, Stage, Terminal
from flashevolve_plugins._redact import redact
from flashevolve_plugins.adapters.gepa.validation import validation_stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flashevolve_plugins.adapters.gepa.recording import Recording
    from flashevolve_plugins.adapters.gepa.session import Session
    from flashevolve_plugins.adapters.gepa.validation import Early

QUEUE = "queue"
REPEATED = "Duplicate of another candidate, which is in the pool or being validated"
UNPAID = "Discarded: the budget cannot pay for its validation"
FEEDBACK = 4_000  # characters of it that a policy is shown


@dataclass(frozen=True)
class Gated:
    """A proposal that was evaluated on its minibatch.

    Args:
        task: the host's ``ProposalTask``.
        before: the parent's ``EvaluationBatch``.
        dataset: the reflective dataset that led to it.
        proposal: the host's ``CandidateProposal``.
    """

    task: Any
    before: Any
    dataset: Any
    proposal: CandidateProposal

    @property
    def evidence(self) -> Evidence:
        """What a policy is told of it."""
        return Evidence(
            artifact=dict(self.proposal.candidate),
            parent=self.task.parent_idx + 1,
            before=tuple(self.proposal.subsample_scores_before or ()),
            after=tuple(self.proposal.subsample_scores_after or ()),
            feedback=feedback_text(self.dataset),
            examples=tuple(self.task.minibatch_ids),
        )


def feedback_text(dataset: Any) -> str:
    """A reflective dataset as text, cut where it is long."""
    lines = [
        f"{name}: {value}"
        for component, records in (dataset or {}).items()
        for record in records
        for name, value in (("component", component), *dict(record).items())
    ]
    text = redact("\n".join(lines))  # before a secret can be cut in two
    return text if len(text) <= FEEDBACK else f"{text[:FEEDBACK]}\n[cut: {len(text) - FEEDBACK} more characters]"


def proposal_of(task: Any, before: Any, after: Any, candidate: dict[str, str], **words: Any) -> CandidateProposal:
    """The host's ``CandidateProposal`` of an evaluated candidate."""
    return CandidateProposal(
        candidate=candidate,
        parent_program_ids=[task.parent_idx],
        subsample_indices=task.minibatch_ids,
        subsample_scores_before=before.scores,
        subsample_scores_after=after.scores,
        eval_before=_subsample(before),
        eval_after=_subsample(after),
        tag="reflective_mutation",
        **words,
    )


class Gate:
    """What follows an item's gate.

    Args:
        session: the run.
        number: the item's number.
        recording: the item's.
        scope: enters the scoped view of its iteration.
        members: what the item merges: it may come to the text of one of them, which then ends with it.
    """

    def __init__(
        self,
        session: Session,
        number: int,
        recording: Recording,
        scope: Callable[[], Any],
        members: Sequence[Gated] = (),
    ) -> None:
        self.session = session
        self._own = {_content(each.proposal) for each in members}
        self._number = number
        self.recording = recording
        self.scope = scope
        self._chosen: list[CandidateProposal] = []
        #: What goes on, where a single proposal does.
        self.alone: Gated | None = None
        #: Why the item should not have been made from its parent, if that has turned out.
        self.unfounded = ""

    def decide(self, gated: list[Gated], *, holds: bool, validated: Early | None = None) -> Any:
        """Select as the host does, wait in the merge queue, validate.

        Args:
            gated: what was evaluated.
            holds: whether a proposal that goes on alone waits in the queue first.
            validated: its validation, where that ran before the gate had ended.

        Returns:
            The item's outcome.

        Raises:
            Patch: a policy wants the item to go on with another artifact.
        """
        session, proposals = self.session, [each.proposal for each in gated]
        selected = self._select(proposals)
        if not selected:
            before, after = (sum(scores or []) for scores in _scores(proposals))
            reason = f"subsample score {after} not better than {before}"
            return Outcome(Terminal.REJECTED, reason, evidence=gated[0].evidence)
        fresh = [each for each in selected if self.may_take({_content(each)})]
        if not fresh:
            self._record_selection(proposals, [])
            return Outcome(Terminal.REJECTED, REPEATED, evidence=gated[0].evidence)
        self.alone = alone = next(each for each in gated if each.proposal is fresh[0]) if len(fresh) == 1 else None
        if alone is None:
            stage, finish, kept = validation_stage(session, [_with_parents(each) for each in fresh], self.scope)
            fresh = fresh[:kept]
        contents = {_content(proposal) for proposal in fresh}
        self._record_selection(proposals, fresh)
        session.take(contents)
        try:
            if alone is not None and holds and session.holds:
                yield from self._wait(alone)
            if validated is not None:
                finish, results = validated
            else:
                if alone is not None:
                    stage, finish, _ = validation_stage(session, [_with_parents(alone.proposal)], self.scope)
                    stage = replace(stage, evidence=alone.evidence, unfounded=self.unfounded)
                results = yield stage
        except BaseException:
            session.leave(contents)
            raise
        for evaluation in finish(results):
            self.recording.put("validated", evaluation)
        return Outcome(Terminal.COMMITTED, evidence=None if alone is None else alone.evidence)

    def may_take(self, contents: set[tuple[tuple[str, str], ...]]) -> bool:
        """Whether nobody else has validated these, or is about to."""
        return all(each not in self.session.taken or each in self._own for each in contents)

    def _wait(self, alone: Gated) -> Any:
        """Wait in the merge queue, where merges find the proposal under the item's number."""
        waiting, cost = self.session.waiting, self.session.validation_cost
        waiting[self._number] = alone
        try:
            yield Stage(
                QUEUE, (), then=cost, holds=True, shared=cost, evidence=alone.evidence, unfounded=self.unfounded
            )
        finally:
            del waiting[self._number]

    def _select(self, proposals: list[CandidateProposal]) -> list[CandidateProposal]:
        """What the host's selection strategy takes, without repetitions, in its order."""
        engine, state = self.session.engine, self.session.state
        criterion = _Once(engine.acceptance_criterion)
        with self.scope():
            chosen = engine.selection_strategy.select(list(proposals), state, criterion)
            self._chosen = [each for each in chosen if any(each is proposal for proposal in proposals)]
            verdicts = [criterion.should_accept(proposal, state) for proposal in proposals]
        self.recording.put("verdicts", verdicts)
        self.session.reject([each for each, accepted in zip(proposals, verdicts, strict=True) if not accepted])
        unique: dict[Any, CandidateProposal] = {}
        for proposal in self._chosen:
            unique.setdefault(_content(proposal), proposal)
        if not unique:
            self._record_selection(proposals, [])
        return list(unique.values())

    def _record_selection(self, proposals: list[CandidateProposal], taken: list[CandidateProposal]) -> None:
        """Positions of what the strategy chose: what is validated, repetitions included, and why the rest is not."""
        contents = {_content(proposal) for proposal in taken}
        positions = {id(proposal): position for position, proposal in enumerate(proposals)}
        selected = [positions[id(each)] for each in self._chosen if _content(each) in contents]
        left = [each for each in self._chosen if _content(each) not in contents]
        reasons = {positions[id(each)]: REPEATED if _content(each) in self.session.taken else UNPAID for each in left}
        self.recording.put("selected", selected)
        self.recording.put("left out", reasons)


class _Once:
    """The host's acceptance criterion, asked once per proposal, however often the selection strategy asks."""

    def __init__(self, criterion: Any) -> None:
        self._criterion = criterion
        self._verdicts: dict[int, bool] = {}

    def should_accept(self, proposal: Any, state: Any) -> bool:
        """The verdict on a proposal."""
        if id(proposal) not in self._verdicts:
            self._verdicts[id(proposal)] = self._criterion.should_accept(proposal, state)
        return self._verdicts[id(proposal)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._criterion, name)


def _content(proposal: CandidateProposal) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(proposal.candidate.items()))


def _with_parents(proposal: CandidateProposal) -> tuple[dict[str, str], list[int]]:
    return proposal.candidate, proposal.parent_program_ids


def _subsample(evaluation: Any) -> SubsampleEvaluation:
    objectives = evaluation.objective_scores
    return SubsampleEvaluation(
        scores=evaluation.scores,
        outputs=evaluation.outputs,
        objective_scores=list(objectives) if objectives else None,
        trajectories=evaluation.trajectories,
    )


def _scores(proposals: list[CandidateProposal]) -> tuple[list[float] | None, list[float] | None]:
    return proposals[0].subsample_scores_before, proposals[0].subsample_scores_after
