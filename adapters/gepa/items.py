"""One item of GEPA: rollout, reflective dataset, propose, gate, validate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gepa.core.state import _candidate_hash

from flashevolve_plugins._bodies import Partial
from flashevolve_plugins._decisions import JUDGE
from flashevolve_plugins._model import Discarded, Outcome, Progress, Sample, Stage, Terminal
from flashevolve_plugins.adapters.gepa.gate import QUEUE, Gate, Gated, proposal_of
from flashevolve_plugins.adapters.gepa.known import ROLLOUT
from flashevolve_plugins.adapters.gepa.rebase import MERGE, REGATE, to_validation
from flashevolve_plugins.adapters.gepa.recording import Recording, recorded
from flashevolve_plugins.adapters.gepa.reflection import reflect, takes_all
from flashevolve_plugins.adapters.gepa.rollouts import mean_of
from flashevolve_plugins.adapters.gepa.watching import gate_progress, scores_so_far, watched

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashevolve_plugins._bodies import Body
    from flashevolve_plugins.adapters.gepa.session import Session

#: In the order in which an item passes them; the later one goes first where both wait for a slot.
STAGES = (ROLLOUT, "dataset", "propose", "gate", QUEUE, JUDGE, MERGE, REGATE, "validate")
TASK, REFLECTION, LOCAL = "task", "reflection", "local"
REJECTED = "Duplicate of a proposal from the same candidate, which was not better on its minibatch"


def mutation(session: Session, number: int, tasks: list[Any], scope: Callable[[], Any], recording: Recording) -> Body:
    """The body of an item that mutates one or more parents, as one call of the sampling strategy asks for.

    Args:
        session: the run.
        number: the item's number.
        tasks: the host's ``ProposalTask`` objects.
        scope: enters the scoped view of this item's iteration.
        recording: the item's, as far as it has got.
    """
    recording.tasks = tasks
    recording.put("tasks", tasks)
    return recorded(_Mutation(session, number, recording, scope).body(), recording)


def failed(error: Exception, recording: Recording) -> Body:
    """The body of an item whose offer failed: the host's loop comes to the error where it asks for the tasks."""
    recording.put("tasks", error)
    yield from ()
    return Outcome(Terminal.FAILED, f"{type(error).__name__}: {error}", recording)


class _Mutation:
    def __init__(self, session: Session, number: int, recording: Recording, scope: Callable[[], Any]) -> None:
        self._rest: Callable[[], list[Any]] | None = None  # of a rollout that was handed on, its evaluations
        self._unfounded = ""
        self._session = session
        self._number = number
        self._proposer = session.proposer
        self._tasks = recording.tasks
        self._recording = recording
        self._scope = scope
        self._gate_cost = session.rollout_cost(sum(len(task.minibatch) for task in self._tasks))

    def body(self) -> Body:
        evaluations = yield from self._rollout()
        if self._rest is not None and all(map(self._session.is_perfect, evaluations)):
            evaluations = yield from self._joined()
        jobs = self._select_components(evaluations)
        if not jobs:
            yield from self._joined()
            return Outcome(Terminal.SKIPPED, "perfect scores or no traces on its minibatch")
        datasets = yield from self._datasets(jobs)
        texts = yield from self._propose(datasets)
        if self._rest is not None:
            (whole,) = yield from self._joined()
            texts = [(task, whole, *more) for task, _, *more in texts]
        children = self._children(texts)
        if not children:
            return Outcome(Terminal.SKIPPED, _why_nothing(texts))
        if all(each.content in self._session.rejected for each in children):
            self._session.driver.spare(sum(len(each.task.minibatch) for each in children) * self._session.rollouts)
            raise Discarded(Terminal.REJECTED, REJECTED, "gate")
        version = yield from self._confirmed()
        gated = yield from self._gate(children, version)
        gate = Gate(self._session, self._number, self._recording, self._scope)
        gate.unfounded = self._unfounded
        return (yield from to_validation(gate, gated, holds=True))

    def _rollout(self) -> Any:
        unique: dict[Any, tuple[dict[str, str], list[Any]]] = {}
        keys = []
        for task in self._tasks:
            key = (_candidate_hash(task.parent_candidate), tuple(task.minibatch_ids))
            unique.setdefault(key, (task.parent_candidate, task.minibatch))
            keys.append(key)
        wanted = [(candidate, ids, batch) for (_, ids), (candidate, batch) in unique.items()]
        stage, finish = self._session.known.stage(ROLLOUT, wanted, then=self._gate_cost + self._session.validation_cost)
        self._session.note_costs(proposal=stage.cost + self._gate_cost)

        def told(results: list[Any]) -> list[Any]:
            evaluations = finish(results)
            self._recording.put("evaluated", evaluations)
            by_key = dict(zip(unique, evaluations, strict=True))
            for key, evaluation in by_key.items():
                self._session.keep(unique[key][0], list(key[1]), evaluation)
            return [by_key[key] for key in keys]

        if len(self._tasks) == 1:
            ids = self._tasks[0].minibatch_ids
            stage = watched(self._session, stage, [len(ids)], lambda scores: Progress(scores[0], ids), hands_on=True)
        results = yield self._session.sharing(stage)
        if not isinstance(results, Partial):
            return told(results)
        self._rest = lambda: told(results.whole())
        rollouts, merge = self._session.rollouts, self._session.evaluator.merge
        (known,) = scores_so_far(results, [len(ids)], rollouts)
        places = [place for place, score in enumerate(known) if score is not None]
        return [merge([mean_of(results[place * rollouts : (place + 1) * rollouts]) for place in places])]

    def _joined(self) -> Any:
        """The evaluations of a rollout that was handed on, once all of it has ended."""
        rest, self._rest = self._rest, None
        if rest is None:
            return []
        then = self._gate_cost + self._session.validation_cost
        yield self._session.sharing(Stage("gate", (), then=then, joins=True))
        return rest()

    def _confirmed(self) -> Any:
        """Wait for the end of the item whose provisional artifact this one mutates, and give its pool version."""
        if self._recording.made_from is None:
            return None
        then = self._gate_cost + self._session.validation_cost
        yield self._session.sharing(Stage("gate", (), then=then, after=self._recording.made_from))
        index = self._session.index_of(self._recording.made_from)
        if index is None:
            reason = f"item {self._recording.made_from}, which it was made from, did not enter the pool"
            raise Discarded(Terminal.DISCARDED, reason, "gate")
        for task in self._tasks:
            if task.parent_candidate == self._session.state.program_candidates[index]:
                task.parent_idx = index
        self._unfounded = self._session.driver.releases.why_not(self._recording.made_from)
        return index + 1

    def _select_components(self, evaluations: list[Any]) -> list[tuple[Any, Any, list[str]]]:
        """(task, its parent's evaluation, components to update) of every task that goes on to reflection."""
        proposer, jobs = self._proposer, list[tuple[Any, Any, list[str]]]()
        kept = self._session.kept
        for task, evaluation in zip(self._tasks, evaluations, strict=True):
            if not evaluation.trajectories or self._session.is_perfect(evaluation):
                continue
            components = None if kept is None else kept.components(self._number, len(jobs))
            if components is None:
                with self._scope():
                    components = proposer.module_selector(
                        self._session.state,
                        evaluation.trajectories,
                        evaluation.scores,
                        task.parent_idx,
                        task.parent_candidate,
                    )
            self._recording.put("components", components)
            jobs.append((task, evaluation, components))
        if kept is not None:
            kept.chose(self._number, [list(components) for *_, components in jobs])
        return jobs

    def _datasets(self, jobs: list[tuple[Any, Any, list[str]]]) -> Any:
        evaluator = self._session.evaluator
        adapter = evaluator.dataset_adapter(self._number)
        keeps = self._session.keeps
        serial = evaluator.granularity == "serial" or evaluator.slots == 1  # then one thread at a time is all it sees
        stage = Stage(
            "dataset",
            tuple(
                Sample(
                    partial(_reflective_dataset, adapter, task.parent_candidate, evaluation, components),
                    TASK if serial else LOCAL,
                    seconds=self._session.seconds("dataset"),
                    kept=None if keeps is None else keeps.dataset(task, components),
                    catches=True,  # the host goes on without that task, and logs why
                )
                for task, evaluation, components in jobs
            ),
            then=self._gate_cost + self._session.validation_cost,
        )
        results = yield self._session.sharing(stage)
        built = []
        for (task, evaluation, components), dataset in zip(jobs, results, strict=True):
            self._recording.put("dataset", dataset)
            if not isinstance(dataset, Exception):
                built.append((task, evaluation, components, dataset))
        return built

    def _propose(self, datasets: list[tuple[Any, Any, list[str], Any]]) -> Any:
        session, proposer, keeps = self._session, self._proposer, self._session.keeps
        jobs = [(task.parent_candidate, dataset, components) for task, _, components, dataset in datasets]
        named = [(task, components) for task, _, components, _ in datasets]
        together = bool(jobs) and takes_all(proposer)
        calls = [(jobs, named)] if together else [([job], [name]) for job, name in zip(jobs, named, strict=True)]
        stage = Stage(
            "propose",
            tuple(
                Sample(
                    partial(reflect, proposer, call),
                    REFLECTION,
                    seconds=session.seconds("propose"),
                    kept=None if keeps is None else keeps.texts(names),
                )
                for call, names in calls
            ),
            then=self._gate_cost + session.validation_cost,
        )
        reflections = yield session.sharing(stage)
        proposed = [texts for reflection in reflections for texts in reflection.texts]
        for texts in proposed:
            session.note_reflection(texts)
        self._recording.put("reflections", reflections)
        return [
            (task, evaluation, dataset, texts)
            for (task, evaluation, _, dataset), texts in zip(datasets, proposed, strict=True)
        ]

    def _children(self, proposed: list[tuple[Any, Any, Any, Any]]) -> list[_Child]:
        with self._scope():
            iteration = self._session.state.i + 1
        children = []
        for task, evaluation, dataset, texts in proposed:
            if isinstance(texts, Exception) or not texts[0]:
                continue
            unknown = [name for name in texts[0] if name not in task.parent_candidate]
            if unknown:
                raise AssertionError(f"{unknown[0]} missing in candidate")  # as the host says it
            position = next(position for position, each in enumerate(self._tasks) if each is task)
            metadata = {"proposal_id": f"{iteration}-{position}", **_metadata(*texts)}
            child = {**task.parent_candidate, **texts[0]}
            children.append(_Child(task, evaluation, dataset, child, metadata))
        return children

    def _gate(self, children: list[_Child], version: int | None) -> Any:
        session, first = self._session, children[0]
        wanted = [(each.candidate, each.task.minibatch_ids, each.task.minibatch) for each in children]
        stage, finish = session.known.stage("gate", wanted, then=session.validation_cost)
        if len(children) == len(self._tasks) == 1:

            def shown(scores: list[list[float | None]]) -> Progress:
                return gate_progress(session.engine, scores[0], first.before.scores)

            stage = watched(session, stage, [len(first.task.minibatch)], shown)
        stage = replace(stage, version=version, unfounded=self._unfounded)
        try:
            results = finish((yield session.sharing(stage)))
        except Discarded as why:
            if why.terminal is Terminal.REJECTED and session.remembers:  # stopped, as it could not pass any more
                session.rejected.update(each.content for each in children)
            raise
        self._recording.put("evaluated", results)
        for child, after in zip(children, results, strict=True):
            self._session.keep(child.candidate, child.task.minibatch_ids, after)
        return [
            Gated(
                each.task,
                each.before,
                each.dataset,
                proposal_of(each.task, each.before, after, each.candidate, metadata=each.metadata),
            )
            for each, after in zip(children, results, strict=True)
        ]


@dataclass(frozen=True)
class _Child:
    """A proposal before its gate.

    Args:
        task: the host's ``ProposalTask``.
        before: the parent's evaluation.
        dataset: the reflective dataset behind it.
        candidate: component name to text.
        metadata: what the host tells acceptance criteria of the reflection.
    """

    task: Any
    before: Any
    dataset: Any
    candidate: dict[str, str]
    metadata: dict[str, Any]

    @property
    def content(self) -> tuple[str, str]:
        """Digests of the parent and of the proposal."""
        return _candidate_hash(self.task.parent_candidate), _candidate_hash(self.candidate)


def _why_nothing(proposed: list[tuple[Any, Any, Any, Any]]) -> str:
    """Why no proposal came of reflections."""
    errors = [texts for *_, texts in proposed if isinstance(texts, Exception)]
    if not errors:
        return "the reflection proposed nothing"
    return f"the reflection failed: {type(errors[0]).__name__}: {' '.join(str(errors[0]).split())}"


def _reflective_dataset(adapter: Any, candidate: dict[str, str], evaluation: Any, components: list[str]) -> Any:
    """The adapter's reflective dataset, if the host can read it."""
    dataset = adapter.make_reflective_dataset(candidate, evaluation, components)
    for records in dataset.values():
        for record in records:
            dict(record)
    return dataset


def _metadata(
    texts: dict[str, str], prompts: dict[str, Any], outputs: dict[str, str], more: dict[str, Any] | None
) -> dict[str, Any]:
    """What the host tells acceptance criteria of a reflection."""
    reserved = ("prompt:", "raw_lm_output:")
    return {
        **{f"prompt:{name}": prompts.get(name, "") for name in texts},
        **{f"raw_lm_output:{name}": outputs.get(name, "") for name in texts},
        **{f"reflection_meta:{key}" if key.startswith(reserved) else key: each for key, each in (more or {}).items()},
    }
