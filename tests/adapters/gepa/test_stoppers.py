"""The host's stoppers, asked once per offer with live counts."""

import itertools

import pytest
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
    signals = SignalStopper(signals=[])
    signals._stop_requested = True
    assert offered(kit.run(kit.flash(), calls=None, stop_callbacks=signals)) == 0


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
