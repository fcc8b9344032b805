"""``Flash(rollouts=...)``: every example several times, the mean its score, and every metric call counted."""

import statistics
import threading
from dataclasses import replace

import pytest
from gepa.core.adapter import EvaluationBatch
from gepa.strategies.proposal_sampling import IndependentSampling

from flashevolve_plugins import Flash, UsageError
from flashevolve_plugins.adapters.gepa.rollouts import mean_of


def batch(*scores, traces="abc", **more):
    return EvaluationBatch(
        outputs=[f"{name}{score}" for name, score in zip(traces, scores, strict=False)],
        scores=list(scores),
        trajectories=[{"score": score} for score in scores],
        **more,
    )


def test_the_score_is_the_mean_and_what_is_shown_is_the_rollout_nearest_to_it():
    mean = mean_of([batch(0.0, 1.0), batch(0.6, 0.0), batch(0.3, 0.8)])
    assert mean.scores == pytest.approx([0.3, 0.6])
    assert mean.outputs == ["a0.3", "b0.8"]
    assert mean.trajectories == [{"score": 0.3}, {"score": 0.8}]
    assert mean.num_metric_calls == 6


def test_of_several_that_are_as_near_the_first_is_shown():
    assert mean_of([batch(1.0), batch(0.0)]).outputs == ["a1.0"]
    assert mean_of([batch(0.0), batch(1.0)]).outputs == ["a0.0"]


def test_traces_that_are_not_one_for_each_example_come_from_one_rollout():
    parts = [batch(0.0, 0.0), batch(0.5, 0.5), batch(1.0, 1.0)]
    parts[2].trajectories = parts[2].trajectories[:1]
    mean = mean_of(parts)
    assert mean.scores == [0.5, 0.5]
    assert mean.outputs == parts[1].outputs
    assert mean.trajectories == parts[1].trajectories


def test_objectives_are_means_and_calls_are_those_of_all():
    one = batch(0.0, objective_scores=[{"x": 1.0, "y": 1.0}], num_metric_calls=3)
    other = batch(1.0, objective_scores=[{"x": 2.0}], num_metric_calls=4)
    mean = mean_of([one, other])
    assert mean.objective_scores == [{"x": 1.5, "y": 1.0}]
    assert mean.num_metric_calls == 7
    assert mean_of([one, replace(other, objective_scores=None)]).objective_scores is None


class Noisy:
    """Mixed into an adapter: a score of its own each time."""

    spread = 0.4

    def evaluate(self, examples, candidate, capture_traces=False):
        made = super().evaluate(examples, candidate, capture_traces)
        self.drawn = getattr(self, "drawn", 0) + 1
        luck = self.kit.chance("noise", self.drawn, self.seed)
        made.scores = [score + luck.uniform(-self.spread, self.spread) for score in made.scores]
        return made


def noisy(kit, seed=0, bases=()):
    return type("NoisyWords", (Noisy, *bases, kit.Words), {"kit": kit, "seed": seed})()


@pytest.mark.parametrize("clock", ["virtual", "local"])
@pytest.mark.parametrize("staleness", ["guarded", "merge"])
@pytest.mark.parametrize("granularity", ["example", "batch", "serial"])
def test_every_call_is_counted_and_the_budget_is_kept(kit, clock, staleness, granularity):
    adapter = noisy(kit)
    flash = kit.flash(clock=clock, staleness=staleness, rollouts=3, evaluate=granularity)
    run = kit.run(flash, adapter=adapter, calls=500)
    kit.check_host_invariants(run, 500)
    kit.check_serial_history(run, threading.get_ident())
    assert run.result.discovery_eval_counts[0] == 0
    assert run.last.accepted > 0


def test_several_parents_and_the_host_s_merges_are_counted_too(kit):
    options = {"sampling_strategy": IndependentSampling(2), "use_merge": True, "seed_candidate": kit.TWO}
    for seed in range(3):
        run = kit.run(kit.flash(rollouts=2), adapter=noisy(kit, seed), calls=700, seed=seed, **options)
        kit.check_host_invariants(run, 700)


def test_an_adapter_that_evaluates_many_batches_in_one_call_is_asked_as_often(kit):
    adapter = noisy(kit, bases=(kit.Batched,))
    options = {"sampling_strategy": IndependentSampling(2)}
    run = kit.run(kit.flash(rollouts=2, evaluate="batch"), adapter=adapter, calls=500, **options)
    kit.check_host_invariants(run, 500)
    assert run.last.accepted > 0


def test_a_resumed_run_counts_on(kit, tmp_path):
    kit.run(kit.flash(rollouts=2), adapter=noisy(kit), calls=200, run_dir=str(tmp_path))
    run = kit.run(kit.flash(rollouts=2), adapter=noisy(kit), calls=400, run_dir=str(tmp_path))
    assert 200 < run.result.total_metric_calls == run.last.spent <= 400


def test_the_host_is_told_of_the_seed_s_calls_before_the_first_iteration(kit):
    told = []
    run = kit.run(
        kit.flash(rollouts=4),
        adapter=noisy(kit),
        calls=300,
        stop_callbacks=lambda state: told.append(state.total_num_evals),
    )
    assert told[0] == 40
    assert run.callbacks.named("on_budget_updated")[0]["metric_calls_used"] > 40


def test_a_budget_that_pays_for_one_rollout_only_is_refused(kit):
    adapter = kit.Words()
    with pytest.raises(UsageError, match=r"seed's validation \(30\), one proposal \(18\) .* fewer rollouts"):
        kit.run(kit.flash(rollouts=3), adapter=adapter, calls=70)
    assert adapter.calls == 0


def test_it_does_not_go_with_lockstep():
    with pytest.raises(UsageError, match="rollouts=2 does not go with lockstep=True"):
        Flash(rollouts=2, lockstep=True)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, None, "2"])
def test_only_whole_numbers_are_taken(wrong):
    with pytest.raises(UsageError, match="must be a whole number of at least 1"):
        Flash(rollouts=wrong)


def test_a_cache_that_would_repeat_the_first_answer_is_told(kit, caplog):
    adapter = kit.Words()
    adapter.cache_mode = "memory"
    kit.run(kit.flash(rollouts=2), adapter=adapter, calls=200)
    assert any("rollouts=2 repeats what it was answered the first time" in line for line in caplog.messages)


def error_of_accepted(kit, rollouts):
    """How far the scores in the pool are from the true ones, over several runs."""
    errors = []
    for seed in range(6):
        run = kit.run(kit.flash(rollouts=rollouts), adapter=noisy(kit, seed), calls=250 * rollouts, seed=seed)
        for candidate, scores in zip(run.result.candidates, run.state.prog_candidate_val_subscores, strict=True):
            true = statistics.fmean(kit.score(run.engine.valset.fetch([name])[0], candidate) for name in scores)
            errors.append(statistics.fmean(scores.values()) - true)
    return statistics.pstdev(errors)


def test_with_a_noisy_metric_the_spread_of_admitted_scores_shrinks(kit):
    once, often = error_of_accepted(kit, 1), error_of_accepted(kit, 9)
    assert often < once / 2  # a third, less what selection does to it
