"""The host's stoppers, asked once per offer with live counts."""

import itertools

import pytest
from gepa.core.state import GEPAState
from gepa.utils import (
    CompositeStopper,
    FileStopper,
    MaxCandidateProposalsStopper,
    MaxMetricCallsStopper,
    NoImprovementStopper,
    ScoreThresholdStopper,
    SignalStopper,
    TimeoutStopCondition,
    stop_condition,
)
from gepa.utils.stop_condition import MaxReflectionCostStopper, MaxTrackedCandidatesStopper

from flashevolve_plugins import RunStopped


class Asked:
    """Keeps what it saw, and stops at the given call."""

    def __init__(self, stop_at=None):
        self.seen, self.stop_at = [], stop_at

    def __call__(self, state):
        self.seen.append((state.i, state.total_num_evals, len(state.program_candidates)))
        return self.stop_at is not None and len(self.seen) >= self.stop_at


def offered(run):
    """Items that were offered: every one has its iteration."""
    return run.callbacks.names.count("on_iteration_start")


def test_a_stopper_is_asked_once_per_offer_with_the_host_s_iteration_numbers(kit):
    stopper = Asked()
    run = kit.run(kit.flash(max_concurrency=20), stop_callbacks=stopper, calls=300)
    assert [i for i, *_ in stopper.seen] == list(range(-1, offered(run) - 1))
    kit.check(run, 300)


def test_a_stopper_sees_what_is_spent_and_promised(kit):
    stopper = Asked()
    kit.run(kit.flash(max_concurrency=20), stop_callbacks=stopper, calls=300)
    spent = [each for _, each, _ in stopper.seen]
    assert spent[:4] == [10, 13, 16, 19]  # three rollouts of each item under way
    assert max(spent) <= 300 - 16


def test_after_a_stopper_s_yes_nothing_is_offered_and_nothing_is_asked(kit):
    stopper = Asked(stop_at=6)
    run = kit.run(kit.flash(max_concurrency=20), stop_callbacks=stopper, calls=300)
    assert offered(run) == 5
    assert len(stopper.seen) == 6
    assert sum(run.last.ended.values()) == 5  # what was under way came to its end
    kit.check(run, 300)


def test_a_stopper_that_stops_at_once_leaves_the_seed(kit):
    run = kit.run(kit.flash(), stop_callbacks=Asked(stop_at=1))
    assert run.result.total_metric_calls == 10
    assert run.result.candidates == [kit.ONE]
    kit.check(run, 150)


@pytest.mark.parametrize("slots", [1, 8, 100])
def test_proposals_are_counted_exactly(kit, slots):
    run = kit.run(kit.flash(max_concurrency=slots), calls=None, stop_callbacks=MaxCandidateProposalsStopper(9))
    assert offered(run) == 9
    kit.check(run)
    assert run.last.budget is None


def test_a_run_without_max_metric_calls_ends_by_its_stopper_alone(kit):
    run = kit.run(kit.flash(), calls=None, stop_callbacks=ScoreThresholdStopper(0.5))
    assert max(run.result.val_aggregate_scores) >= 0.5
    kit.check(run)


def test_a_timeout_stops_the_offers(kit, monkeypatch):
    clock = itertools.count(100.0)
    monkeypatch.setattr(stop_condition.time, "time", lambda: next(clock))
    run = kit.run(kit.flash(), calls=None, stop_callbacks=TimeoutStopCondition(7.5))
    monkeypatch.undo()
    assert offered(run) == 7
    kit.check(run)


def test_no_improvement_counts_offers(kit):
    run = kit.run(kit.flash(max_items=1), calls=None, stop_callbacks=NoImprovementStopper(5))
    host = kit.run(None, calls=None, stop_callbacks=NoImprovementStopper(5))
    assert run.result.candidates == host.result.candidates
    kit.check(run)
    wide = kit.run(kit.flash(max_concurrency=50), calls=None, stop_callbacks=NoImprovementStopper(5))
    assert offered(wide) >= 5
    kit.check(wide)


def test_tracked_candidates_stop_the_offers_and_what_is_under_way_comes_to_its_end(kit):
    run = kit.run(kit.flash(max_concurrency=20), calls=None, stop_callbacks=MaxTrackedCandidatesStopper(4))
    assert len(run.result.candidates) >= 4
    kit.check(run)


def test_a_stop_file_stops_the_offers(kit, tmp_path):
    recorder = kit.Callbacks()

    def write(name, event):
        if name == "on_iteration_end" and event["iteration"] == 3:
            (tmp_path / "gepa.stop").touch()

    recorder.watchers.append(write)
    run = kit.run(kit.flash(max_concurrency=4), calls=3000, recorder=recorder, run_dir=str(tmp_path))
    assert 3 <= offered(run) < 12
    kit.check(run, 3000)
    file = kit.run(kit.flash(), calls=None, stop_callbacks=[FileStopper(str(tmp_path / "gepa.stop"))])
    assert offered(file) == 0


def test_the_remaining_stoppers_of_the_host_are_asked_too(kit):
    class Spending(kit.Reflection):
        @property
        def total_cost(self):
            return 0.1 * self.calls

    reflection = Spending()
    run = kit.run(
        kit.flash(max_items=1),
        reflection=reflection,
        calls=None,
        stop_callbacks=MaxReflectionCostStopper(0.45, reflection),
    )
    assert run.reflections == 5
    signals = SignalStopper()
    try:
        signals._stop_requested = True
        assert offered(kit.run(kit.flash(), calls=None, stop_callbacks=signals)) == 0
    finally:
        signals.cleanup()  # else it would take every later Ctrl-C


def test_a_nested_composition_is_asked_as_a_whole(kit):
    inner = CompositeStopper(MaxCandidateProposalsStopper(6), MaxMetricCallsStopper(400))
    run = kit.run(kit.flash(), calls=300, stop_callbacks=inner)
    assert offered(run) == 6
    assert run.last.budget == 300
    kit.check(run, 300)


@pytest.mark.parametrize("lockstep", [False, True], ids=["flash", "lockstep"])
def test_a_requested_stop_ends_the_run_with_what_is_under_way_told(kit, lockstep):
    recorder, engines = kit.Callbacks(), []

    def ask(name, event):
        if name == "on_iteration_end" and event["iteration"] == 4:
            engines[0].request_stop()

    recorder.watchers.append(ask)
    flash = kit.flash(max_concurrency=6, lockstep=lockstep)
    run = kit.run(flash, calls=3000, recorder=recorder, on_engine=engines.append)
    assert sum("Stop requested manually" in line for line in run.lines) == 1
    assert 4 <= offered(run) < 12
    assert run.callbacks.names[-1] == "on_optimization_end"
    assert run.result.total_metric_calls == run.adapter.calls
    if not lockstep:
        kit.check(run, 3000)


def test_a_stopper_that_raises_ends_the_run_as_the_host_s(kit):
    def stopper(state):
        if state.i == 3:
            raise ZeroDivisionError("the stopper")
        return False

    for executor in (None, kit.flash()):
        run = kit.run(executor, stop_callbacks=stopper, raise_on_exception=False, catch=True)
        assert type(run.error) is ZeroDivisionError


# -- our own ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [6, 9, 13.5, 20, 31])
@pytest.mark.parametrize("policy", ["guarded", "merge"])
def test_a_deadline_ends_the_run_with_everything_told_and_counted(kit, seconds, policy, tmp_path):
    flash = kit.flash(max_concurrency=6, max_seconds=seconds, staleness=policy)
    run = kit.run(flash, calls=3000, run_dir=str(tmp_path))
    kit.check(run, 3000)
    assert run.result.total_metric_calls == run.adapter.calls
    assert run.callbacks.names[-1] == "on_optimization_end"
    assert seconds <= run.last.seconds < seconds + 10
    assert run.last.ended["cancelled"] > 0


def test_without_a_directory_the_run_ends_as_soon_as_what_is_validated_is(kit):
    run = kit.run(kit.flash(max_concurrency=6, max_seconds=9), calls=3000)
    kit.check(run, 3000)
    assert run.last.seconds < 9 + 4  # a validation of ten examples in six slots


def test_a_score_that_is_reached_ends_the_run(kit):
    run = kit.run(kit.flash(stop_score=0.5), calls=3000)
    assert max(run.result.val_aggregate_scores) >= 0.5
    assert run.result.total_metric_calls < 1000
    kit.check(run, 3000)


def test_the_error_carries_the_best_once_everything_is_saved(kit, tmp_path):
    flash = kit.flash(max_seconds=20, on_stop="raise")
    run = kit.run(flash, calls=3000, run_dir=str(tmp_path), catch=True)
    state = GEPAState.load(str(tmp_path))
    scores = state.program_full_scores_val_set
    best = scores.index(max(scores))
    assert type(run.error) is RunStopped
    assert (run.error.best, run.error.score) == (state.program_candidates[best], scores[best])
    assert (run.error.run_dir, run.error.reason) == (str(tmp_path), "max_seconds=20 are over")
    assert state.total_num_evals == run.adapter.calls
    assert run.callbacks.names[-1] == "on_optimization_end"


def test_a_run_that_ends_by_its_budget_or_its_host_raises_nothing(kit):
    for options in ({"calls": 100}, {"calls": 3000, "stop_callbacks": Asked(stop_at=4)}):
        run = kit.run(kit.flash(max_seconds=1e6, on_stop="raise"), **options)
        assert run.result is not None


def test_a_stop_before_the_seed_is_validated_raises_and_spends_no_more(kit):
    run = kit.run(kit.flash(max_concurrency=1, max_seconds=3, grace=2), calls=3000, catch=True)
    assert type(run.error) is RunStopped
    assert run.error.best is None
    assert 2 <= run.adapter.calls <= 5


def test_a_resumed_run_that_is_stopped_at_once_gives_its_result_back(kit, tmp_path):
    first = kit.run(kit.flash(), run_dir=str(tmp_path))
    (tmp_path / "flashevolve.stop").touch()
    again = kit.run(kit.flash(), run_dir=str(tmp_path), calls=3000)
    assert again.result.candidates == first.result.candidates
    assert again.adapter.calls == 0
    assert not (tmp_path / "flashevolve.stop").exists()
