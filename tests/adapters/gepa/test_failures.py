"""What raises, where, and what the host's users see of it: as the host's own loop does it."""

import threading
from collections import Counter

import pytest
from gepa.proposer.merge import MergeProposer
from gepa.strategies.acceptance import StrictImprovementAcceptance
from gepa.strategies.batch_sampler import EpochShuffledBatchSampler
from gepa.strategies.component_selector import AllReflectionComponentSelector
from gepa.strategies.eval_policy import FullEvaluationPolicy
from gepa.strategies.proposal_sampling import IndependentSampling
from gepa.strategies.proposal_selection import AllImprovements
from gepa.utils import MaxCandidateProposalsStopper
from gepa_task import score

from flashevolve_plugins import BackendError
from flashevolve_plugins._calls import MOST_TRIES
from flashevolve_plugins._inline import InlineDriver
from flashevolve_plugins._local import LocalDriver
from flashevolve_plugins._virtual import VirtualDriver

CLOCKS = pytest.mark.parametrize("clock", ["virtual", "local"])


class Sometimes:
    """Raises at the third call of each four."""

    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        if self.calls % 4 == 3:
            raise ZeroDivisionError(f"call {self.calls}")


def failing(kind, method, *arguments):
    """An object of a host's kind, one method of which raises sometimes."""
    sometimes = Sometimes()

    def call(self, *given, **words):
        sometimes()
        return getattr(super(made, self), method)(*given, **words)

    made = type(f"Failing{kind.__name__}", (kind,), {method: call})
    return made(*arguments)


class Seed:
    def select_candidate_idx(self, state):
        return 0


STRATEGIES = {
    "candidate selector": lambda: {"candidate_selection_strategy": failing(Seed, "select_candidate_idx")},
    "batch sampler": lambda: {"batch_sampler": failing(EpochShuffledBatchSampler, "next_minibatch_ids", 3)},
    "sampling": lambda: {"sampling_strategy": failing(IndependentSampling, "sample_tasks", 2)},
    "component selector": lambda: {"module_selector": failing(AllReflectionComponentSelector, "__call__")},
    "acceptance": lambda: {"acceptance_criterion": failing(StrictImprovementAcceptance, "should_accept")},
    "selection": lambda: {"selection_strategy": failing(AllImprovements, "select")},
    "validation policy": lambda: {"val_evaluation_policy": failing(FullEvaluationPolicy, "get_eval_batch")},
}


@pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES)
def test_a_strategy_that_raises_fails_its_iteration_alone(kit, make):
    run = kit.run(kit.flash(max_concurrency=20), calls=200, raise_on_exception=False, **make())
    kit.check(run, 200)
    errors = run.callbacks.named("on_error")
    assert errors
    assert all(each["exception"][0] is ZeroDivisionError for each in errors)
    assert all(each["will_continue"] for each in errors)
    assert run.last.ended["failed"] == len(errors)
    assert len(run.result.candidates) > 1


@pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES)
def test_a_strategy_that_raises_ends_the_run_as_it_ends_the_host_s(kit, make):
    for executor in (None, kit.flash(max_concurrency=20)):
        run = kit.run(executor, calls=400, catch=True, **make())
        assert type(run.error) is ZeroDivisionError
        (event,) = run.callbacks.named("on_error")
        assert not event["will_continue"]
        assert run.callbacks.names[-1] == "on_iteration_end"
        assert run.tracked[-1] == ("exit", ZeroDivisionError)


@CLOCKS
def test_an_evaluation_that_raises_fails_its_iteration_alone_and_its_calls_are_counted(kit, clock):
    adapter = kit.Words()
    adapter.errors = {"evaluate": lambda number: number > 10 and number % 9 == 0}
    run = kit.run(kit.flash(clock=clock), adapter=adapter, calls=300, raise_on_exception=False)
    kit.check(run, 300)
    errors = run.callbacks.named("on_error")
    assert len(errors) == run.last.ended["failed"] > 2
    assert all(each["exception"][0] is RuntimeError for each in errors)


@CLOCKS
def test_an_evaluation_that_raises_ends_the_run_and_nothing_starts_after_that(kit, dispatch, clock):
    adapter, recorder, started = kit.Words(), kit.Callbacks(), []
    adapter.errors = {"evaluate": lambda number: number == 40}
    recorder.watchers.append(lambda name, _: started.append(len(dispatch.started)) if name == "on_error" else None)
    run = kit.run(kit.flash(clock=clock), adapter=adapter, recorder=recorder, calls=300, catch=True)
    assert type(run.error) is RuntimeError
    assert str(run.error) == "evaluate 40 fails"
    assert started == [len(dispatch.started)]
    assert run.last.ended["failed"] == 1


def test_the_seed_s_evaluation_that_raises_ends_the_run_whatever_the_host_would_go_on_from(kit):
    for executor in (None, kit.flash(), kit.flash(lockstep=True)):
        adapter = kit.Words()
        adapter.errors = {"evaluate": lambda number: number == 1}
        run = kit.run(executor, adapter=adapter, catch=True, raise_on_exception=False)
        assert type(run.error) is RuntimeError
        assert run.callbacks.names == ["on_optimization_start"]


def test_an_error_in_the_gate_is_told_after_the_proposal_as_the_host_tells_it(kit):
    """The rollouts' three, then the gate's first."""
    seen = []
    for executor in (None, kit.flash(max_items=1, max_concurrency=1)):
        adapter = kit.Words()
        first = 3 if executor is None else 10 + 3 + 1  # the host evaluates whole batches
        adapter.errors = {"evaluate": lambda number, first=first: number == first}
        run = kit.run(executor, adapter=adapter, catch=True)
        names = [name for name in run.callbacks.names if name != "on_budget_updated"]
        seen.append((names, run.callbacks.named("on_error")))
    assert seen[0] == (seen[1][0], [{**seen[1][1][0], "exception": seen[0][1][0]["exception"]}])
    assert "on_proposal_end" in seen[0][0]


def test_a_reflective_dataset_that_raises_skips_its_task(kit):
    adapter = kit.Words()
    adapter.errors = {"dataset": lambda number: number % 2 == 0}
    run = kit.run(kit.flash(), adapter=adapter, sampling_strategy=IndependentSampling(2), calls=200)
    kit.check(run, 200)
    assert any("Exception building reflective dataset: dataset 2 fails" in line for line in run.lines)
    assert run.callbacks.named("on_error") == []


class Unreadable:
    """Mixed in: every other dataset is none that the host can read."""

    def make_reflective_dataset(self, candidate, evaluation, components):
        dataset = super().make_reflective_dataset(candidate, evaluation, components)
        return dataset if self.datasets % 2 == 0 else {name: ["no record"] for name in components}


def test_a_reflective_dataset_that_the_host_cannot_read_skips_its_task_alone(kit):
    adapter = type("Odd", (Unreadable, kit.Words), {})()
    run = kit.run(kit.flash(), adapter=adapter, sampling_strategy=IndependentSampling(2), calls=200)
    kit.check(run, 200)
    built = run.callbacks.named("on_reflective_dataset_built")
    proposed = run.callbacks.named("on_proposal_end")
    assert 0 < len(proposed) <= len(built) < 2 * len(run.trace)


@pytest.mark.parametrize("wrong", [None, 3, {"a": None}])
def test_a_dataset_of_the_wrong_kind_is_a_failure_to_build_one(kit, wrong):
    for executor in (None, kit.flash()):
        adapter = kit.Words()
        adapter.make_reflective_dataset = lambda *_: wrong
        run = kit.run(executor, adapter=adapter, stop_callbacks=MaxCandidateProposalsStopper(3))
        assert sum("Exception building reflective dataset" in line for line in run.lines) == 3
        assert run.reflections == 0


def test_a_reflection_that_raises_is_tried_again_and_then_given_up(kit):
    def always(number):
        return True

    for executor in (None, kit.flash()):
        reflection = kit.Reflection()
        reflection.errors = always
        run = kit.run(executor, reflection=reflection, stop_callbacks=MaxCandidateProposalsStopper(4))
        assert run.reflections == 8
        assert sum("Per-task reflection failed" in line for line in run.lines) == 4
        assert sum("did not propose a new candidate" in line for line in run.lines) == 4
        assert run.callbacks.named("on_error") == []
        assert run.result.total_metric_calls == 10 + 4 * 3
    assert run.last.ended == {"skipped": 4}


def test_an_adapter_s_own_proposer_that_raises_is_given_up_too(kit):
    def propose(candidate, dataset, components):
        raise RuntimeError("no idea")

    run = kit.run(kit.flash(), custom_candidate_proposer=propose, stop_callbacks=MaxCandidateProposalsStopper(4))
    kit.check(run, 150)
    assert sum("Per-task reflection failed: no idea" in line for line in run.lines) == 4


@pytest.mark.parametrize("texts", [{}, None])
def test_a_reflection_that_returns_nothing_skips_its_iteration(kit, texts):
    for executor in (None, kit.flash()):
        run = kit.run(
            executor,
            custom_candidate_proposer=lambda *_: texts,
            stop_callbacks=MaxCandidateProposalsStopper(5),
        )
        assert sum("Reflection returned no text updates" in line for line in run.lines) == 5
        assert run.result.total_metric_calls == 10 + 5 * 3
    assert run.last.ended == {"skipped": 5}


def test_a_proposal_for_an_unknown_component_fails_its_iteration_as_the_host_s(kit):
    for executor in (None, kit.flash()):
        options = {"raise_on_exception": False, "stop_callbacks": MaxCandidateProposalsStopper(3)}
        run = kit.run(executor, custom_candidate_proposer=lambda *_: {"zzz": "text"}, **options)
        assert [each["exception"] for each in run.callbacks.named("on_error")] == [
            (AssertionError, "zzz missing in candidate")
        ] * 3
        assert run.callbacks.names.count("on_proposal_end") == 3


def test_perfect_scores_skip_their_iteration(kit):
    run = kit.run(kit.flash(), perfect_score=0.25, calls=100)
    kit.check(run, 100)
    reasons = {each["reason"] for each in run.callbacks.named("on_evaluation_skipped")}
    assert "all_scores_perfect" in reasons
    assert run.reflections == 0
    assert run.result.total_metric_calls > 50  # the host goes on as well
    assert set(run.last.ended) <= {"skipped", "discarded"}


def test_an_adapter_without_traces_skips_its_iterations(kit):
    class Silent(kit.Words):
        def evaluate(self, batch, candidate, capture_traces=False):
            return super().evaluate(batch, candidate, capture_traces=False)

    run = kit.run(kit.flash(), adapter=Silent(), calls=60)
    kit.check_host_invariants(run, 60)
    assert {each["reason"] for each in run.callbacks.named("on_evaluation_skipped")} >= {"no_trajectories"}


def test_a_merge_that_raises_while_it_is_offered_fails_its_iteration_alone(kit, monkeypatch):
    def raising(self, state):
        raise ValueError("Total of weights must be greater than zero")  # as the host's does where a score is 0

    monkeypatch.setattr(MergeProposer, "propose", raising)
    options = {"use_merge": True, "seed_candidate": kit.TWO, "raise_on_exception": False, "calls": 200}
    run = kit.run(kit.flash(), **options)
    kit.check(run, 200)
    assert {each["exception"][1] for each in run.callbacks.named("on_error")} == {
        "Total of weights must be greater than zero"
    }


def test_a_merge_s_evaluation_that_raises_fails_its_iteration_alone(kit):
    class Merged(kit.Words):
        failed = 0

        def evaluate(self, batch, candidate, capture_traces=False):
            if not capture_traces and len(self.batches) > 10:  # after the seed, only merges evaluate without traces
                self.failed += 1
                super().evaluate(batch, candidate, capture_traces)
                raise RuntimeError("no merge")
            return super().evaluate(batch, candidate, capture_traces)

    failed = 0
    for seed in range(6):
        options = {"use_merge": True, "seed_candidate": kit.TWO, "raise_on_exception": False, "calls": 400}
        run = kit.run(kit.flash(max_concurrency=3), seed=seed, adapter=Merged(), **options)
        kit.check(run, 400)
        told = run.callbacks.named("on_error")
        assert {each["exception"][1] for each in told} <= {"no merge"}
        assert len(told) == run.last.ended.get("failed", 0)
        failed += len(told)
    assert failed > 0


def test_a_callback_that_raises_changes_nothing_but_the_host_s_warning(kit, caplog):
    class Raising(kit.Callbacks):
        def __getattr__(self, name):
            keep = super().__getattr__(name)

            def raising(event):
                keep(event)
                raise RuntimeError("a callback")

            return raising

    plain = kit.run(kit.flash(max_concurrency=20))
    raising = kit.run(kit.flash(max_concurrency=20), recorder=Raising())
    kit.assert_same(plain, raising)
    assert any("failed on on_iteration_end: a callback" in message for message in caplog.messages)


# -- the interrupt -----------------------------------------------------------------------------------------------------


class Interrupted:
    """Mixed into an adapter: the user presses Ctrl-C during one of its evaluations."""

    at = 30

    def working(self, batch, candidate):
        if self.here.number == self.at:
            raise KeyboardInterrupt


@CLOCKS
@pytest.mark.parametrize("at", [5, 30], ids=["seed", "later"])
def test_an_interrupt_inside_an_evaluation_ends_the_run(kit, clock, at):
    adapter = type("Pressed", (Interrupted, kit.Words), {"at": at})()
    run = kit.run(kit.flash(clock=clock), adapter=adapter, catch=True)
    assert type(run.error) is KeyboardInterrupt
    assert run.tracked[-1] == ("exit", KeyboardInterrupt)


@pytest.mark.parametrize("lockstep", [False, True], ids=["flash", "lockstep"])
@CLOCKS
@pytest.mark.parametrize("at", [0, 2], ids=["seed", "later"])
def test_an_interrupt_of_the_loop_ends_the_run(kit, monkeypatch, clock, lockstep, at):
    kind = {"virtual": VirtualDriver, "local": InlineDriver if lockstep else LocalDriver}[clock]
    wait, calls = kind._wait, []

    def interrupted(driver):
        calls.append(wait(driver))
        if len(calls) > (at if lockstep else 10 * at):
            raise KeyboardInterrupt
        return calls[-1]

    monkeypatch.setattr(kind, "_wait", interrupted)
    run = kit.run(kit.flash(clock=clock, lockstep=lockstep), catch=True)
    assert type(run.error) is KeyboardInterrupt, run.error


def test_workers_that_are_inside_an_evaluation_when_the_run_fails_do_not_hold_it_up(kit):
    released, reached, ended = threading.Event(), threading.Lock(), []

    class Held(kit.Words):
        def working(self, batch, candidate):
            if self.here.number > 10:
                if not reached.acquire(blocking=False):
                    raise RuntimeError("the second")
                released.wait(60)
                ended.append(batch)

    flash = kit.flash(clock="local", max_concurrency=2)
    run = kit.run(flash, adapter=Held(), catch=True)
    assert str(run.error) == "the second"
    assert not ended
    released.set()


# -- servers ----------------------------------------------------------------------------------------------------------


class Unreachable:
    """Mixed into an adapter: some evaluations get no answer, and count as none, while all others do."""

    def lost(self, batch, candidate):
        raise NotImplementedError

    def evaluate(self, batch, candidate, capture_traces=False):
        if self.lost(batch, candidate):
            raise ConnectionResetError("reset")
        return super().evaluate(batch, candidate, capture_traces)


def unreachable(kit, lost):
    return type("Unreachable", (Unreachable, kit.Words), {"lost": staticmethod(lost)})()


def test_an_example_that_never_gets_an_answer_costs_its_proposal_alone_and_is_told_as_a_discard(kit):
    adapter = unreachable(kit, lambda batch, candidate: batch == [3])
    run = kit.run(kit.flash(clock="virtual"), adapter=adapter, calls=400)
    kit.check_host_invariants(run, 400)
    assert run.error is None
    failed = run.last.ended["failed"]
    assert failed > 0
    assert len(run.result.candidates) > 1
    assert run.callbacks.named("on_error") == []
    lines = [line for line in run.lines if "never got an answer (ConnectionResetError: reset)" in line]
    assert len(lines) == failed
    skipped = run.callbacks.named("on_evaluation_skipped")
    assert sum("discarded: rollout never got an answer" in each["reason"] for each in skipped) == failed
    assert run.last.retries == sum(run.last.failures.values()) - failed >= failed * (MOST_TRIES - 1)


def test_what_a_server_did_wrong_is_never_charged(kit):
    tries = Counter()

    def lost(batch, candidate):
        key = (tuple(batch), tuple(candidate.values()))
        tries[key] += 1
        return tries[key] == 1 and hash(batch[0]) % 3 == 0  # the first time

    run = kit.run(kit.flash(clock="virtual"), adapter=unreachable(kit, lost), calls=200)
    kit.check_host_invariants(run, 200)
    assert run.last.retries > 5
    assert sum(count > 1 for count in tries.values()) >= run.last.retries


def test_a_reflection_whose_server_fails_is_tried_again_and_not_given_up(kit):
    reflection = kit.Reflection()
    count = []

    def reflect(prompt):
        count.append(1)
        if len(count) % 2:
            raise ConnectionResetError("reset")
        return reflection(prompt)

    run = kit.run(kit.flash(clock="virtual"), reflection=reflect, stop_callbacks=MaxCandidateProposalsStopper(6))
    assert run.error is None
    assert not any("reflection failed" in line for line in run.lines)
    assert run.last.retries == len(count) / 2 == reflection.calls
    host = kit.run(None, reflection=reflect, stop_callbacks=MaxCandidateProposalsStopper(6))
    assert any("reflection failed" in line for line in host.lines)  # the host takes its one second chance


def test_a_backend_error_has_the_best_candidate_so_far(kit):
    adapter = kit.Words()

    def working(*_):
        if adapter.calls > 120:
            raise ConnectionRefusedError("nobody listens")

    adapter.working = working
    run = kit.run(kit.flash(clock="virtual"), adapter=adapter, calls=300, catch=True)
    assert type(run.error) is BackendError
    best = max(run.last.best_score, run.last.seed_score)
    assert run.error.score == best > run.last.seed_score
    assert run.error.best != kit.ONE
    assert sum(score(each, run.error.best) for each in range(100, 110)) / 10 == pytest.approx(best)
