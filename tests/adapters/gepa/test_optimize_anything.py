"""optimize_anything under flash: how it joins, what runs at once, whose output is whose, and what is paid for."""

import io
import json
import subprocess
import sys
import threading
from contextlib import nullcontext
from dataclasses import replace

import anything_task as task
import gepa.optimize_anything as oa
import pytest
import rich.live
from anything_task import BatchEvaluator, Evaluator, Printing, Refiner, Warm, line, run, value
from gepa.strategies.proposal_sampling import PxNSampling
from gepa_checks import check_serial_history

from flashevolve_plugins import Flash, UsageError

EVERY_MODE = pytest.mark.parametrize("mode", task.MODES)


def flash(**settings):
    return Flash(**{"progress": False, "clock": "virtual", **settings})


def local(**settings):
    return flash(clock="local", **settings)


def meeting(evaluator, size):
    """The evaluator with its first ``size`` calls held until all of them are there."""
    barrier, left, lock = threading.Barrier(size), [size], threading.Lock()

    def working():
        with lock:
            left[0] -= 1
            meets = left[0] >= 0
        if meets:
            barrier.wait(60)

    evaluator.working = working
    return evaluator


def check(made, limit):
    """What holds for every finished run."""
    assert made.state.is_consistent()
    assert made.result.total_metric_calls == made.last.spent <= limit
    assert made.last.reserved == made.last.items == 0
    check_serial_history(made, threading.get_ident())
    for candidate, _, score, info in made.evaluations():
        assert info["of"] in made.evaluated
        assert score >= value(candidate, None if info["of"].startswith("None") else int(info["of"].partition(":")[0]))


# -- modes -------------------------------------------------------------------------------------------------------------


@EVERY_MODE
@pytest.mark.parametrize("clock", ["virtual", "local"])
def test_every_mode_finds_better_candidates_within_its_budget(mode, clock):
    evaluator = Evaluator()
    made = run(flash(clock=clock, max_concurrency=6), mode=mode, evaluator=evaluator, calls=90)
    check(made, 90)
    assert len(made.result.candidates) > 1
    assert made.result.total_metric_calls == len(evaluator.calls) > 90 - 16
    examples = {"single": [None], "multi": task.TRAIN}.get(mode.split()[0], task.VALID)
    examples = [None] if mode == "seedless single task" else examples
    for candidate, scores in zip(made.result.candidates, made.result.val_subscores, strict=True):
        assert list(scores.values()) == [value(candidate, each) for each in examples]
    assert isinstance(made.result.best_candidate, dict if mode == "generalization" else str)


def test_a_seedless_run_asks_the_reflection_model_for_its_seed():
    made = run(flash(), mode="seedless", calls=40)
    assert made.result.candidates[0] == {task.TEXT: "start"}
    assert made.result._str_candidate_key == task.TEXT


def test_a_budget_that_pays_for_nothing_is_refused_before_anything_is_evaluated():
    evaluator = Evaluator()
    words = (
        r"^max_metric_calls=3 cannot pay for the seed's validation \(1\), one proposal \(2\) and its validation \(1\)"
    )
    with pytest.raises(UsageError, match=words):
        run(flash(), mode="single task", evaluator=evaluator, calls=3)
    assert evaluator.calls == []
    assert run(flash(), mode="single task", calls=4).result.total_metric_calls in {3, 4}


# -- what runs at once -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "options", "slots"),
    [
        ({}, {"max_workers": 3}, 3),
        ({}, {"max_workers": None}, 32),
        ({"max_concurrency": 5}, {"max_workers": 3}, 5),
    ],
)
def test_max_workers_is_the_number_of_slots_unless_the_run_says_another(settings, options, slots):
    made = run(flash(**settings), **options)
    assert made.last.slots["task"] == slots


@EVERY_MODE
def test_as_many_evaluations_run_at_once_as_there_are_workers_in_every_mode(mode):
    evaluator = meeting(Evaluator(), 3 if "single" not in mode else 1)
    made = run(local(), mode=mode, evaluator=evaluator, max_workers=3, calls=90)
    assert 1 <= evaluator.most_at_once <= 3
    assert "single" in mode or evaluator.most_at_once == 3
    assert all(name.startswith("flashevolve-slot-") for name in evaluator.threads)
    check(made, 90)


def test_a_single_task_evaluates_several_candidates_at_once():
    seed, evaluator = threading.Event(), Evaluator()
    barrier = threading.Barrier(3)

    def working():
        if not seed.is_set():
            seed.set()
        elif len(evaluator.calls) <= 4:
            barrier.wait(60)

    evaluator.working = working
    run(local(), mode="single task", evaluator=evaluator, max_workers=3)
    assert evaluator.most_at_once == 3


@pytest.mark.parametrize(
    "options",
    [
        {"parallel": False},
        {"parallel": False, "max_refinements": 1, "refiner_lm": Refiner()},
        {"parallel": False, "max_refinements": 1, "batch": True},
        {"batch": True},
    ],
)
def test_what_may_not_run_at_once_runs_alone_while_reflection_goes_on(options):
    """The evaluation after the first proposal's waits for that one's reflection, which waits for it."""
    reflecting, overlapped, waited = threading.Event(), threading.Event(), []

    def made_of(flash, evaluating, reflect):
        given, evaluator, reflection = dict(options), Evaluator(), task.Words()
        if given.pop("batch", False):
            evaluator = BatchEvaluator()
            given |= {"evaluator": None, "batch_evaluator": evaluator}
            given |= {"refiner_lm": Refiner()} if "max_refinements" in given else {}
        else:
            given["evaluator"] = evaluator
        evaluator.working, reflection.working = lambda: evaluating(evaluator), lambda: reflect(evaluator)
        return run(flash, reflection_lm=reflection, max_workers=8, **given), evaluator

    before = []  # calls of the evaluator before each reflection
    made_of(local(max_items=1), lambda evaluator: None, lambda evaluator: before.append(len(evaluator.calls)))

    def evaluating(evaluator):
        if len(evaluator.calls) > before[0]:
            waited.append(reflecting.wait(60))
            overlapped.set()

    def reflect(_):
        reflecting.set()
        waited.append(overlapped.wait(60))

    made, evaluator = made_of(local(), evaluating, reflect)
    assert set(waited) == {True}
    assert evaluator.most_at_once == 1
    assert made.last.slots["task"] == 1
    check(made, 60)


def test_a_batch_evaluator_gets_all_pairs_of_a_stage_in_one_call_and_one_sentence_tells_how_to_allow_more(caplog):
    batch, evaluator = BatchEvaluator(), Evaluator()
    made = run(flash(), evaluator=evaluator, batch_evaluator=batch, sampling_strategy=PxNSampling(2, 2), calls=120)
    assert evaluator.calls == []
    assert max(batch.sizes) >= 4 * 3  # four proposals, minibatches of three
    assert sum(batch.sizes) == len(batch.calls) == made.result.total_metric_calls <= 120
    (message,) = [each for each in caplog.messages if "batch_evaluator" in each]
    assert message == (
        "batch_evaluator is called one batch at a time: pass Flash(evaluate='batch') if several threads may call it at "
        "once."
    )


def test_a_batch_evaluator_runs_several_batches_at_once_where_the_run_says_so(caplog):
    batch = BatchEvaluator()
    seed, barrier = threading.Event(), threading.Barrier(2)

    def working():
        if not seed.is_set():
            seed.set()
        elif len(batch.sizes) <= 3:
            barrier.wait(60)

    batch.working = working
    made = run(local(evaluate="batch", max_concurrency=2), evaluator=None, batch_evaluator=batch, calls=80)
    assert batch.most_at_once == 2
    assert set(batch.sizes) == {3, 6}
    assert not [each for each in caplog.messages if "batch_evaluator" in each]
    check(made, 80)


def test_a_refiner_lets_batch_evaluator_be_called_example_by_example_as_the_host_does():
    batch = meeting(BatchEvaluator(), 3)
    made = run(local(), evaluator=None, batch_evaluator=batch, refiner_lm=Refiner(), max_workers=3)
    assert set(batch.sizes) == {1}
    assert batch.most_at_once == made.last.slots["task"] == 3
    assert all(name.startswith("flashevolve-slot-") for name in batch.threads)
    check(made, 60)


@pytest.mark.parametrize(
    ("asked", "options", "name", "remedy"),
    [
        ("batch", {}, "EngineConfig(parallel=True)", "; max_concurrency bounds how many run at once"),
        ("example", {"parallel": False}, "EngineConfig(parallel=False)", ""),
        ("example", {"batch_evaluator": BatchEvaluator()}, "batch_evaluator", ", or write evaluate='batch'"),
    ],
)
def test_another_way_to_evaluate_than_declared_is_refused_in_one_sentence(asked, options, name, remedy):
    evaluator, way = Evaluator(), "example by example" if asked == "batch" else "one batch at a time"
    with pytest.raises(UsageError) as refused:
        run(flash(evaluate=asked), evaluator=evaluator, **options)
    assert str(refused.value) == (
        f"evaluate={asked!r} does not go with {name}, which evaluates {way}: leave it out{remedy}."
    )
    assert evaluator.calls == []


def test_a_concurrency_that_parallel_false_forbids_is_told(caplog):
    run(flash(max_concurrency=8), parallel=False)
    words = "EngineConfig(parallel=False) evaluates one batch at a time, whatever max_concurrency=8 says."
    assert caplog.messages.count(words) == 1
    caplog.clear()
    run(flash(max_concurrency=1), parallel=False)
    run(flash(lockstep=True), parallel=False, batch_evaluator=BatchEvaluator())
    assert not [each for each in caplog.messages if "one batch" in each]


# -- whose output is whose ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["multi task", "generalization", "seedless"])
def test_logs_and_prints_of_evaluations_at_once_stay_apart(mode, capsys):
    evaluator = meeting(Printing(), 4)
    made = run(local(), mode=mode, evaluator=evaluator, max_workers=4, capture_stdio=True, calls=80)
    assert evaluator.most_at_once == 4
    told = list(made.evaluations())
    assert len(told) > 12
    for candidate, example, _, info in told:
        of = line(candidate, example)
        assert info["of"] == of
        assert info["log"] == info["stdout"] == f"begins {of}\nends {of}\n"
        assert info["stderr"] == f"begins badly {of}\nends badly {of}\n"
    assert capsys.readouterr() == ("", "")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_prints_are_captured_beside_a_progress_line_on_a_terminal(monkeypatch):
    drawing, start = threading.Event(), rich.live.Live.start

    def begin(live, *arguments):
        start(live, *arguments)
        drawing.set()

    monkeypatch.setattr(rich.live.Live, "start", begin)
    monkeypatch.setattr(sys, "stderr", Terminal())
    before, evaluator = sys.stdout, Printing()
    evaluator.working = lambda: drawing.wait(60)
    made = run(Flash(max_concurrency=4), evaluator=evaluator, capture_stdio=True, best_example_evals_k=100)
    infos = [each["side_info"] for kept in made.engine.adapter._best_evals_by_example.values() for each in kept]
    assert len(infos) == len(evaluator.calls)
    assert all(info["stdout"] == "begins {0}\nends {0}\n".format(info["of"]) for info in infos)
    assert sys.stdout is before
    assert drawing.is_set()


def test_an_evaluation_that_raises_is_scored_with_its_own_error_and_log():
    fails = lambda candidate, example: example is not None and example % 2 == 1  # noqa: E731
    made = run(local(max_concurrency=4), evaluator=Printing(fails), raise_on_exception=False, capture_stdio=True)
    odd = [each for each in made.evaluations() if each[1] % 2]
    assert odd
    for candidate, example, score, info in odd:
        of = line(candidate, example)
        assert (score, info["error"], info["log"]) == (0.0, f"no {example}", f"begins {of}\n")
        assert info["stdout"] == info["log"]
    assert all(info["of"] == line(candidate, each) for candidate, each, _, info in made.evaluations() if each % 2 == 0)
    assert made.result.total_metric_calls == made.last.spent <= 60


@pytest.mark.parametrize("kind", [Evaluator, BatchEvaluator])
def test_an_evaluation_that_raises_ends_the_run_where_the_host_would(kind):
    evaluator = kind(fails=lambda candidate, example: len(task.texts_of(candidate)["a"]) > 5)
    functions = {"evaluator": evaluator} if kind is Evaluator else {"evaluator": None, "batch_evaluator": evaluator}
    made = run(local(), catch=True, **functions)
    assert isinstance(made.error, RuntimeError)
    assert made.callbacks.named("on_error")[0]["will_continue"] is False


@pytest.mark.parametrize("k", [1, 3])
def test_an_evaluator_is_given_the_best_evaluations_of_its_own_example(k):
    evaluator = Warm()
    run(local(max_concurrency=4), evaluator=evaluator, best_example_evals_k=k, calls=150)
    assert {len(best) for _, best in evaluator.seen} == set(range(k + 1))
    for example, best in evaluator.seen:
        scores = [each["score"] for each in best]
        assert scores == sorted(scores, reverse=True)
        assert all(each["side_info"]["of"].startswith(f"{example}:") for each in best)


# -- what is paid for --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refinements", [0, 1, 3])
@pytest.mark.parametrize("parallel", [True, False])
def test_a_refiner_s_calls_never_pass_the_budget(refinements, parallel):
    for calls in range(40, 64, 3):
        reached = run(
            flash(max_concurrency=12, staleness="full"),
            refiner_lm=Refiner(),
            max_refinements=refinements,
            parallel=parallel,
            calls=calls,
        )
        check(reached, calls)
        counted = sum(
            sum("side_info" in each for each in info["refiner_prompt_specific_info"]["Attempts"])
            for *_, info in reached.evaluations()
        )
        validated = len(task.VALID) * len(reached.result.candidates)
        assert reached.result.total_metric_calls >= counted + validated  # an item may have ended before it was told
        if not reached.last.ended.get("discarded"):
            assert reached.result.total_metric_calls == counted + validated


class Longer(Evaluator):
    """The more words, the better."""

    def found(self, candidate, example):
        return len(task.texts_of(candidate)["a"].split()) / 20


class LateRefiner(Refiner):
    """Improves every text but the seed's."""

    def answer(self, prompt):
        texts = json.loads(prompt.partition(task.JSON)[2].partition("\n```")[0])
        return "no JSON" if texts["a"] == "start" else json.dumps({"a": f"{texts['a']} more"})


def test_a_refiner_that_costs_more_than_ever_before_passes_no_budget(monkeypatch):
    def seconds(adapter, stage, *what):
        return 0.0 if stage == "dataset" else 1.0  # so that the gates of several proposals begin together

    monkeypatch.setattr(oa.OptimizeAnythingAdapter, "flashevolve_seconds", seconds, raising=False)
    for calls in range(40, 70):
        made = run(
            flash(max_concurrency=100, reflection_concurrency=8, staleness="full"),
            evaluator=Longer(),
            refiner_lm=LateRefiner(),
            max_refinements=3,
            calls=calls,
        )
        assert made.result.total_metric_calls == made.last.spent <= calls
        assert len(made.result.candidates) > 1


def test_a_proposal_with_a_refiner_is_refused_by_what_it_may_cost_at_most():
    words = r"one proposal \(24\) and its validation \(6\): raise it to at least 36"
    with pytest.raises(UsageError, match=words):
        run(flash(), refiner_lm=Refiner(), max_refinements=3, calls=35)
    check(run(flash(), refiner_lm=Refiner(), max_refinements=3, calls=36), 36)


@EVERY_MODE
def test_a_cache_evaluates_nothing_twice(mode):
    made = run(flash(max_concurrency=4), mode=mode, cache_evaluation=True, calls=120)
    assert set(made.evaluated.values()) == {1}
    assert made.result.total_metric_calls == made.last.spent <= 120


@pytest.mark.parametrize("mode", ["single task", "multi task"])
def test_a_cache_spares_validations_what_the_gate_has_found_on_the_same_examples(mode):
    host = run(None, mode=mode, cache_evaluation=True, calls=120)
    made = run(flash(max_items=1, staleness="full"), mode=mode, cache_evaluation=True, calls=120)
    for each, spared in ((host, 0), (made, made.last.spared)):
        assert len(each.result.candidates) > 1
        minibatches = sum(len(event["scores"]) for event in each.callbacks.named("on_evaluation_end"))
        size = len(each.engine.valset)
        minibatch = 1 if mode == "single task" else 3
        assert each.result.total_metric_calls == (
            minibatches - spared + size + (len(each.result.candidates) - 1) * (size - minibatch)
        )
    assert made.last.spared > 0


def test_a_cache_on_disk_serves_the_next_run(tmp_path):
    options = {"run_dir": str(tmp_path), "cache_evaluation": True, "max_workers": 4}
    first = run(local(), calls=60, **options)
    assert len(list((tmp_path / "fitness_cache").iterdir())) == len(first.evaluated)
    second = run(local(), calls=100, **options)
    assert not set(first.evaluated) & set(second.evaluated)
    assert second.result.candidates[: len(first.result.candidates)] == first.result.candidates


@pytest.mark.parametrize("mode", ["single task", "generalization"])
@pytest.mark.parametrize("order", [(True, False), (False, True), (True, True)])
def test_a_run_begun_under_one_executor_is_resumed_under_another(tmp_path, mode, order):
    first, second = (local() if under_flash else None for under_flash in order)
    begun = run(first, mode=mode, calls=50, run_dir=str(tmp_path))
    resumed = run(second, mode=mode, calls=100, run_dir=str(tmp_path))
    assert resumed.result.candidates[: len(begun.result.candidates)] == begun.result.candidates
    assert resumed.result.total_metric_calls > begun.result.total_metric_calls
    assert second is None or resumed.result.total_metric_calls <= 100


def test_a_configuration_serves_a_second_run():
    configs = []
    run(flash(), configure=lambda config: configs.append(config) or config, calls=40)
    (config,) = configs
    again = replace(config, engine=replace(config.engine, max_metric_calls=50))
    made = run(flash(), configure=lambda _: again)
    assert made.result.total_metric_calls <= 50


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_how_to_page_s_program_runs_as_it_stands(source_root, tmp_path):
    page = (source_root / "docs/how-to/optimize-anything.md").read_text("utf-8")
    program = page.partition("```python\n")[2].partition("\n```\n\nAll")[0]
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert set(done.stdout.split()) == {"sun", "rain", "wind", "snow", "fog"}, done.stderr
    assert done.stderr.splitlines()[-1].startswith("flash: ")


class Another(Evaluator):
    pass


class AnotherBatch(BatchEvaluator):
    pass


@pytest.mark.parametrize(
    ("same", "other"),
    [
        ({"evaluator": Evaluator}, {"evaluator": Another}),
        ({"evaluator": None, "batch_evaluator": BatchEvaluator}, {"evaluator": None, "batch_evaluator": AnotherBatch}),
    ],
    ids=["alone", "together"],
)
def test_a_run_directory_of_another_evaluator_is_refused(tmp_path, same, other):
    for calls, functions in ((40, same), (60, same), (80, other)):
        made = {name: kind and kind() for name, kind in functions.items()}
        with pytest.raises(UsageError, match="the metric differs") if functions is other else nullcontext():
            run(local(), calls=calls, run_dir=str(tmp_path), **made)


def test_a_seedless_run_goes_on_though_the_model_writes_another_seed_then(tmp_path):
    first = run(local(), calls=40, mode="seedless", run_dir=str(tmp_path))
    again = run(
        local(), calls=80, mode="seedless", run_dir=str(tmp_path), reflection_lm=lambda _: "```\nquite another\n```"
    )
    assert again.result.candidates[: len(first.result.candidates)] == first.result.candidates
    assert first.result.total_metric_calls <= 40 < again.result.total_metric_calls <= 80
