"""Adapters, loaders, policies and strategies that are not as the usual ones."""

import threading
from types import SimpleNamespace

import pytest
from gepa.strategies.eval_policy import FullEvaluationPolicy

from flashevolve_plugins import BackendError

MERGES = {"use_merge": True, "max_merge_invocations": 20}


def test_data_loaders_with_ids_of_their_own(kit):
    train, val = kit.Named(range(12), "t"), kit.Named(range(100, 110), "v")
    run = kit.run(kit.flash(), trainset=train, valset=val, seed_candidate=kit.TWO, cache_evaluation=True, **MERGES)
    kit.check(run, 150)
    assert set(run.result.val_subscores[0]) == set(val.all_ids())


def test_the_trainset_is_the_valset_if_there_is_none(kit):
    run = kit.run(kit.flash(), valset=None, cache_evaluation=True)
    kit.check(run, 150)
    assert set(run.result.val_subscores[0]) == set(range(12))


@pytest.mark.parametrize(("trainset", "minibatch"), [([1], 3), ([1, 2], 5), ([1], 1), (list(range(12)), 12)])
def test_the_run_ends_however_the_minibatch_compares_with_the_trainset(kit, trainset, minibatch):
    for calls in range(100, 112):
        run = kit.run(kit.flash(), trainset=trainset, reflection_minibatch_size=minibatch, calls=calls)
        kit.check(run, calls)


class Uneven:
    """A batch sampler that does not tell its size."""

    def next_minibatch_ids(self, loader, state):
        return list(loader.all_ids())[: 2 + state.i % 5]


def test_the_run_ends_where_the_minibatch_s_size_is_not_known(kit):
    for calls in range(100, 112):
        kit.check(kit.run(kit.flash(), batch_sampler=Uneven(), calls=calls), calls)


class Halves(FullEvaluationPolicy):
    """Validates on a half only, the other half each time."""

    def get_eval_batch(self, loader, state, target_program_idx=None):
        return list(loader.all_ids())[len(state.program_candidates) % 2 :: 2]


def test_a_validation_policy_of_one_s_own_is_asked(kit):
    sets = set()
    for seed in range(6):
        run = kit.run(kit.flash(max_concurrency=20), seed=seed, val_evaluation_policy=Halves(), calls=200)
        kit.check_serial_history(run, threading.get_ident())
        assert run.state.is_consistent()
        assert run.result.total_metric_calls == run.adapter.calls <= 200
        sets |= {tuple(scores) for scores in run.result.val_subscores[1:]}
    assert sets == {(0, 2, 4, 6, 8), (1, 3, 5, 7, 9)}


def test_a_reflection_function_of_one_s_own_is_called_one_at_a_time_and_the_user_is_told(kit, caplog):
    run = kit.run(kit.flash(max_concurrency=20, reflection_concurrency=None))
    assert run.last.slots["reflection"] == 1
    (message,) = caplog.messages
    assert "Flash(reflection_concurrency=20)" in message


class Stuck:
    """A reflection model that has one idea."""

    def __call__(self, prompt):
        return "```ant bee cat```"


def test_a_text_is_validated_once_however_often_it_is_proposed(kit):
    run = kit.run(kit.flash(max_concurrency=20, staleness="full"), reflection=Stuck(), calls=300)
    kit.check_serial_history(run, threading.get_ident())
    texts = [tuple(each.items()) for each in run.result.candidates]
    assert len(texts) == len(set(texts)) == 2
    reasons = {each["reason"] for each in run.callbacks.named("on_candidate_rejected")}
    assert any(reason.startswith("Duplicate of another candidate") for reason in reasons)


def test_a_text_proposed_again_is_validated_on_the_examples_that_are_new_to_it(kit):
    flash = kit.flash(max_concurrency=1, staleness="full")
    run = kit.run(flash, reflection=Stuck(), val_evaluation_policy=Halves(), calls=200)
    kit.check_serial_history(run, threading.get_ident())
    assert len({tuple(each.values()) for each in run.result.candidates}) == 2
    assert {tuple(scores) for scores in run.result.val_subscores[1:]} == {(0, 2, 4, 6, 8), (1, 3, 5, 7, 9)}
    reasons = {each["reason"] for each in run.callbacks.named("on_candidate_rejected")}
    assert not any(reason.startswith("Duplicate") for reason in reasons)


def test_reflections_that_all_fail_end_the_run_in_one_sentence(kit):
    def fail(prompt):
        raise LookupError("no such model")

    run = kit.run(kit.flash(max_concurrency=20), reflection=fail, catch=True)
    assert type(run.error) is BackendError
    assert "first 10 reflections failed (LookupError: no such model)" in str(run.error)
    assert run.adapter.calls < 150


def counting(kit, per_example):
    """An adapter that counts metric calls itself."""

    class Counting(kit.Words):
        def evaluate(self, batch, candidate, capture_traces=False):
            evaluation = super().evaluate(batch, candidate, capture_traces)
            evaluation.num_metric_calls = per_example(len(self.batches)) * len(batch)
            return evaluation

    return Counting()


@pytest.mark.parametrize("per_example", [lambda number: 2, lambda number: 3, lambda number: 0 if number % 2 else 1])
def test_an_adapter_s_own_count_of_calls_is_the_host_s_and_stays_in_the_budget(kit, per_example):
    for seed in range(3):
        run = kit.run(kit.flash(max_concurrency=20), seed=seed, calls=300, adapter=counting(kit, per_example))
        assert run.result.total_metric_calls == run.last.spent <= 300
        told = sum(each["metric_calls_delta"] for each in run.callbacks.named("on_budget_updated"))
        assert told + 10 == run.result.total_metric_calls


@pytest.mark.parametrize("make", [SimpleNamespace, "slots"])
def test_adapters_and_strategies_of_any_make(kit, make):
    inner = kit.Words()
    methods = {
        "evaluate": inner.evaluate,
        "make_reflective_dataset": inner.make_reflective_dataset,
        "propose_new_texts": None,
        "flashevolve_evaluate": "example",
    }
    if make == "slots":
        make = type("Slotted", (), {"__slots__": tuple(methods), "__init__": fill})

    def chosen(proposals, state, criterion):
        return [each for each in proposals if criterion.should_accept(each, state)]

    selection = SimpleNamespace(select=chosen)
    run = kit.run(kit.flash(), adapter=make(**methods), selection_strategy=selection)
    assert run.result.total_metric_calls == inner.calls
    assert len(run.result.candidates) > 1


def fill(self, **attributes):
    for name, value in attributes.items():
        setattr(self, name, value)


def test_a_run_inside_an_evaluation_of_another_run(kit):
    """The slot's thread carries the block with it: the inner run is under flash, too."""
    flash, inner = kit.flash(clock="local", max_concurrency=3), []

    class Outer(kit.Words):
        def working(self, batch, candidate):
            with self.lock:
                first = not inner
                inner.append(None)
            if first:
                inner[0] = kit.optimize(adapter=kit.Words())

    with flash:
        run = kit.optimize(adapter=Outer())
    assert run.total_metric_calls <= 60
    assert inner[0].total_metric_calls <= 60
    assert len(inner[0].candidates) > 1


def test_what_the_reflection_logs_is_logged_in_serial_order(kit):
    class Partial(kit.Words):
        def make_reflective_dataset(self, candidate, evaluation, components):
            dataset = super().make_reflective_dataset(candidate, evaluation, components)
            return {name: dataset[name] for name in components if name == "a"}

    flash = kit.flash(clock="local", max_concurrency=20)
    run = kit.run(flash, adapter=Partial(), seed_candidate=kit.TWO, module_selector="all")
    assert any("Component 'b' is not in reflective dataset" in line for line in run.lines)
    assert run.log.threads == {threading.get_ident()}
