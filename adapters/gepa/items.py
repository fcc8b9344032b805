"""One item of GEPA: rollout, reflective dataset, propose, gate, validate."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from gepa.core.state import _candidate_hash
from gepa.proposer.base import CandidateProposal, SubsampleEvaluation

from flashevolve_plugins._model import Outcome, Sample, Stage, Terminal
from flashevolve_plugins.adapters.gepa.recording import Recording, recorded
from flashevolve_plugins.adapters.gepa.reflection import reflect, takes_all
from flashevolve_plugins.adapters.gepa.validation import validation_stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashevolve_plugins._driver import Body
    from flashevolve_plugins.adapters.gepa.session import Session

STAGES = ("rollout", "dataset", "propose", "gate", "validate")
TASK, REFLECTION, LOCAL = "task", "reflection", "local"
REPEATED = "Duplicate of another candidate, which is in the pool or being validated"
UNPAID = "Discarded: the budget cannot pay for its validation"


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
        self._session = session
        self._number = number
        self._proposer = session.proposer
        self._tasks = recording.tasks
        self._recording = recording
        self._scope = scope
        self._chosen: list[CandidateProposal] = []
        self._gate_cost = session.rollout_cost(sum(len(task.minibatch) for task in self._tasks))

    def body(self) -> Body:
        evaluations = yield from self._rollout()
        jobs = self._select_components(evaluations)
        if not jobs:
            return Outcome(Terminal.SKIPPED, "perfect scores or no traces on its minibatch")
        datasets = yield from self._datasets(jobs)
        texts = yield from self._propose(datasets)
        children = self._children(texts)
        if not children:
            return Outcome(Terminal.SKIPPED, "the reflection proposed nothing")
        proposals = yield from self._gate(children)
        selected = self._select(proposals)
        if not selected:
            before, after = (sum(scores or []) for scores in _scores(proposals))
            return Outcome(Terminal.REJECTED, f"subsample score {after} not better than {before}")
        fresh = [proposal for proposal in selected if _content(proposal) not in self._session.taken]
        if not fresh:
            self._record_selection(proposals, [])
            return Outcome(Terminal.REJECTED, REPEATED)
        stage, finish, kept = validation_stage(self._session, [proposal.candidate for proposal in fresh], self._scope)
        self._record_selection(proposals, fresh[:kept])
        contents = {_content(proposal) for proposal in fresh[:kept]}
        self._session.take(contents)
        try:
            results = yield stage
        except BaseException:
            self._session.taken -= contents
            raise
        for evaluation in finish(results):
            self._recording.put("validated", evaluation)
        return Outcome(Terminal.COMMITTED)

    def _rollout(self) -> Any:
        unique: dict[Any, tuple[dict[str, str], list[Any]]] = {}
        keys = []
        for task in self._tasks:
            key = (_candidate_hash(task.parent_candidate), tuple(task.minibatch_ids))
            unique.setdefault(key, (task.parent_candidate, task.minibatch))
            keys.append(key)
        stage, finish = self._session.evaluation_stage(
            "rollout", list(unique.values()), then=self._gate_cost + self._session.validation_cost
        )
        self._session.note_costs(proposal=stage.cost + self._gate_cost)
        results = finish((yield stage))
        self._recording.put("evaluated", results)
        by_key = dict(zip(unique, results, strict=True))
        for key, evaluation in by_key.items():
            self._session.keep(unique[key][0], list(key[1]), evaluation)
        return [by_key[key] for key in keys]

    def _select_components(self, evaluations: list[Any]) -> list[tuple[Any, Any, list[str]]]:
        """(task, its parent's evaluation, components to update) of every task that goes on to reflection."""
        proposer, jobs = self._proposer, []
        for task, evaluation in zip(self._tasks, evaluations, strict=True):
            if not evaluation.trajectories or self._is_perfect(evaluation):
                continue
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
        return jobs

    def _is_perfect(self, evaluation: Any) -> bool:
        perfect = self._proposer.perfect_score
        return (
            self._proposer.skip_perfect_score
            and perfect is not None
            and all(score is not None and score >= perfect for score in evaluation.scores)
        )

    def _datasets(self, jobs: list[tuple[Any, Any, list[str]]]) -> Any:
        evaluator = self._session.evaluator
        adapter = evaluator.dataset_adapter(self._number)
        serial = evaluator.granularity == "serial" or evaluator.slots == 1  # then one thread at a time is all it sees
        results = yield Stage(
            "dataset",
            tuple(
                Sample(
                    _caught(_reflective_dataset, adapter, task.parent_candidate, evaluation, components),
                    TASK if serial else LOCAL,
                    seconds=self._session.seconds("dataset"),
                )
                for task, evaluation, components in jobs
            ),
            then=self._gate_cost + self._session.validation_cost,
        )
        built = []
        for (task, evaluation, components), dataset in zip(jobs, results, strict=True):
            self._recording.put("dataset", dataset)
            if not isinstance(dataset, Exception):
                built.append((task, evaluation, components, dataset))
        return built

    def _propose(self, datasets: list[tuple[Any, Any, list[str], Any]]) -> Any:
        session, proposer = self._session, self._proposer
        jobs = [(task.parent_candidate, dataset, components) for task, _, components, dataset in datasets]
        calls = [jobs] if jobs and takes_all(proposer) else [[job] for job in jobs]
        reflections = yield Stage(
            "propose",
            tuple(
                Sample(partial(reflect, proposer, call), REFLECTION, seconds=session.seconds("propose"))
                for call in calls
            ),
            then=self._gate_cost + session.validation_cost,
        )
        proposed = [texts for reflection in reflections for texts in reflection.texts]
        for texts in proposed:
            session.note_reflection(texts)
        self._recording.put("reflections", reflections)
        return [(task, evaluation, texts) for (task, evaluation, *_), texts in zip(datasets, proposed, strict=True)]

    def _children(self, proposed: list[tuple[Any, Any, Any]]) -> list[tuple[Any, Any, dict[str, str], dict[str, Any]]]:
        with self._scope():
            iteration = self._session.state.i + 1
        children = []
        for task, evaluation, texts in proposed:
            if isinstance(texts, Exception) or not texts[0]:
                continue
            unknown = [name for name in texts[0] if name not in task.parent_candidate]
            if unknown:
                raise AssertionError(f"{unknown[0]} missing in candidate")  # as the host says it
            position = next(position for position, each in enumerate(self._tasks) if each is task)
            metadata = {"proposal_id": f"{iteration}-{position}", **_metadata(*texts)}
            children.append((task, evaluation, {**task.parent_candidate, **texts[0]}, metadata))
        return children

    def _gate(self, children: list[tuple[Any, Any, dict[str, str], dict[str, Any]]]) -> Any:
        stage, finish = self._session.evaluation_stage(
            "gate", [(child, task.minibatch) for task, _, child, _ in children], then=self._session.validation_cost
        )
        results = finish((yield stage))
        self._recording.put("evaluated", results)
        for (task, _, child, _), evaluation in zip(children, results, strict=True):
            self._session.keep(child, task.minibatch_ids, evaluation)
        return [
            CandidateProposal(
                candidate=child,
                parent_program_ids=[task.parent_idx],
                subsample_indices=task.minibatch_ids,
                subsample_scores_before=before.scores,
                subsample_scores_after=after.scores,
                eval_before=_subsample(before),
                eval_after=_subsample(after),
                tag="reflective_mutation",
                metadata=metadata,
            )
            for (task, before, child, metadata), after in zip(children, results, strict=True)
        ]

    def _select(self, proposals: list[CandidateProposal]) -> list[CandidateProposal]:
        """What the host's selection strategy takes, without repetitions, in its order."""
        engine, state = self._session.engine, self._session.state
        criterion = _Once(engine.acceptance_criterion)
        with self._scope():
            chosen = engine.selection_strategy.select(list(proposals), state, criterion)
            self._chosen = [each for each in chosen if any(each is proposal for proposal in proposals)]
            self._recording.put("verdicts", [criterion.should_accept(proposal, state) for proposal in proposals])
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
        reasons = {positions[id(each)]: REPEATED if _content(each) in self._session.taken else UNPAID for each in left}
        self._recording.put("selected", selected)
        self._recording.put("left out", reasons)


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


def _content(proposal: CandidateProposal) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(proposal.candidate.items()))


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


def _caught(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    """A call that returns what it raises: the host goes on without that task."""

    def call() -> Any:
        try:
            return function(*arguments)
        except Exception as error:  # noqa: BLE001 - recorded; the host's loop logs it
            return error

    return call
