"""Carries proposals onto the current best: merges of what waits in the queue, and items that a policy patched."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from gepa.strategies.proposal_sampling import ProposalTask

from flashevolve_plugins._bodies import Partial
from flashevolve_plugins._model import Change, Discarded, Outcome, Patch, Sample, Stage, Terminal
from flashevolve_plugins._redact import shown
from flashevolve_plugins.adapters.gepa.gate import Gate, Gated, proposal_of
from flashevolve_plugins.adapters.gepa.recording import recorded
from flashevolve_plugins.adapters.gepa.reflection import Reflection
from flashevolve_plugins.adapters.gepa.validation import validation_stage
from flashevolve_plugins.adapters.gepa.watching import gate_progress, passes, sums_decide, watched

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from flashevolve_plugins._bodies import Body
    from flashevolve_plugins._model import Progress
    from flashevolve_plugins._policies import Batch
    from flashevolve_plugins.adapters.gepa.recording import Recording
    from flashevolve_plugins.adapters.gepa.session import Session
    from flashevolve_plugins.adapters.gepa.validation import Early

MERGE, REGATE = "merge", "regate"
PERFECT = "the current best is perfect on its examples"


def merge(session: Session, number: int, batch: Batch, scope: Callable[[], Any], recording: Recording) -> Body:
    """The body of an item that merges what waits: written in one call, gated on all minibatches, validated once.

    Args:
        session: the run.
        number: the item's number.
        batch: what a policy took from the queue.
        scope: enters the scoped view of the item's iteration.
        recording: the item's.
    """
    members = [session.waiting[each] for each in batch.members]
    base = session.best() if batch.onto is None else batch.onto - 1
    rebase = _Rebase(Gate(session, number, recording, scope, members), base, batch.onto_item)
    return recorded(rebase.merge(batch, members), recording)


def to_validation(gate: Gate, gated: list[Gated], *, holds: bool, validated: Early | None = None) -> Body:
    """The stages after an item's gate. A policy may patch it there: it then passes the gate again, as often as that is.

    Args:
        gate: the item's.
        gated: what was evaluated.
        holds: whether a proposal that goes on alone waits in the merge queue first.
        validated: its validation, where that ran before the gate had ended.
    """
    while True:
        try:
            outcome: Outcome = yield from gate.decide(gated, holds=holds, validated=validated)
            return outcome
        except Patch as patch:
            alone = gate.alone
            assert alone is not None  # noqa: S101 - only then a policy was shown evidence
            gate.recording.restart()  # what it holds of the proposal as it was is forgotten
            gate.unfounded = ""
            rebase = _Rebase(gate, gate.session.best())
            gated = [(yield from rebase.again(patch.artifact, [alone]))]
            validated = rebase.validated
            holds = holds and validated is None


class _Rebase:
    """Carries changes onto a candidate.

    Args:
        gate: the item's.
        base: the candidate's index; where it is provisional, that of the best, until the provisional one has one.
        provisional: the item whose provisional artifact it is.
    """

    def __init__(self, gate: Gate, base: int, provisional: int | None = None) -> None:
        self._gate = gate
        self._session = session = gate.session
        self._recording = gate.recording
        self._base, self._provisional = base, provisional
        known = session.state.program_candidates[base]
        self._current = dict(known if provisional is None else session.driver.pool.provisional[provisional].artifact)
        #: Its validation, where that ran before its gate had ended.
        self.validated: Early | None = None

    def merge(self, batch: Batch, members: Sequence[Gated]) -> Body:
        session, current = self._session, self._current
        changes = [
            Change(dict(each.task.parent_candidate), dict(each.proposal.candidate), each.evidence.feedback)
            for each in members
        ]
        self._recording.tasks = [ProposalTask(self._base, current, [], [])]  # told of it if it gets no further
        reflector, write = session.driver.decisions.reflector, batch.write
        assert write is not None  # noqa: S101 - the driver asks for a merge only then
        most = session.rollout_cost(2 * sum(len(each.task.minibatch) for each in members))
        sample = Sample(
            partial(write, reflector.ask, current, changes),
            reflector.resource,
            seconds=session.seconds(MERGE),
            kept=None if session.keeps is None else session.keeps.merged(current, changes),
            catches=True,
        )
        (written,) = yield Stage(MERGE, (sample,), then=most + session.validation_cost)
        session.note_reflection(written)
        if isinstance(written, Exception):
            raise Discarded(Terminal.SKIPPED, f"the merge failed: {written}", MERGE)
        gated = yield from self.again(written, members)
        return (yield from to_validation(self._gate, [gated], holds=False, validated=self.validated))

    def again(self, artifact: Any, members: Sequence[Gated]) -> Any:
        """Evaluate a candidate and what it was made from on the examples of proposals.

        Returns:
            What was evaluated.

        Raises:
            Discarded: nothing is left to change, or the host would not have reflected at all, or what it was made from
                was provisional and did not turn out to be the best.
        """
        session, recording, current = self._session, self._recording, self._current
        texts = _new_texts(current, artifact)
        if not texts:
            raise Discarded(Terminal.SKIPPED, "nothing of it is left to change on the current best", REGATE)
        known, missing = _known(self._base if self._provisional is None else -1, members)
        examples = {**{each: data for part, _ in known for each, data in part.items()}, **missing}
        task = ProposalTask(self._base, current, list(examples), list(examples.values()))
        child = {**current, **texts}
        wanted = [(child, task.minibatch_ids, task.minibatch)]
        if missing:
            wanted.append((current, list(missing), list(missing.values())))
        scores_known = [score for _, evaluation in known for score in evaluation.scores]
        stage, finish = session.known.stage(REGATE, wanted, then=session.validation_cost)

        def shown(scores: list[list[float | None]]) -> Progress:
            return gate_progress(session.engine, scores[0], [*scores_known, *chain(*scores[1:])])

        hands_on = self._provisional is None and sums_decide(session.engine)
        stage = watched(session, stage, [len(batch) for *_, batch in wanted], shown, hands_on=hands_on)
        results = yield stage
        if isinstance(results, Partial):
            results = yield from self._validate_early(child, stage, results)
        after, *fresh = finish(results)
        before = session.evaluator.merge([*(evaluation for _, evaluation in known), *fresh])
        session.keep(child, task.minibatch_ids, after)
        dataset = _joined([each.dataset for each in members])
        if self._provisional is not None:
            recording.forgotten.extend([before, after])
            yield from self._confirmed()
            recording.forgotten.clear()
            task.parent_idx = self._base
        recording.tasks = [task]
        recording.put("tasks", [task])
        recording.put("evaluated", [before])
        if not before.trajectories or session.is_perfect(before):
            recording.forgotten.append(after)
            raise Discarded(Terminal.SKIPPED, PERFECT, REGATE)
        recording.put("components", list(texts))
        recording.put("dataset", dataset)
        recording.put("reflections", [Reflection([(texts, {}, {}, {})])])
        recording.put("evaluated", [after])
        parents = dict.fromkeys((self._base, *(each.task.parent_idx for each in members)))
        recording.parents = list(parents)
        with self._gate.scope():
            number = f"{session.state.i + 1}-0"
        proposal = proposal_of(task, before, after, child, metadata={"proposal_id": number})
        proposal.parent_program_ids = recording.parents
        return Gated(task, before, dataset, proposal)

    def _confirmed(self) -> Any:
        """Wait until what the candidate was made from is in the host's pool, as the best."""
        session, item = self._session, self._provisional
        assert item is not None  # noqa: S101 - asked by the caller
        yield Stage(REGATE, (), then=session.validation_cost, after=item)
        index, why = session.index_of(item), session.driver.releases.why_not(item)
        if index is None or why:
            reason = why or f"item {item}, which it was merged onto, did not enter the pool"
            raise Discarded(Terminal.SKIPPED, reason, REGATE)
        self._base = index

    def _validate_early(self, child: dict[str, str], stage: Stage, results: Partial) -> Any:
        """Validate what passes its gate whatever the rest of it says; and give the gate's results."""
        session, gate = self._session, self._gate
        taken = {tuple(sorted(child.items()))}
        assert stage.progress is not None  # noqa: S101 - else it had not been handed on
        if not passes(stage.progress(results)) or not gate.may_take(taken):
            yield Stage(REGATE, (), then=session.validation_cost, joins=True)
            return results.whole()
        session.take(taken)
        try:
            validation, finish, _ = validation_stage(session, [(child, [self._base])], gate.scope)
            validated = yield validation
            yield Stage(REGATE, (), settles=True, joins=True)
        finally:
            session.leave(taken)
        self.validated = finish, validated
        return results.whole()


def _new_texts(current: Mapping[str, str], artifact: Any) -> dict[str, str]:
    """The texts that differ from the current ones.

    Raises:
        TypeError: it is no candidate of the host.
    """
    if not isinstance(artifact, dict) or set(artifact) - set(current) or not all(map(_is_text, artifact.values())):
        raise TypeError(f"A policy wrote {shown(artifact)}, which is no candidate with the components {set(current)}.")
    return {name: text for name, text in artifact.items() if text != current[name]}


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _known(base: int, members: Sequence[Gated]) -> tuple[list[tuple[dict[Any, Any], Any]], dict[Any, Any]]:
    """What is known of the base on the members' examples, in whole evaluations, and the examples that are left.

    Evaluations that are used again cost nothing.
    """
    known: list[tuple[dict[Any, Any], Any]] = []
    seen: set[Any] = set()
    left: dict[Any, Any] = {}
    for each in members:
        examples = dict(zip(each.task.minibatch_ids, each.task.minibatch, strict=True))
        whole = len(examples) == len(each.task.minibatch_ids)  # a sampler may repeat an example
        if each.task.parent_idx == base and whole and not seen & set(examples):
            known.append((examples, replace(each.before, num_metric_calls=0)))
            seen |= set(examples)
        else:
            left.update(examples)
    return known, {example: data for example, data in left.items() if example not in seen}


def _joined(datasets: Sequence[Any]) -> dict[str, list[Any]]:
    """Reflective datasets, end to end."""
    joined: dict[str, list[Any]] = {}
    for dataset in datasets:
        for component, records in dataset.items():
            joined.setdefault(component, []).extend(records)
    return joined
