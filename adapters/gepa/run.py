"""Runs a host's engine under flash: in lockstep, or with full slots."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._audit import with_item_file
from flashevolve_plugins._best_file import with_best_file
from flashevolve_plugins._connection import require_connections
from flashevolve_plugins._decisions import JUDGE, Reflector
from flashevolve_plugins._errors import BackendError, FlashEvolveError
from flashevolve_plugins._event_loop import EventLoop
from flashevolve_plugins._model import Limits, Stage, Terminal
from flashevolve_plugins._pool import Pool
from flashevolve_plugins._redact import register_secrets_of
from flashevolve_plugins._stopping import Stopping
from flashevolve_plugins.adapters.gepa.bookkeeping import Bookkeeping
from flashevolve_plugins.adapters.gepa.budget import max_metric_calls, require_budget, resumes
from flashevolve_plugins.adapters.gepa.console import quiet_console
from flashevolve_plugins.adapters.gepa.early import may_offer_early
from flashevolve_plugins.adapters.gepa.evaluation import evaluator_for, logger
from flashevolve_plugins.adapters.gepa.items import LOCAL, REFLECTION, STAGES, TASK
from flashevolve_plugins.adapters.gepa.keeping import question
from flashevolve_plugins.adapters.gepa.lockstep import run_in_lockstep
from flashevolve_plugins.adapters.gepa.overlay import overlay
from flashevolve_plugins.adapters.gepa.recording import EndOfRecording
from flashevolve_plugins.adapters.gepa.reflection import asked, may_run_at_once
from flashevolve_plugins.adapters.gepa.replay import SelectionStandIn, proposer_stand_in
from flashevolve_plugins.adapters.gepa.rollouts import warn_of_repetition
from flashevolve_plugins.adapters.gepa.run_dir import opened, unwritable_told
from flashevolve_plugins.adapters.gepa.scores import UsableScores
from flashevolve_plugins.adapters.gepa.session import Session
from flashevolve_plugins.adapters.gepa.shipped import declare_shipped
from flashevolve_plugins.adapters.gepa.validation import ordered

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashevolve_plugins._bodies import Ended
    from flashevolve_plugins._flash import Flash
    from flashevolve_plugins._policies import Ask
    from flashevolve_plugins.adapters.gepa.evaluation import Evaluator
    from flashevolve_plugins.adapters.gepa.recording import Recording
    from flashevolve_plugins.adapters.gepa.taking_up import TakingUp

declare_shipped()


def run_under_flash(engine: Any, host_run: Callable[[Any], Any], flash: Flash) -> Any:
    """Run a ``GEPAEngine``.

    Args:
        engine: the host's engine, ready to run.
        host_run: the host's own ``GEPAEngine.run``.
        flash: the settings.

    Returns:
        The host's final ``GEPAState``.

    Raises:
        UsageError: a budget that cannot pay for the seed and one proposal.
        BackendError: a server that is not there.
        RunStopped: the run was stopped, and is to raise then, or had no result yet.
    """
    evaluator = evaluator_for(engine.adapter, flash.evaluate, at_once=flash.max_concurrency, lockstep=flash.lockstep)
    if flash.run_dir is not None and not flash.lockstep:
        if engine.run_dir is None:
            engine = overlay(engine, {"run_dir": str(flash.run_dir)})  # the host writes its state there, too
        elif str(engine.run_dir) != str(flash.run_dir):
            logger.warning(
                "Flash(run_dir=%r) is not used: the host keeps this run in %r.", str(flash.run_dir), engine.run_dir
            )
    register_secrets_of(engine.adapter, getattr(engine.reflective_proposer, "_reflection_lm", None))
    quiet = quiet_console(engine.logger, evaluator.loggers) if flash.progress else nullcontext()
    if flash.progress:
        engine = overlay(engine, {"display_progress_bar": False})
    with Stopping(flash, engine.run_dir, drain=engine.run_dir is not None) as stopping:
        with quiet, EventLoop() as loop, evaluator.running(loop):
            state = _run(engine, host_run, flash, evaluator, _Around(stopping, loop))
        stopping.require_none(lambda: best_of(engine, state))
        return state


def best_of(engine: Any, state: Any) -> tuple[dict[str, str], float]:
    """The host's best candidate, and its validation score."""
    policy = engine.val_evaluation_policy
    best = policy.get_best_program(state)
    return state.program_candidates[best], float(policy.get_valset_score(best, state))


@dataclass(frozen=True)
class _Around:
    """What a run has around it: what may stop it, and where it awaits."""

    stopping: Stopping
    loop: EventLoop


def _run(engine: Any, host_run: Callable[[Any], Any], flash: Flash, evaluator: Evaluator, around: _Around) -> Any:
    if flash.check_connection:
        require_connections(evaluator.urls)
    if flash.lockstep:
        return run_in_lockstep(engine, host_run, flash, evaluator)
    budget = require_budget(engine, evaluator.calls_per_example, flash.rollouts)
    warn_of_repetition(evaluator, engine.adapter, flash.rollouts)
    limit = max_metric_calls(engine)
    slots = flash.max_concurrency or evaluator.slots
    limits = Limits(
        slots={
            TASK: 1 if evaluator.granularity == "serial" else slots,
            REFLECTION: _reflection_slots(engine, flash, evaluator, slots),
            LOCAL: slots if evaluator.concurrent_datasets else 1,
        },
        stages=STAGES,
        entry=TASK,
        budget=None if limit is None else max(limit, budget.least),  # a resumed run validates the seed uncounted
        offer_cost=budget.proposal + budget.validation,
        max_items=flash.max_items,
        may_hold=budget.validation > budget.proposal,  # a cheap validation is not worth waiting to share it
        examples=budget.seed // flash.rollouts,
    )
    scores = UsableScores(evaluator, engine.adapter)
    with unwritable_told(engine.run_dir), opened(engine, evaluator, flash) as kept:
        recording = with_item_file(flash, engine.run_dir, host=f"gepa, {type(engine.adapter).__name__}")
        known = () if kept is None else kept.candidates
        observed = with_best_file(recording, engine.run_dir, lambda: driver.scheduler.ledger.spent, known)
        speculate = budget.favour_speculation(limit, limits.slots[TASK])
        driver = observed.open_driver(limits, pool=Pool(), speculate=speculate)
        driver.loop, stopping = around.loop, around.stopping
        driver.feedback_calls = lambda: evaluator.feedback_calls
        try:
            with driver:
                stopping.watch(driver)
                session = Session(engine, scores.evaluator, driver, budget, kept)
                session.rollouts = flash.rollouts
                session.remembers = flash.remember_rejected
                stopping.host_asks = lambda: session.begun and engine._stop_requested  # the host looks after the seed
                driver.decisions.reflector = Reflector(REFLECTION, _asked(engine, kept), session.seconds(JUDGE))
                return _Run(session, host_run).run()
        finally:
            scores.report()
            flash.last_run = driver.snapshot()


def _asked(engine: Any, kept: TakingUp | None) -> Ask | None:
    """A policy's question, whose answer is kept where the run has a directory."""
    ask = asked(engine)
    return ask if ask is None or kept is None or not kept.with_results else kept.keeper.asking(ask, question)


def _reflection_slots(engine: Any, flash: Flash, evaluator: Evaluator, slots: int) -> int:
    """Reflection calls at once: what the user says, else many only where the host's reflection is known to allow it."""
    if flash.reflection_concurrency is not None:
        return flash.reflection_concurrency
    if engine.adapter.propose_new_texts is not None:
        concurrent = evaluator.concurrent_proposals
    else:
        concurrent = may_run_at_once(engine.reflective_proposer)
    if not concurrent:
        logger.warning(
            "Reflection is called one at a time, since a function or a proposer of your own writes the texts: pass "
            "Flash(reflection_concurrency=%s) if several threads may call it at once.",
            slots,
        )
    return slots if concurrent else 1


class _Run:
    """The host's loop, fed with ended items.

    Args:
        session: the run.
        host_run: the host's own ``GEPAEngine.run``.
    """

    def __init__(self, session: Session, host_run: Callable[[Any], Any]) -> None:
        self._session = session
        self._host_run = host_run
        self._ended: Ended | None = None
        self._spent_before = 0
        session.settle = self._settle
        engine, kept = session.engine, session.kept
        self._bookkeeping = Bookkeeping(engine)
        self._resumes = resumes(engine)
        #: Whether the seed is validated on examples that only the host's policy knows.
        self._chooses_seed = hasattr(engine.val_evaluation_policy, "get_seed_eval_batch")
        if kept is not None:
            session.driver.keeper, session.driver.decisions.regroup = kept.keeper, kept.regroup
            session.driver.scheduler.ledger.earlier = kept.keeper
            self._bookkeeping.saving, self._bookkeeping.saved = kept.keeper.store.flush, kept.keeper.saved
        selection = SelectionStandIn(session, self._current)
        self._engine = overlay(
            engine,
            {
                "reflective_proposer": proposer_stand_in(session, self._current),
                "merge_proposer": session.merges.stand_in(self._current),
                "selection_strategy": selection.selection,
                "acceptance_criterion": selection.acceptance,
                "evaluator": self._evaluate_seed,
                "_should_stop": self._should_stop,
                "_evaluate_programs_on_valset": self._validated,
                "_log_candidate_tree": self._bookkeeping.draw,
                "_report_rejected_proposal": selection.report_rejected,
            },
        )

    def run(self) -> Any:
        """Run to the end and return the host's state."""
        try:
            state = self._host_run(self._engine)
            if self._session.kept is not None:
                self._session.kept.saved_at_the_end()
            return state
        except BaseException as error:
            with suppress(FlashEvolveError):  # what ended the run is more important than what it left behind
                self._session.driver.stop(f"the host raised {type(error).__name__}", cancel=True)
                if self._ended is not None:
                    self._record(failed=error)
            self._keep_what_is_paid()
            if isinstance(error, BackendError) and self._session.begun:
                error.best, error.score = best_of(self._session.engine, self._session.state)
            raise
        finally:
            self._bookkeeping.release()

    def _current(self) -> Recording:
        assert self._ended is not None  # noqa: S101 - the host's loop only runs over ended items
        return self._ended.outcome.payload  # type: ignore[no-any-return]

    def _evaluate_seed(self, batch: list[Any], candidate: dict[str, str]) -> Any:
        """Validate the seed, its examples in as many slots as there are."""
        session = self._session
        item, early = session.driver.host_item(), None
        self._seed_item = item
        if session.kept is not None:
            if session.kept.has_state:  # which has the seed's scores; the host looks at no others
                item.run(Stage("validate", ()))
                return [None] * len(batch), [0.0] * len(batch), None
            session.kept.opened_seed(item.number)
        if session.holds and session.evaluator.offers_early and may_offer_early(session.engine):
            early = partial(session.begin_early, candidate)
        try:
            stage, finish = session.evaluation_stage(
                "validate", [(candidate, batch)], commits=True, capture_traces=False
            )
            if not self._chooses_seed:
                stage, finish = ordered(session, stage, finish, [list(session.engine.valset.all_ids())])
            evaluation = finish(item.run(stage, early))[0]
        except Exception as error:
            item.end(Terminal.FAILED, f"{type(error).__name__}: {error}")
            raise
        self._session.note_calls(evaluation, self._session.rollouts)
        self._session.evaluator.tell(candidate, batch, evaluation, capture_traces=False)
        return evaluation.outputs, evaluation.scores, evaluation.objective_scores

    def _should_stop(self, state: Any) -> bool:
        """Between two iterations of the host's loop: record the item it ran over, and wait for the next to end."""
        session = self._session
        if not session.begun:
            if not self._resumes:  # the host has counted every example of the seed once
                state.total_num_evals *= session.rollouts
            session.begin(state, self._seed_item)
            self._bookkeeping.begin(state)
            session.driver.tick = self._bookkeeping.tick
        if self._ended is not None:
            self._record()
            self._bookkeeping.changed()
        self._ended = session.driver.next_ended()
        self._spent_before = state.total_num_evals
        if self._ended is None:
            session.count_all()
            self._bookkeeping.end()
        return self._ended is None

    def _record(self, failed: BaseException | None = None) -> None:
        if failed is None:
            self._settle()
        ended, self._ended = self._ended, None
        assert ended is not None  # noqa: S101 - asked by the callers
        session = self._session
        if session.kept is not None:
            session.kept.ended(ended.number)  # before anything more is offered
        session.driver.recorded(ended, session.pool_entries(ended.number), failed)
        if session.kept is not None and failed is None:  # else it goes on when the run is taken up
            session.kept.told(ended, session.state)

    def _keep_what_is_paid(self) -> None:
        """The run ends early: let the host's state count what was spent on items that did not end, and save it."""
        engine, state = self._session.engine, self._session.state
        if not self._session.begun:
            return
        self._bookkeeping.end()
        self._session.count_all()
        if engine.run_dir is not None:
            with suppress(Exception):  # the host's own error is being raised
                state.save(engine.run_dir)

    def _settle(self) -> None:
        """Let the host count the metric calls of stages that did not finish: nothing of the item is told after this."""
        ended, state = self._ended, self._session.state
        untold = 0 if ended is None else ended.record.spent - (state.total_num_evals - self._spent_before)
        if untold > 0:
            state.increment_evals(untold)

    def _validated(self, programs: list[dict[str, str]], state: Any) -> list[Any]:
        del state
        try:
            validated = [self._current().take("validated") for _ in programs]
        except EndOfRecording as end:
            self._settle()
            end.reraise()
        for each in validated:
            each.tell()
        return [(each.evaluation, each.cost) for each in validated]
