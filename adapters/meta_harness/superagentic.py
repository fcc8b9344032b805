"""``superagentic-metaharness``: ``optimize_harness(..., executor="flash")`` and ``MetaHarnessEngine.run``."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._errors import UsageError
from flashevolve_plugins._model import Terminal
from flashevolve_plugins._whole_file import write_whole
from flashevolve_plugins.adapters.meta_harness import superagentic_files as files
from flashevolve_plugins.adapters.meta_harness import superagentic_resume as resume
from flashevolve_plugins.adapters.meta_harness.host import Ending, Job, Proposal
from flashevolve_plugins.adapters.meta_harness.superagentic_traits import at_once, has_tests, jobs_of, seconds_of
from flashevolve_plugins.adapters.meta_harness.texts import texts_of, tidy_output, without_secrets
from flashevolve_plugins.adapters.meta_harness.under_way import FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from flashevolve_plugins.adapters.meta_harness.three_way import Carried

logger = logging.getLogger("flashevolve_plugins")

NOTHING = float("-inf")
OWN_STEPS = ("_evaluate_candidate", "_finalize_test_evaluations")
PROPOSERS = EVALUATORS = 4
ADVICE = (
    "The {} of this run are objects of your own and called once at a time: say how often at once with "
    "Flash(max_concurrency=EVALUATORS, reflection_concurrency=PROPOSERS)."
)


@dataclass
class Work:
    """A candidate under way.

    Args:
        candidate: the host's record of it.
        parent: the record that its workspace was copied from.
        request: what the proposer is given.
        result: the host's record of what the proposer has done.
        evaluation: from the results of its jobs to the host's evaluation.
    """

    candidate: Any
    parent: Any
    request: Any
    result: Any = None
    evaluation: Callable[[Sequence[Any]], Any] | None = None


class Superagentic:
    """One call of ``MetaHarnessEngine.run``.

    Args:
        engine: the user's engine.
        kind: the host's class.
        lockstep: whether nothing runs at once.
    """

    name = "superagentic-metaharness"

    def __init__(self, engine: Any, kind: Any, *, lockstep: bool) -> None:
        for step in OWN_STEPS:
            if getattr(type(engine), step) is not getattr(kind, step):
                raise UsageError(
                    f"{type(engine).__name__}.{step} is not the host's own, and flash would not call it: put what it "
                    "does into the proposer or the domain adapter, or run it with executor=None."
                )
        self._engine, self._lockstep = engine, lockstep
        self._store, self._domain = engine.store, engine.domain_adapter
        self._size = engine._effective_batch_size() if lockstep else 1  # of what competes to be the next parent
        self.total = engine.budget * engine._effective_batch_size()
        several = at_once(engine.proposer), at_once(self._domain)
        self.proposers, self.evaluators = (PROPOSERS if several[0] else 1), (EVALUATORS if several[1] else 1)
        called = [name for name, each in zip(("proposer", "evaluator"), several, strict=True) if not each]
        self.advice = ADVICE.format(" and the ".join(called)) if called else ""
        self._records: list[Any] = []
        self._ready: deque[Any] = deque()
        self._group: list[Any] = []
        self._best: Any = None
        self._frontier: Sequence[Any] = ()
        self.done = 0

    # -- the baseline -----------------------------------------------------------------------------------------------

    def seed(self) -> tuple[Sequence[Job], Callable[[Sequence[Any]], Sequence[Job]], Callable[[Sequence[Any]], float]]:
        """Begin the run's directory, and take the baseline in."""
        engine = self._engine
        files.write_files_whole(self._store, clean=not self._lockstep)
        if self._best is not None:  # of the run that is taken up
            return (), lambda _: (), lambda _: float(self._best.search_objective)
        files.initialize(engine)
        work = Work(self._store.materialize_baseline(engine.baseline), None, None)
        work.candidate.proposal_applied = True

        def jobs(checked: Sequence[Any]) -> Sequence[Job]:
            return self._jobs(work) if self._checked(work, checked[0]) else ()

        def score(results: Sequence[Any]) -> float:
            baseline = self._best = work.candidate
            baseline.search_objective = NOTHING
            if results:
                self._take_evaluation(work, results)
            baseline.objective = baseline.search_objective
            baseline.outcome, baseline.outcome_summary = "baseline", "Baseline candidate."
            self._write(baseline)
            return float(baseline.objective)

        return self._validation(work.candidate), jobs, score

    # -- a run that is taken up -------------------------------------------------------------------------------------

    def fingerprint(self) -> dict[str, str]:
        """Objective, baseline, proposer and evaluator."""
        return resume.fingerprint(self._engine)

    def take_up(self, recipes: Mapping[int, resume.Recipe]) -> Sequence[int]:
        """Read every candidate's manifest. What was made and has not ended goes on."""
        under_way = {each.candidate for each in recipes.values()}
        found = resume.records(self._store, without=under_way)
        if not found:  # not even the baseline was evaluated
            return ()
        self._records, self._best = found, resume.best_of(found)
        self.done = sum(each.outcome not in resume.NOT_OVER for each in found)
        going_on = {row: each for row, each in recipes.items() if resume.goes_on(self._store, each, found)}
        resume.remove_unfinished(self._store, keep=[each.candidate for each in going_on.values()])
        return list(going_on)

    def recipe(self, proposal: Proposal) -> resume.Recipe:
        """Its directory, what that was copied from, and what the proposer said once it has."""
        work: Work = proposal.content
        return resume.Recipe(work.candidate.candidate_id, work.parent.candidate_id, work.result)

    def begin_taken_up(self, number: int, version: int, recipe: resume.Recipe) -> Proposal:
        """What a proposer has made, in the directory where it is."""
        parent = next(each for each in self._records if each.candidate_id == recipe.parent)
        proposal = Proposal(number, version, Work(resume.record(self._store, recipe), parent, None, recipe.result))
        self._take_in(proposal)
        return proposal

    # -- proposals --------------------------------------------------------------------------------------------------

    def begin(self, number: int, version: int) -> Proposal:
        """Copy the best workspace, with what was committed so far beside it."""
        if not self._ready:
            self._ready.extend(files.materialize(self._store, self._best) for _ in range(self._size))
            self._group = []
        work = Work(self._ready.popleft(), self._best, None)
        proposal = Proposal(number, version, work)
        more = () if self._lockstep else (files.OTHERS,)
        work.request = files.bundle(self._engine, work.candidate, work.parent, more)
        return proposal

    def begin_again(self, proposal: Proposal, version: int) -> None:
        """Copy what is best now, with the stale candidate beside it."""
        work: Work = proposal.content
        work.candidate = files.materialize_again(self._store, work.candidate, self._best)
        work.parent, work.result = self._best, None
        changed = list(proposal.artifact)
        work.request = files.bundle(self._engine, work.candidate, work.parent, (files.REBASE, files.OTHERS))
        files.lay_out_stale(work.candidate, changed)
        proposal.version, proposal.artifact, proposal.feedback = version, {}, ""

    def carried(self, proposal: Proposal) -> Carried:
        """What the candidate has changed, on what is best now."""
        work: Work = proposal.content
        return files.carried(work.candidate, work.parent, self._best)

    def carry(self, proposal: Proposal, version: int, carried: Carried) -> None:
        """Make the candidate that change of what is best now."""
        work: Work = proposal.content
        files.carry_onto(work.candidate, work.parent, self._best, carried.files)
        work.parent, proposal.version = self._best, version
        self._take_in(proposal)

    def about(self, proposal: Proposal) -> list[dict[str, Any]]:
        """The candidate; the idea is what its session wrote down, and then what the proposer says of it."""
        return [files.about(proposal.content.candidate, proposal.feedback)]

    def show(self, proposal: Proposal, others: bytes) -> None:
        """Write it beside what came before."""
        write_whole(proposal.content.candidate.workspace_dir / files.EXPERIENCE / FILE, others)

    def propose_seconds(self, proposal: Proposal) -> float:
        """Virtual seconds, as the proposer says."""
        return seconds_of(self._engine.proposer, proposal.content.request)

    def propose(self, proposal: Proposal) -> None:
        """Call the proposer in its workspace, and look at what it changed."""
        work: Work = proposal.content
        proposer = self._engine.proposer
        execution = proposer.invoke(proposer.prepare(work.request))
        if not self._lockstep:
            for path in (execution.stdout_path, execution.stderr_path):
                tidy_output(path)
        work.result = proposer.collect(execution)
        self._take_in(proposal)

    def _take_in(self, proposal: Proposal) -> None:
        """Write down what differs from the parent."""
        work: Work = proposal.content
        count = files.take_in(self._store, work.parent, work.candidate, work.result)
        proposal.artifact = texts_of(work.candidate.workspace_dir, list(work.result.changed_files))
        proposal.feedback = without_secrets(str(work.result.summary))
        proposal.refused = self._refused(work, count)

    def _refused(self, work: Work, count: int) -> str:
        """Why the host goes no further with a candidate; empty if it does."""
        candidate, parent, result = work.candidate, work.parent, work.result
        violations = self._engine._scope_violations(result.changed_files) if result.applied else []
        if result.applied and not violations and count:
            return ""
        candidate.valid, candidate.search_objective, candidate.objective = False, NOTHING, NOTHING
        if not result.applied:
            candidate.outcome = self._engine._classify_failed_proposal(result)
            candidate.outcome_summary = result.summary
        elif violations:
            candidate.outcome, candidate.scope_violation_paths = "scope-violation", violations
            candidate.outcome_summary = f"Changed files outside the allowed write scope: {', '.join(violations)}"
        else:
            files.inherit(candidate, parent)
            candidate.outcome = "no-change"
            candidate.outcome_summary = "No workspace changes detected relative to the parent candidate."
        return str(candidate.outcome_summary or candidate.outcome)

    # -- checks and evaluations -------------------------------------------------------------------------------------

    def checks(self, proposal: Proposal) -> Sequence[Job]:
        """The host's validation of a candidate."""
        return self._validation(proposal.content.candidate)

    def _validation(self, candidate: Any) -> Sequence[Job]:
        call = partial(self._domain.validate, candidate.workspace_dir)
        return [Job(call, key=resume.key("validation", candidate))]

    def _checked(self, work: Work, validation: Any) -> bool:
        work.candidate.valid = validation.ok
        self._store.write_validation_result(work.candidate.candidate_id, validation)
        return bool(validation.ok)

    def jobs(self, proposal: Proposal, checked: Sequence[Any]) -> Sequence[Job]:
        """The host's evaluation of a candidate, in as many jobs as the evaluator can split it into."""
        work: Work = proposal.content
        if self._checked(work, checked[0]):
            return self._jobs(work)
        candidate = work.candidate
        candidate.search_objective = candidate.objective = NOTHING
        candidate.outcome, candidate.outcome_summary = "discard", checked[0].summary
        proposal.refused = str(checked[0].summary or "the validation failed")
        return ()

    def _jobs(self, work: Work) -> Sequence[Job]:
        jobs, work.evaluation = jobs_of(self._domain, work.candidate.workspace_dir)
        return [replace(each, key=resume.key(f"job {n}", work.candidate), name=n) for n, each in enumerate(jobs)]

    def _take_evaluation(self, work: Work, results: Sequence[Any]) -> None:
        candidate = work.candidate
        assert work.evaluation is not None  # noqa: S101 - there are results of its jobs
        evaluation = work.evaluation(results)
        self._store.write_search_evaluation_result(candidate.candidate_id, evaluation)
        if work.parent is not None:
            self._store.write_change_attribution(
                parent=work.parent, candidate=candidate, candidate_evaluation=evaluation
            )
        candidate.search_objective = candidate.objective = evaluation.objective
        candidate.search_metrics = dict(evaluation.metrics)

    # -- the host's state -------------------------------------------------------------------------------------------

    def commit(self, proposal: Proposal, results: Sequence[Any]) -> Ending:
        """Write a candidate down; once those that compete are there, choose what is made from next."""
        work: Work = proposal.content
        candidate, before = work.candidate, self._best
        if results:
            self._take_evaluation(work, results)
            candidate.outcome, candidate.outcome_summary = "unknown", ""
        self._write(candidate)
        self._group.append(candidate)
        if len(self._group) >= self._size:
            self._choose(self._group, work.parent)
            self._group = []
        if not self._lockstep:
            self._write_indexes()
        if self._best is not before:
            return Ending(Terminal.COMMITTED, score=float(self._best.search_objective))
        reason = f"{candidate.candidate_id}: {candidate.outcome_summary or candidate.outcome}"
        return Ending(Terminal.REJECTED, reason, broken=candidate.outcome in ("crash", "timeout"))

    def _choose(self, group: Sequence[Any], parent: Any) -> None:
        engine, best = self._engine, self._best
        selected = engine._select_next_parent(parent=best, batch=group)
        if selected is not best:
            selected.outcome, selected.outcome_summary = "keep", engine._keep_summary(best, selected)
            self._store.write_candidate_manifest(selected)
            self._best = selected
        for candidate in group:
            if candidate is selected or not candidate.valid:
                continue
            if candidate.outcome not in ("crash", "timeout", "scope-violation", "no-change"):
                candidate.outcome = "discard"
                candidate.outcome_summary = engine._discard_summary(parent, candidate)
                self._store.write_candidate_manifest(candidate)

    def end(self, proposal: Proposal, terminal: Terminal, reason: str) -> None:
        """Write a candidate down that was not evaluated to the end."""
        candidate = proposal.content.candidate
        candidate.valid, candidate.search_objective, candidate.objective = False, NOTHING, NOTHING
        outcomes = {Terminal.DISCARDED: "discard", Terminal.REJECTED: "discard", Terminal.FAILED: "crash"}
        candidate.outcome, candidate.outcome_summary = outcomes.get(terminal, "unknown"), reason
        if not self._lockstep:
            self._write(candidate)
            self._write_indexes()

    def _write(self, candidate: Any) -> None:
        self._store.write_candidate_manifest(candidate)
        self._records.append(candidate)

    def _write_indexes(self) -> None:
        best, store = self._best, self._store
        self._frontier = self._engine._rank_run_frontier(self._records)
        store.write_frontier(self._frontier)
        store.write_index(
            {
                "best_candidate_id": best.candidate_id,
                "best_objective": best.objective,
                "candidates": [each.candidate_id for each in self._records],
                "frontier_candidate_ids": [each.candidate_id for each in self._frontier],
                "completed_at": datetime.now(timezone.utc).isoformat(),
            }
        )

    # -- the end ----------------------------------------------------------------------------------------------------

    def last(self) -> Sequence[Job]:
        """The held-out tests of the frontier."""
        self._frontier = self._engine._rank_run_frontier(self._records)
        if not has_tests(self._domain):
            return ()
        return [
            Job(partial(self._domain.evaluate_test, each.workspace_dir), key=resume.key("test", each))
            for each in self._frontier
        ]

    def take_last(self, results: Sequence[Any]) -> None:
        """Write the held-out tests down."""
        for candidate, result in zip(self._frontier, results, strict=True):
            if isinstance(result, Exception):
                if self._lockstep:
                    raise result
                logger.warning("The held-out test of %s failed (%s).", candidate.candidate_id, type(result).__name__)
            elif result is not None:
                self._store.write_test_evaluation_result(candidate.candidate_id, result)
                candidate.test_valid = True
                candidate.test_objective, candidate.test_metrics = result.objective, dict(result.metrics)

    def close(self, *, whole: bool) -> None:
        """Write every manifest and the indexes, as they are read by the host's own commands."""
        if self._best is None or (self._lockstep and not whole):
            return
        self._frontier = self._engine._rank_run_frontier(self._records)
        for candidate in self._records:
            self._store.write_candidate_manifest(candidate)
        self._write_indexes()

    def result(self) -> Any:
        """The host's ``OptimizeResult``."""
        from metaharness.models import OptimizeResult  # noqa: PLC0415 - the host

        best = self._best
        return OptimizeResult(
            run_dir=self._engine.run_dir,
            run_id=self._store.run_id,
            best_candidate_id=best.candidate_id,
            best_workspace_dir=best.workspace_dir,
            best_objective=NOTHING if best.objective is None else best.objective,
            candidate_ids=[each.candidate_id for each in self._records],
            frontier_candidate_ids=[each.candidate_id for each in self._frontier],
        )
