"""Lockstep is the host's own run, through the Scheduler and the driver."""

import dataclasses
import logging
from functools import partial
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from gepa.proposer.reflective_mutation.reflection_lm import ReflectionProposal
from gepa.strategies.eval_policy import FullEvaluationPolicy
from gepa.strategies.proposal_sampling import IndependentSampling, PxNSampling, SameParentSampling
from gepa.strategies.proposal_selection import AllImprovements, BestImprovement, TopKImprovements
from gepa.utils import MaxCandidateProposalsStopper, NoImprovementStopper, ScoreThresholdStopper

from flashevolve_plugins._driver import Driver
from flashevolve_plugins.adapters.gepa.lockstep import _Lockstep

SEEDS = range(30)
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


class Wordy:
    """A custom component selector with a state of its own."""

    def __init__(self):
        self.asked = 0

    def __call__(self, state, trajectories, scores, index, candidate):
        self.asked += 1
        return [sorted(candidate)[self.asked % len(candidate)]]


class Second(AllImprovements):
    """A custom selection strategy: the last of what passes."""

    def select(self, proposals, state, criterion):
        return super().select(proposals, state, criterion)[-1:]


class Halves(FullEvaluationPolicy):
    """Validates on a half only, the other half each time."""

    def get_eval_batch(self, loader, state, target_program_idx=None):
        return list(loader.all_ids())[len(state.program_candidates) % 2 :: 2]


class Chain:
    """A stateful reflector: every reflection knows how many there were."""

    def __init__(self, count=0):
        self.count = count

    def reflect(self, candidate, dataset, components):
        words = {name: f"{candidate[name].split()[-1]} w{self.count % 5} ant bee" for name in components}
        return ReflectionProposal(words, metadata={"count": self.count}), Chain(self.count + 1)


def propose(words, candidate, dataset, components):
    return {name: f"{candidate[name]} {words[len(candidate[name]) % len(words)]}" for name in components}


MATRIX = {
    "current best": {"candidate_selection_strategy": "current_best"},
    "epsilon greedy": {"candidate_selection_strategy": "epsilon_greedy"},
    "top k": {"candidate_selection_strategy": "top_k_pareto"},
    "all components": {"module_selector": "all"},
    "own component selector": {"module_selector": Wordy},
    "cache": {"cache_evaluation": True},
    "cache and merges": {"cache_evaluation": True, **MERGES},
    "perfect scores count": {"skip_perfect_score": False},
    "half is perfect": {"perfect_score": 0.5},
    "same parent": {"sampling_strategy": lambda: SameParentSampling(2)},
    "independent, best": {"sampling_strategy": lambda: IndependentSampling(3), "selection_strategy": BestImprovement},
    "PxN, top k": {
        "sampling_strategy": lambda: PxNSampling(2, 2),
        "selection_strategy": lambda: TopKImprovements(2),
    },
    "own selection": {"sampling_strategy": lambda: PxNSampling(2, 2), "selection_strategy": Second},
    "improvement or equal": {"acceptance_criterion": "improvement_or_equal"},
    "frontier objective": {"frontier_type": "objective"},
    "frontier hybrid": {"frontier_type": "hybrid"},
    "frontier cartesian": {"frontier_type": "cartesian"},
    "partial validation": {"val_evaluation_policy": Halves, **MERGES, "merge_val_overlap_floor": 2},
    "stateful reflection": {"reflection_strategy": Chain},
    "own proposer": {"custom_candidate_proposer": lambda: partial(propose, ["ant", "bee", "cat", "doe"])},
    "no valset": {"valset": None},
    "minibatch of one": {"reflection_minibatch_size": 1},
    "minibatch larger than the trainset": {"reflection_minibatch_size": 5, "trainset": [1, 2]},
    "proposals stopper": {"stop_callbacks": lambda: [MaxCandidateProposalsStopper(7)], "calls": None},
    "no improvement": {"stop_callbacks": lambda: [NoImprovementStopper(4)], "calls": 400},
    "score threshold": {"stop_callbacks": lambda: ScoreThresholdStopper(0.5), "calls": None},
}


@pytest.mark.parametrize("options", MATRIX.values(), ids=MATRIX)
def test_lockstep_equals_the_host_with_every_option(kit, options):
    for seed in range(2):
        host, flash = both(kit, seed=seed, **{"seed_candidate": kit.TWO, **options})
        kit.assert_same(host, flash)
        assert len(host.result.candidates) > 1


@pytest.mark.parametrize("seed", range(4))
def test_lockstep_equals_the_host_where_the_adapter_evaluates_pairs_in_one_call(kit, dispatch, seed):
    adapter = type("Pairs", (kit.Batched, kit.Words), {})
    host, flash = both(
        kit, seed=seed, adapter=adapter, sampling_strategy=lambda: PxNSampling(2, 2), seed_candidate=kit.TWO
    )
    kit.assert_same(host, flash)
    assert flash.adapter.outside == 0


def test_lockstep_equals_the_host_with_data_loaders_of_their_own_ids(kit):
    for seed in range(3):
        host, flash = both(
            kit,
            seed=seed,
            seed_candidate=kit.TWO,
            trainset=lambda: kit.Named(range(12), "t"),
            valset=lambda: kit.Named(range(100, 110), "v"),
        )
        kit.assert_same(host, flash)


RAISING = {
    "evaluate": {"evaluate": lambda number: number % 5 == 3},
    "dataset": {"dataset": lambda number: number % 3 == 0},
    "every dataset but one": {"dataset": lambda number: number != 2},
}


@pytest.mark.parametrize("errors", RAISING.values(), ids=RAISING)
@pytest.mark.parametrize("raising", [False, True], ids=["goes on", "raises"])
def test_lockstep_equals_the_host_where_the_adapter_raises(kit, errors, raising):
    adapter = partial(failing, kit.Words, errors)
    options = {"raise_on_exception": raising, "catch": True, "adapter": adapter, "sampling_strategy": twice}
    host, flash = both(kit, stop_callbacks=lambda: MaxCandidateProposalsStopper(15), **options)
    assert kit.frozen(host.error) == kit.frozen(flash.error)
    if host.error is None:
        kit.assert_same(host, flash)
    else:
        assert host.events == flash.events
        assert host.tracked == flash.tracked
        assert host.evaluated == flash.evaluated


def twice():
    return IndependentSampling(2)


def failing(kind, errors):
    adapter = kind()
    adapter.errors = errors
    return adapter


def test_lockstep_equals_the_host_where_the_reflection_raises(kit):
    def unreliable():
        reflection = kit.Reflection()
        reflection.errors = lambda number: number % 5 in {1, 2, 3}
        return reflection

    host, flash = both(kit, reflection=unreliable, sampling_strategy=twice)
    kit.assert_same(host, flash)
    assert any("Per-task reflection failed" in line for line in host.lines)


def test_lockstep_writes_the_host_s_files(kit, tmp_path):
    hosts, flashs = tmp_path / "host", tmp_path / "flash"
    kwargs = {"use_merge": True, "seed_candidate": kit.TWO, "track_best_outputs": True}
    kit.run(None, run_dir=str(hosts), **kwargs)
    kit.run(kit.flash(lockstep=True), run_dir=str(flashs), **kwargs)
    files = [{each.relative_to(root): each for each in root.rglob("*") if each.is_file()} for root in (hosts, flashs)]
    assert set(files[0]) == set(files[1])
    for name, each in files[0].items():
        if each.suffix == ".json":
            assert each.read_text() == files[1][name].read_text(), name


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


@dataclasses.dataclass(frozen=True)
class Slotted:
    """An adapter without an instance dictionary."""

    __slots__ = ("evaluate", "make_reflective_dataset", "propose_new_texts")

    def __init__(self, inner):
        object.__setattr__(self, "evaluate", inner.evaluate)
        object.__setattr__(self, "make_reflective_dataset", inner.make_reflective_dataset)
        object.__setattr__(self, "propose_new_texts", None)


def namespace(inner):
    return SimpleNamespace(
        evaluate=inner.evaluate, make_reflective_dataset=inner.make_reflective_dataset, propose_new_texts=None
    )


@pytest.mark.parametrize("wrap", [Slotted, namespace], ids=["slots", "namespace"])
def test_lockstep_takes_adapters_of_any_make(kit, wrap):
    host, flash = both(kit, adapter=lambda: wrap(kit.Words()), calls=80)
    kit.assert_same(host, flash)


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
