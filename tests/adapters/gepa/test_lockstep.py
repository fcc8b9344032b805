"""Lockstep is the host's own run, through the Scheduler and the driver."""

import logging
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from flashevolve_plugins._driver import Driver
from flashevolve_plugins.adapters.gepa.lockstep import _Lockstep

SEEDS = range(6)  # tests/compatibility has more, and every option
MERGES = {"use_merge": True, "calls": 260, "max_merge_invocations": 20}


def both(kit, *, clock="virtual", adapter=None, **options):
    """The host's run and the lockstep run of the same task; every option that holds state is made for each."""
    made = [{key: each() if callable(each) else each for key, each in options.items()} for _ in range(2)]
    host = kit.run(None, adapter=(adapter or kit.Words)(), **made[0])
    flash = kit.run(kit.flash(lockstep=True, clock=clock), adapter=(adapter or kit.Words)(), **made[1])
    return host, flash


@pytest.mark.parametrize("seed", SEEDS)
def test_lockstep_equals_the_host_with_default_options(kit, dispatch, seed):
    host, flash = both(kit, seed=seed, clock="local" if seed % 3 == 0 else "virtual")
    kit.assert_same(host, flash)
    kit.assert_dispatched(flash, dispatch)


@pytest.mark.parametrize("seed", SEEDS)
def test_lockstep_equals_the_host_with_merges(kit, dispatch, seed):
    host, flash = both(kit, seed=seed, seed_candidate=kit.TWO, **MERGES)
    kit.assert_same(host, flash)
    kit.assert_dispatched(flash, dispatch)


def test_the_compared_runs_contain_merges_of_both_ends_and_the_host_s_overshoot(kit):
    runs = [kit.run(None, seed=seed, seed_candidate=kit.TWO, **MERGES) for seed in range(10)]
    names = [name for run in runs for name in run.callbacks.names]
    assert names.count("on_merge_accepted") > 1
    assert names.count("on_merge_rejected") > 0
    assert max(run.result.total_metric_calls for run in runs) > MERGES["calls"]


@pytest.mark.parametrize("first", ["host", "flash"])
def test_a_lockstep_run_and_a_host_run_resume_each_other(kit, tmp_path, first):
    executors = {"host": None, "flash": kit.flash(lockstep=True)}
    plain = kit.run(None, run_dir=str(tmp_path / "plain"), calls=80)
    plain = kit.run(None, run_dir=str(tmp_path / "plain"), calls=200)
    second = "flash" if first == "host" else "host"
    kit.run(executors[first], run_dir=str(tmp_path / "mixed"), calls=80)
    mixed = kit.run(executors[second], run_dir=str(tmp_path / "mixed"), calls=200)
    assert mixed.result.candidates == plain.result.candidates
    assert mixed.result.total_metric_calls == plain.result.total_metric_calls
    assert mixed.lines == plain.lines


# -- what may stand where an object of the host's usual kind stands ----------------------------------------------------


def test_lockstep_takes_strategies_of_any_make(kit):
    def chosen(proposals, state, criterion):
        return [each for each in proposals if criterion.should_accept(each, state)]

    slotted = type("Slotted", (), {"__slots__": (), "select": staticmethod(chosen)})
    for make in (lambda: SimpleNamespace(select=chosen), slotted):
        host, flash = both(kit, selection_strategy=make, calls=80)
        kit.assert_same(host, flash)


# -- the comparison itself ---------------------------------------------------------------------------------------------


def test_an_evaluation_outside_the_scheduler_is_noticed(kit, dispatch, monkeypatch):
    monkeypatch.setattr(_Lockstep, "_rollout_or_gate", lambda self, function, items: function(items))
    host, flash = both(kit)
    kit.assert_same(host, flash)  # the results alone do not show it
    with pytest.raises(AssertionError, match="outside the Scheduler"):
        kit.assert_dispatched(flash, dispatch)


def drop_last_example(self, function, items, original=_Lockstep._rollout_or_gate):
    if self._rollout_done:
        items = [(candidate, batch[:-1] + batch[:1]) for candidate, batch in items]
    return original(self, function, items)


def count_one_more(self, state, original=_Lockstep._should_stop):
    if self._state is None:
        state.total_num_evals += 1
    return original(self, state)


def skip_one_random_number(self, state, original=_Lockstep._should_stop):
    if self._state is None:
        self._host.reflective_proposer.candidate_selector.rng.random()
    return original(self, state)


@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("_rollout_or_gate", drop_last_example),
        ("_should_stop", count_one_more),
        ("_should_stop", skip_one_random_number),
    ],
)
def test_a_planted_off_by_one_is_noticed(kit, monkeypatch, name, planted):
    monkeypatch.setattr(_Lockstep, name, planted)
    host, flash = both(kit)
    with pytest.raises(AssertionError, match="differ"):
        kit.assert_same(host, flash)


def test_a_dropped_sample_is_noticed(kit, monkeypatch):
    original, dropped = Driver.run_host_stage, []

    def drop_one(self, item, stage, **words):
        results = original(self, item, stage, **words)
        if stage.name == "gate" and not dropped:
            dropped.append(results[0][0].scores.pop())
        return results

    monkeypatch.setattr(Driver, "run_host_stage", drop_one)
    host, flash = both(kit)
    with pytest.raises(AssertionError, match="differ"):
        kit.assert_same(host, flash)


# -- lockstep's own statistics -----------------------------------------------------------------------------------------


def test_the_last_statistics_of_a_lockstep_run_agree_with_its_result(kit):
    flash = kit.run(kit.flash(lockstep=True), use_merge=True)
    assert flash.last.spent == flash.result.total_metric_calls
    assert flash.last.version == len(flash.result.candidates)
    assert flash.last.accepted == len(flash.result.candidates) - 1
    assert flash.last.best_score == max(flash.result.val_aggregate_scores)
    assert set(flash.last.slots.values()) == {1}


def test_the_last_statistics_of_a_lockstep_run_count_as_the_adapter_does(kit):
    class Counting(kit.Words):
        def evaluate(self, batch, candidate, capture_traces=False):
            evaluation = super().evaluate(batch, candidate, capture_traces)
            evaluation.num_metric_calls = 2 * len(batch)
            return evaluation

    host, flash = both(kit, adapter=Counting)
    kit.assert_same(host, flash)
    assert flash.last.spent == flash.result.total_metric_calls


def test_lockstep_runs_mocks(kit):
    """As in the host's own tests: a mock answers to any declaration."""
    inner = kit.Words()
    adapter = MagicMock()
    adapter.evaluate.side_effect, adapter.make_reflective_dataset.side_effect = (
        inner.evaluate,
        inner.make_reflective_dataset,
    )
    adapter.propose_new_texts = adapter.batch_evaluate = None
    adapter.get_adapter_state.return_value = {}
    flash = kit.run(kit.flash(lockstep=True, clock="local"), adapter=adapter, calls=60)
    assert flash.result.total_metric_calls == inner.calls >= 60


def test_lockstep_says_nothing_about_what_an_adapter_can_do_at_once(kit, caplog):
    caplog.set_level(logging.WARNING, "flashevolve_plugins")
    adapter = kit.Words()
    adapter.flashevolve_evaluate = None
    kit.run(kit.flash(lockstep=True), adapter=adapter, calls=60)
    assert caplog.messages == []
