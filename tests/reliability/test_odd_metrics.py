"""Metrics, programs and adapters that do what nobody expects: no run hangs or loses its state, a sentence tells."""

from __future__ import annotations

import math
import sqlite3
import sys
import threading
from typing import Any

import dspy
import pytest
from dspy_task import Task, assert_consistent
from gepa.core.adapter import EvaluationBatch
from gepa.core.state import GEPAState
from gepa_kit import kit, no_thread_stays  # noqa: F401 - fixtures

from flashevolve_plugins import BackendError, Flash, UsageError

CALLS = 60


@pytest.fixture
def flash() -> Flash:
    return Flash(progress=False, check_connection=False)


def odd(task: Task, make: Any, *, often: bool) -> Any:
    """The task's metric, which gives what ``make`` gives for every example, or for those of one rule."""

    def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
        usual = task.metric(gold, pred, trace, pred_name, pred_trace)
        return make() if often or gold.rule == 2 else usual

    return metric


def number(gold: Any) -> int:
    return int(gold.question.split()[1])


def recurse() -> Any:
    return recurse()


def leave(*_: Any) -> Any:
    sys.exit(3)


def numpy_half() -> Any:
    import numpy as np

    return np.float32(0.5)


USABLE = {
    "a bool": (lambda: True, 1.0),
    "a numpy number": (numpy_half, 0.5),
    "a Prediction": (lambda: dspy.Prediction(score=0.5, feedback="half"), 0.5),
    "a whole number": (lambda: 1, 1.0),
}
USELESS = {
    "None": lambda: None,
    "a string": lambda: "0.5",
    "a dict": lambda: {"score": 0.5},
    "a list": lambda: [0.5],
    "a Prediction without a score": lambda: dspy.Prediction(feedback="none"),
    "a Prediction whose score is None": lambda: dspy.Prediction(score=None, feedback="none"),
}
FAILING = {
    "NaN": (lambda: math.nan, "gave the score nan"),
    "an infinite number": (lambda: math.inf, "gave the score inf"),
    "a Prediction whose score is NaN": (lambda: dspy.Prediction(score=math.nan, feedback=""), "gave the score nan"),
    "nothing, as it calls sys.exit": (leave, "called sys.exit"),
    "nothing, as it recurses without end": (recurse, None),
}


@pytest.mark.parametrize("name", USABLE)
def test_what_counts_as_a_number_for_the_host_counts(name, task, flash, tell):
    make, score = USABLE[name]
    program = task.compile(flash, metric=odd(task, make, often=False), max_metric_calls=CALLS)
    assert_consistent(task, program, CALLS)
    assert all(float(scores[2]) == score for scores in program.detailed_results.val_subscores)
    tell(f"a metric returns {name}", tries=1, outcome="it counts", lost=0)


@pytest.mark.parametrize("name", USELESS)
def test_what_no_run_can_use_ends_it_with_the_metric_the_value_and_the_remedy(name, task, flash, tell, tmp_path):
    """On the first call, and after the seed is in the state file."""
    lost = 0
    for late in (False, True):
        run_dir = tmp_path / str(late)
        seeds = threading.Lock(), []

        def metric(gold, pred, trace=None, pred_name=None, pred_trace=None, late=late, seeds=seeds):
            usual = task.metric(gold, pred, trace, pred_name, pred_trace)
            with seeds[0]:
                seeds[1].append(gold)
                return usual if late and len(seeds[1]) <= 8 else USELESS[name]()

        with pytest.raises(UsageError, match="The metric metric returned .*which holds no number: return a number, or"):
            task.compile(flash, metric=metric, max_metric_calls=CALLS, log_dir=str(run_dir))
        lost += late and not (run_dir / "gepa_state.bin").exists()
    tell(f"a metric returns {name}", tries=2, outcome="one sentence, state kept", lost=lost)


@pytest.mark.parametrize("often", [False, True], ids=["some", "all"])
@pytest.mark.parametrize("name", FAILING)
def test_what_is_no_score_is_the_example_s_failure_and_told_once(name, often, task, flash, tell, caplog):
    make, sentence = FAILING[name]
    metric = odd(task, make, often=often)
    raising = name.startswith("nothing")
    if often and raising:
        with pytest.raises(BackendError, match="Every one of the first 10 examples raised in the metric"):
            task.compile(flash, metric=metric, val=20, max_metric_calls=CALLS + 30, failure_score=0.125)
    else:
        program = task.compile(flash, metric=metric, max_metric_calls=CALLS, failure_score=0.125)
        assert_consistent(task, program, CALLS, calls=not raising)
        for scores in program.detailed_results.val_subscores:
            assert scores[2] == 0.125
            assert often is (scores[1] == 0.125)
    if sentence is not None:
        told = [line for line in caplog.messages if sentence in line]
        assert len(told) == 1
    outcome = "one sentence" if often and raising else "its failure score"
    tell(f"a metric gives {name}, on {'all' if often else 'some'} examples", tries=1, outcome=outcome, lost=0)


def test_scores_that_are_none_are_counted(task, flash, caplog):
    task.compile(flash, metric=odd(task, lambda: math.nan, often=False), max_metric_calls=CALLS)
    (line,) = [line for line in caplog.messages if "were NaN or infinite, and counted as 0.0" in line]
    assert int(line.split()[0]) >= 2


def test_an_infinite_score_of_a_candidate_does_not_win(task, flash):
    """As it would, if it were taken for a score."""
    program = task.compile(flash, metric=odd(task, lambda: math.inf, often=False), max_metric_calls=CALLS)
    assert all(math.isfinite(score) for score in program.detailed_results.val_aggregate_scores)


def test_a_metric_that_needs_the_main_thread_is_told_that_it_gets_none(task, flash, tell):
    database = sqlite3.connect(":memory:")

    def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
        database.execute("select 1")
        return task.metric(gold, pred, trace, pred_name, pred_trace)

    hint = r"correct the metric \(several threads call it at once, none of them the main one\)"
    with pytest.raises(BackendError, match=hint):
        task.compile(flash, metric=metric, val=20, num_threads=1, max_metric_calls=100)
    database.close()
    tell("a metric raises in other threads than the main one", tries=1, outcome="one sentence", lost=0)


def test_an_interrupt_by_a_metric_ends_the_run(task, flash, tell, tmp_path):
    def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
        if len(task.metric_calls) > 20:
            raise KeyboardInterrupt
        return task.metric(gold, pred, trace, pred_name, pred_trace)

    with pytest.raises(KeyboardInterrupt):
        task.compile(flash, metric=metric, max_metric_calls=CALLS, log_dir=str(tmp_path))
    lost = int(not (tmp_path / "gepa_state.bin").exists())
    tell("a metric raises KeyboardInterrupt", tries=1, outcome="the run ends, state kept", lost=lost)


def test_a_metric_that_changes_its_example_is_told_once_and_changes_no_other_score(task, flash, tell, caplog):
    """The same example object is in many samples at once."""

    def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
        gold["seen"] = object()
        return task.metric(gold, pred, trace, pred_name, pred_trace)

    usual = task.compile(flash, max_metric_calls=CALLS)
    changed = task.compile(flash, metric=metric, max_metric_calls=CALLS)
    assert changed.detailed_results.val_subscores[0] == usual.detailed_results.val_subscores[0]
    assert len([line for line in caplog.messages if "changed an example while it was evaluated" in line]) == 1
    tell("a metric changes its example", tries=1, outcome="told once", lost=0)


def test_a_metric_that_leaves_its_example_alone_is_not_told_so(task, flash, caplog):
    task.compile(flash, max_metric_calls=CALLS)
    assert not [line for line in caplog.messages if "changed an example" in line]


def test_prints_go_where_prints_go(task, flash, tell, capsys):
    def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
        print("checking", number(gold))  # noqa: T201 - what is tested
        print("aside", file=sys.stderr)  # noqa: T201
        return task.metric(gold, pred, trace, pred_name, pred_trace)

    program = task.compile(flash, metric=metric, max_metric_calls=CALLS)
    printed = capsys.readouterr()
    calls = len(task.metric_calls) + len(task.feedback_calls)
    assert printed.out.count("checking") == printed.err.count("aside") == calls
    assert_consistent(task, program, CALLS)
    tell("a metric prints", tries=1, outcome="it is printed", lost=0)


def test_a_metric_that_says_something_else_each_time_gives_a_consistent_result(task, flash, tell):
    turn = iter(range(10**6))

    def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
        found = task.metric(gold, pred, trace, pred_name, pred_trace)
        return dspy.Prediction(score=found.score + next(turn) % 3 / 10, feedback=found.feedback)

    program = task.compile(flash, metric=metric, max_metric_calls=CALLS)
    assert_consistent(task, program, CALLS)
    tell("a metric says something else each time", tries=1, outcome="its first word counts", lost=0)


def test_a_program_that_leaves_or_recurses_fails_its_example_alone(task, flash, tell):
    for what in (leave, recurse):

        class Odd(dspy.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = task.student()

            def forward(self, question: str, what: Any = what) -> Any:
                return what() if "rule 2" in question else self.inner(question=question)

        program = task.compile(flash, student=Odd(), max_metric_calls=CALLS, failure_score=0.125)
        assert {scores[2] for scores in program.detailed_results.val_subscores} == {0.125}
        assert len(program.detailed_results.candidates) > 1
    tell("a program calls sys.exit or recurses without end", tries=2, outcome="its failure score", lost=0)


# -- adapters of the user's own ----------------------------------------------------------------------------------------


def wrong(kit: Any, change: Any, when: Any = lambda: True) -> Any:  # noqa: F811 - the fixture's value
    class Wrong(kit.Words):
        def evaluate(self, batch, candidate, capture_traces=False):
            found = super().evaluate(batch, candidate, capture_traces)
            return change(found) if when() else found

    return Wrong()


def with_scores(scores: Any) -> Any:
    def change(found: EvaluationBatch) -> EvaluationBatch:
        found.scores = scores(found.scores)
        return found

    return change


REFUSED = {
    "one score too many": (with_scores(lambda scores: [*scores, 1.0]), "gave 2 scores for 1 examples"),
    "no score": (with_scores(lambda _: []), "gave 0 scores for 1 examples"),
    "None for a score": (with_scores(lambda scores: [None] * len(scores)), "gave the score None, which is no number"),
    "a text for a score": (with_scores(lambda scores: ["high"] * len(scores)), "gave the score 'high'"),
    "a dict for a score": (with_scores(lambda scores: [{"score": 1}]), "gave the score {'score': 1}"),
    "nothing": (lambda _: None, "gave NoneType for an evaluation"),
    "nothing, as it calls sys.exit": (lambda _: leave(), r"called sys.exit\(3\) while it evaluated"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_an_adapter_gives_that_no_run_can_use_is_told_in_one_sentence(name, kit, tell, tmp_path):  # noqa: F811
    change, sentence = REFUSED[name]
    lost = 0
    for late in (False, True):  # at once, and from when the seed is in the state file
        flash = kit.flash(clock="local", evaluate="example")
        run_dir = tmp_path / str(late)
        when = (run_dir / "gepa_state.bin").exists if late else lambda: True
        with pytest.raises((UsageError, BackendError), match=sentence):
            kit.run(flash, adapter=wrong(kit, change, when), run_dir=str(run_dir))
        lost += late and len(GEPAState.load(str(run_dir)).prog_candidate_val_subscores[0]) != 10
    tell(f"an adapter gives {name}", tries=2, outcome="one sentence, state kept", lost=lost)


@pytest.mark.parametrize("granularity", ["example", "batch", "serial"])
def test_scores_that_are_none_fail_their_examples_whatever_runs_at_once(granularity, kit, tell, caplog):  # noqa: F811
    adapter = wrong(kit, with_scores(lambda scores: [math.nan if score > 0.5 else score for score in scores]))
    adapter.failure_score = -1.0
    run = kit.run(kit.flash(evaluate=granularity, clock="local"), adapter=adapter, calls=200)
    kit.check_host_invariants(run, 200)
    found = [score for scores in run.result.val_subscores for score in scores.values()]
    assert all(math.isfinite(score) for score in found)
    assert -1.0 in found
    assert len([line for line in caplog.messages if "This is said once" in line and "nan" in line]) == 1
    tell(f"an adapter gives NaN, {granularity}", tries=1, outcome="the failure score", lost=0)


class Sometimes:
    """Mixed in: one evaluation in eleven, but none of the seed's, has a score too many."""

    def evaluate(self, batch, candidate, capture_traces=False):
        found = super().evaluate(batch, candidate, capture_traces)
        if len(self.batches) % 11 == 0:
            found.scores = [*found.scores, 1.0]
        return found


def test_an_iteration_fails_alone_where_the_host_is_told_to_go_on(kit):  # noqa: F811
    adapter = type("SometimesWords", (Sometimes, kit.Words), {})()
    run = kit.run(kit.flash(), adapter=adapter, calls=200, raise_on_exception=False)
    kit.check_host_invariants(run, 200)
    assert run.last.ended["failed"] > 0


class Changing:
    """Mixed in: an adapter that changes the examples it is given, which are dicts."""

    def evaluate(self, batch, candidate, capture_traces=False):
        for example in batch:
            example["seen"] = example.get("seen", 0) + 1
        return super().evaluate([example["x"] for example in batch], candidate, capture_traces)


def test_an_adapter_that_changes_its_examples_is_told_once(kit, tell, caplog):  # noqa: F811
    adapter = type("ChangingWords", (Changing, kit.Words), {})()
    train, val = ([{"x": number} for number in numbers] for numbers in (range(12), range(100, 110)))
    kit.run(kit.flash(clock="local"), adapter=adapter, trainset=train, valset=val)
    assert len([line for line in caplog.messages if "changed an example while it was evaluated" in line]) == 1


def test_a_reflection_that_calls_sys_exit_is_given_up_like_one_that_raises(kit, tell):  # noqa: F811
    reflection = kit.Reflection()
    reflection.errors = lambda number: number % 3 == 0 and leave()
    run = kit.run(kit.flash(clock="local", staleness="guarded"), reflection=reflection, calls=200)
    kit.check_host_invariants(run, 200)
    assert run.last.accepted > 0
    tell("a reflection calls sys.exit", tries=1, outcome="given up like one that raises", lost=0)


def test_a_reflective_dataset_that_calls_sys_exit_ends_no_process(kit, tell):  # noqa: F811
    adapter = kit.Words()
    build = adapter.make_reflective_dataset
    adapter.make_reflective_dataset = lambda *what: build(*what) if adapter.datasets % 2 else leave(build(*what))
    run = kit.run(kit.flash(clock="local"), adapter=adapter, calls=200)
    kit.check_host_invariants(run, 200)
    assert run.last.accepted > 0
    assert any("Exception building reflective dataset: What ran in a slot called sys.exit(3)" in x for x in run.lines)
    tell("a reflective dataset calls sys.exit", tries=1, outcome="its proposal is skipped", lost=0)


def test_optimize_anything_s_evaluator_is_told_the_same(tell):
    from gepa.optimize_anything import EngineConfig, GEPAConfig, ReflectionConfig, optimize_anything

    def text(candidate, example):
        return "high" if example == 3 else 0.5

    config = GEPAConfig(
        engine=EngineConfig(max_metric_calls=60, parallel=True, max_workers=4, cache_evaluation=False),
        reflection=ReflectionConfig(reflection_lm=lambda _: "```\nmore\n```"),
    )
    with pytest.raises(UsageError, match="gave the score 'high', which is no number"):
        optimize_anything(
            seed_candidate="start", evaluator=text, dataset=[1, 2, 3, 4], config=config, executor=Flash(progress=False)
        )
    tell("optimize_anything's evaluator returns a text", tries=1, outcome="one sentence", lost=0)
