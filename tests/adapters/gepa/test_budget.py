"""The host's budget: what it is, and what it must be able to pay for before anything is spent."""

import pytest
from gepa.strategies.eval_policy import FullEvaluationPolicy
from gepa.strategies.proposal_sampling import PxNSampling
from gepa.utils import CompositeStopper, MaxCandidateProposalsStopper, MaxMetricCallsStopper, NoImprovementStopper

from flashevolve_plugins import UsageError
from flashevolve_plugins.adapters.gepa.budget import max_metric_calls

LEAST = 10 + 6 + 10  # the seed's validation, a rollout and a gate of three examples each, a validation


def refused(kit, **options):
    """The sentence with which a budget is refused, and the proof that nothing was spent."""
    adapter, reflection = kit.Words(), kit.Reflection()
    with pytest.raises(UsageError) as caught:
        kit.run(kit.flash(), adapter=adapter, reflection=reflection, **options)
    assert adapter.batches == []
    assert reflection.calls == 0
    return str(caught.value)


@pytest.mark.parametrize("calls", [1, 10, LEAST - 1])
def test_a_budget_that_cannot_pay_for_one_proposal_is_refused_before_anything_is_spent(kit, calls):
    sentence = refused(kit, calls=calls)
    assert sentence == (
        f"max_metric_calls={calls} cannot pay for the seed's validation (10), one proposal (6) and its validation "
        f"(10): raise it to at least {LEAST}, or use a smaller valset."
    )


def test_the_least_budget_is_enough_for_one_proposal_and_its_validation(kit):
    for seed in range(4):
        run = kit.run(kit.flash(), calls=LEAST, seed=seed)
        kit.check(run, LEAST)
        assert run.reflections >= 1
    assert len(run.result.candidates) == 2
    assert run.result.total_metric_calls == LEAST


def test_what_a_sampling_call_needs_counts(kit):
    assert "one proposal (24)" in refused(kit, calls=LEAST, sampling_strategy=PxNSampling(2, 2))
    assert "one proposal (10)" in refused(kit, calls=LEAST, reflection_minibatch_size=5)


def test_a_minibatch_that_is_filled_by_repeating_examples_counts_whole(kit):
    assert "one proposal (10)" in refused(kit, calls=LEAST, trainset=[1], reflection_minibatch_size=5)
    run = kit.run(kit.flash(), calls=10 + 10 + 10, trainset=[1], reflection_minibatch_size=5)
    assert run.reflections == 1


def test_a_small_budget_ends_a_resumed_run_with_what_it_had(kit, tmp_path):
    before = kit.run(kit.flash(), run_dir=str(tmp_path))
    after = kit.run(kit.flash(), run_dir=str(tmp_path), calls=0)
    assert after.result.candidates == before.result.candidates
    assert after.result.total_metric_calls == before.result.total_metric_calls
    assert after.reflections == 0


def test_the_seed_is_validated_on_what_its_policy_asks_for(kit):
    class Few(FullEvaluationPolicy):
        def get_seed_eval_batch(self, loader):
            return [0, 1]

    assert "the seed's validation (2)" in refused(kit, calls=8, val_evaluation_policy=Few())


def test_the_refusal_ends_the_host_s_tracker_as_any_error_does(kit):
    run = kit.run(kit.flash(), calls=5, catch=True)
    assert [call[0] for call in run.tracked] == ["enter", "exit"]
    assert run.events == []


@pytest.mark.parametrize("executor", ["host", "lockstep"])
def test_the_host_s_own_budget_is_not_refused_where_the_host_s_own_loop_runs(kit, executor):
    run = kit.run(None if executor == "host" else kit.flash(lockstep=True), calls=5)
    assert run.result.total_metric_calls == 10


COMPOSITIONS = {
    "among others": lambda: [NoImprovementStopper(1000), MaxMetricCallsStopper(90)],
    "nested": lambda: CompositeStopper(CompositeStopper(MaxMetricCallsStopper(90)), NoImprovementStopper(1000)),
    "the least of several": lambda: [MaxMetricCallsStopper(400), MaxMetricCallsStopper(90)],
    "several levels": lambda: CompositeStopper(MaxMetricCallsStopper(90), CompositeStopper(MaxMetricCallsStopper(400))),
}


@pytest.mark.parametrize("stoppers", COMPOSITIONS.values(), ids=COMPOSITIONS)
def test_a_limit_inside_a_composition_is_the_budget(kit, stoppers):
    run = kit.run(kit.flash(max_concurrency=20), calls=None, stop_callbacks=stoppers())
    assert run.last.budget == 90
    kit.check(run, 90)
    assert run.result.total_metric_calls > 90 - 16


def test_a_limit_beside_another_is_refused_too(kit):
    sentence = refused(kit, calls=500, stop_callbacks=[MaxMetricCallsStopper(12)])
    assert sentence.startswith("max_metric_calls=12 cannot pay")


def test_a_limit_that_stops_only_together_with_another_stopper_is_no_budget(kit):
    both = CompositeStopper(MaxMetricCallsStopper(60), MaxCandidateProposalsStopper(12), mode="all")
    run = kit.run(kit.flash(), calls=None, stop_callbacks=both)
    assert run.last.budget is None
    kit.check(run)
    assert run.callbacks.names.count("on_iteration_start") >= 12
    assert run.result.total_metric_calls >= 60
    nested = CompositeStopper(both, NoImprovementStopper(1000))
    assert kit.run(kit.flash(), calls=None, stop_callbacks=nested).last.budget is None


def test_a_small_limit_that_stops_only_together_with_another_is_not_refused(kit):
    both = CompositeStopper(MaxMetricCallsStopper(1), MaxCandidateProposalsStopper(3), mode="all")
    run = kit.run(kit.flash(), calls=None, stop_callbacks=both)
    assert run.callbacks.names.count("on_iteration_start") == 3


def test_stoppers_without_a_limit_and_odd_limits_are_no_budget():
    class Engine:
        stop_callback = None

    def found(stopper):
        Engine.stop_callback = stopper
        return max_metric_calls(Engine)

    assert found(None) is None
    assert found(NoImprovementStopper(3)) is None
    assert found(lambda state: False) is None
    assert found(MaxMetricCallsStopper(7)) == 7
    assert found(CompositeStopper(lambda state: False, MaxMetricCallsStopper(7))) == 7
    assert found(CompositeStopper()) is None
    odd = MaxMetricCallsStopper(7)
    odd.max_metric_calls = "many"
    assert found(odd) is None


def test_every_budget_is_kept_to_the_call(kit):
    """Limits around what one more proposal and validation need, with validations waiting for each other's calls."""
    for calls in range(LEAST, LEAST + 40, 2):
        run = kit.run(kit.flash(max_concurrency=50, staleness="full"), calls=calls)
        kit.check(run, calls)
        assert run.result.total_metric_calls > calls - 16 - 6
