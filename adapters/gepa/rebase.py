"""Carries proposals onto the current best: merges of what waits in the queue, and items that a policy patched."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gepa.strategies.proposal_sampling import ProposalTask

from flashevolve_plugins._model import Change, Discarded, Outcome, Patch, Sample, Stage, Terminal
from flashevolve_plugins.adapters.gepa.gate import Gate, Gated, proposal_of
from flashevolve_plugins.adapters.gepa.recording import recorded
from flashevolve_plugins.adapters.gepa.reflection import Reflection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from flashevolve_plugins._bodies import Body
    from flashevolve_plugins._policies import Batch
    from flashevolve_plugins.adapters.gepa.recording import Recording
    from flashevolve_plugins.adapters.gepa.session import Session

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
    return recorded(_Rebase(Gate(session, number, recording, scope, members)).merge(batch, members), recording)


def to_validation(gate: Gate, gated: list[Gated], *, holds: bool) -> Body:
    """The stages after an item's gate. A policy may patch it there: it then passes the gate again, as often as that is.

    Args:
        gate: the item's.
        gated: what was evaluated.
        holds: whether a proposal that goes on alone waits in the merge queue first.
    """
    while True:
        try:
            outcome: Outcome = yield from gate.decide(gated, holds=holds)
            return outcome
        except Patch as patch:
            alone = gate.alone
            assert alone is not None  # noqa: S101 - only then a policy was shown evidence
            gate.recording.restart()  # what it holds of the proposal as it was is forgotten
            gated = [(yield from _Rebase(gate).again(gate.session.best(), patch.artifact, [alone]))]


class _Rebase:
    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._session = gate.session
        self._recording = gate.recording

    def merge(self, batch: Batch, members: Sequence[Gated]) -> Body:
        session, candidates = self._session, self._session.state.program_candidates
        base = session.best() if batch.onto is None else batch.onto - 1
        current = dict(candidates[base])
        changes = [
            Change(dict(each.task.parent_candidate), dict(each.proposal.candidate), each.evidence.feedback)
            for each in members
        ]
        self._recording.tasks = [ProposalTask(base, current, [], [])]  # what is told of it if it gets no further
        reflector, write = session.driver.reflector, batch.write
        assert write is not None  # noqa: S101 - the driver asks for a merge only then
        most = session.rollout_cost(2 * sum(len(each.task.minibatch) for each in members))
        sample = Sample(
            partial(_written, write, reflector.ask, current, changes),
            reflector.resource,
            seconds=session.seconds(MERGE),
        )
        (written,) = yield Stage(MERGE, (sample,), then=most + session.validation_cost)
        session.note_reflection(written)
        if isinstance(written, Exception):
            raise Discarded(Terminal.SKIPPED, f"the merge failed: {written}", MERGE)
        gated = yield from self.again(base, written, members)
        return (yield from to_validation(self._gate, [gated], holds=False))

    def again(self, base: int, artifact: Any, members: Sequence[Gated]) -> Any:
        """Evaluate a candidate and what it was made from on the examples of proposals.

        Returns:
            What was evaluated.

        Raises:
            Discarded: nothing is left to change, or the host would not have reflected at all.
        """
        session, recording = self._session, self._recording
        current = dict(session.state.program_candidates[base])
        texts = _new_texts(current, artifact)
        if not texts:
            raise Discarded(Terminal.SKIPPED, "nothing of it is left to change on the current best", REGATE)
        known, missing = _known(base, members)
        examples = {**{each: data for part, _ in known for each, data in part.items()}, **missing}
        task = ProposalTask(base, current, list(examples), list(examples.values()))
        child = {**current, **texts}
        pairs = [(child, task.minibatch), *([(current, list(missing.values()))] if missing else [])]
        stage, finish = session.evaluation_stage(REGATE, pairs, then=session.validation_cost)
        after, *fresh = finish((yield stage))
        before = session.evaluator.merge([*(evaluation for _, evaluation in known), *fresh])
        session.keep(child, task.minibatch_ids, after)
        dataset = _joined([each.dataset for each in members])
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
        parents = dict.fromkeys((base, *(each.task.parent_idx for each in members)))
        recording.parents = list(parents)
        with self._gate.scope():
            number = f"{session.state.i + 1}-0"
        proposal = proposal_of(task, before, after, child, metadata={"proposal_id": number})
        proposal.parent_program_ids = recording.parents
        return Gated(task, before, dataset, proposal)


def _written(write: Callable[..., Any], *arguments: Any) -> Any:
    """What a policy's function wrote, or what it raised."""
    try:
        return write(*arguments)
    except Exception as error:  # noqa: BLE001 - told in the item's record
        return error


def _new_texts(current: Mapping[str, str], artifact: Any) -> dict[str, str]:
    """The texts that differ from the current ones.

    Raises:
        TypeError: it is no candidate of the host.
    """
    if not isinstance(artifact, dict) or set(artifact) - set(current) or not all(map(_is_text, artifact.values())):
        raise TypeError(f"A policy wrote {artifact!r:.200}, which is no candidate with the components {set(current)}.")
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
