"""What raises: on every example it ends the run at once, on some it is the host's failure score."""

import signal
import socket
import sys
import threading

import dspy
import pytest

from flashevolve_plugins import BackendError, Flash, UsageError, _governor

FAILURE = 0.125


@pytest.fixture
def flash():
    """Give a quiet flash; whatever the test did, no thread of it stays."""
    yield Flash(progress=False)
    left = [each for each in threading.enumerate() if each.name.startswith("flashevolve-slot")]
    for each in left:
        each.join(60)
    assert not [each for each in left if each.is_alive()]


def number(gold):
    return int(gold.question.split()[1]) - 100  # position in the valset


# The first ten wait for each other, as many at a time as there are slots. Each that ends lets one begin, which waits
# until the run has heard of the tenth; that one lets none begin.
@pytest.mark.parametrize(("valset", "threads", "most"), [(4, 2, 11), (30, 1, 10), (30, 5, 14)])
def test_a_metric_that_raises_on_every_example_ends_the_run_at_once(valset, threads, most, task, flash, heard):
    number, together = iter(range(10)), threading.Barrier(threads)

    def fail(*_):
        if next(number, None) is None:
            assert heard.wait(60)
        else:
            together.wait(60)
        raise KeyError("gold_answer")

    task.on_metric = fail
    message = r"first 10 examples raised in the metric \(KeyError: 'gold_answer'\): correct the metric, then run"
    with pytest.raises(BackendError, match=message) as caught:
        task.compile(flash, val=valset, num_threads=threads)
    assert isinstance(caught.value.__cause__, KeyError)
    assert 10 <= len(task.metric_calls) <= most


def test_a_program_that_raises_on_every_example_ends_the_run_at_once(task, flash):
    class Broken(dspy.Module):
        def forward(self, question):
            raise AttributeError("no such tool")

    student = Broken()
    student.unused = dspy.Predict("question -> answer")
    with pytest.raises(BackendError, match=r"raised in the program \(AttributeError: no such tool\)"):
        task.compile(flash, student=student, val=30)
    assert task.metric_calls == []


def test_an_lm_that_never_works_ends_the_run_in_one_sentence(task):
    def fail(*_):
        raise ConnectionResetError("reset")

    task.on_task = fail
    flash = Flash(progress=False, max_outage=0.5)
    with pytest.raises(
        BackendError,
        match=r"task calls failed in \d+ s and none succeeded, the last one with (LMUnexpected|ConnectionReset)",
    ):
        task.compile(flash, val=30, num_threads=1)
    assert task.metric_calls == []
    assert flash.last_run.spent == 0
    assert flash.last_run.failures["connection"] >= 3


PLACES_OF_A_FAILURE = {
    "program": ("on_task", lambda task: len(task.task_calls)),
    "metric": ("on_metric", lambda task: len(task.metric_calls)),
    "feedback": ("on_metric", lambda task: len(task.feedback_calls)),
    "reflection": ("on_reflect", lambda task: len(task.reflections)),
}


@pytest.mark.parametrize("place", PLACES_OF_A_FAILURE)
def test_a_server_that_fails_now_and_then_changes_no_score_and_no_charge(place, task, consistent, monkeypatch):
    monkeypatch.setattr(_governor, "FIRST_DELAY", 0.01)
    where, count = PLACES_OF_A_FAILURE[place]
    raised, lock = [], threading.Lock()

    def fail(*arguments):
        if place == "metric" and arguments[2] is not None:
            return
        with lock:
            now = count(task)
            failing = now % 3 == 1 and now not in raised and len(raised) < 6
            if failing:
                raised.append(now)
        if failing:
            raise ConnectionResetError("reset")

    setattr(task, where, fail)
    flash = Flash(progress=False)
    # dspy 3.3.1 asks again for JSON where the LM fails, which this task's LM cannot give
    with dspy.context(adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        program = task.compile(flash, failure_score=FAILURE)
    consistent(task, program, 100, calls=place != "metric")
    assert raised
    assert flash.last_run.retries == len(raised)
    assert all(score in (0, 1) for scores in program.detailed_results.val_subscores for score in scores.values())
    assert len(task.metric_calls) - len(raised) * (place == "metric") == program.detailed_results.total_metric_calls


def test_failures_that_are_only_quicker_than_the_rest_end_nothing(task, consistent):
    """One of the first ten examples works, and is the last of all to end."""
    raised, enough = [], threading.Event()

    def metric(gold, pred, name):
        if number(gold) == 3:
            assert enough.wait(60)
        elif 0 <= number(gold) < 25:
            raised.append(number(gold))
            if len(set(raised)) >= 15:
                enough.set()
            raise ValueError("no score")

    task.on_metric = metric
    program = task.compile(Flash(progress=False), val=30, max_metric_calls=110)
    consistent(task, program, 110)
    assert len(program.detailed_results.val_subscores[0]) == 30


def test_one_example_that_works_is_enough_to_go_on(task, consistent):
    """The eleventh works before the first ten raise."""
    works = threading.Event()

    def metric(gold, pred, name):
        if number(gold) == 11:
            works.set()  # only the slot of the tenth is free for it
        elif 0 <= number(gold) < 10:
            assert works.wait(60)
            raise ValueError("no score")

    task.on_metric = metric
    program = task.compile(Flash(progress=False), val=16, num_threads=11, max_metric_calls=60)
    consistent(task, program, 60)
    assert works.is_set()


def test_what_raises_on_some_examples_gets_the_failure_score_as_in_the_host(task, flash, consistent):
    def metric(gold, pred, name):
        if number(gold) in (1, 5):
            raise ValueError("no score")

    def program(system, user):
        if "case 102" in user:
            raise RuntimeError("no answer")

    task.on_metric, task.on_task = metric, program
    host = task.compile(None, failure_score=FAILURE, max_metric_calls=8).detailed_results  # dspy 3.3.1 raises later on
    task.metric_calls.clear()
    mine = task.compile(flash, failure_score=FAILURE).detailed_results
    for found in (host, mine):
        assert all(scores[1] == scores[2] == scores[5] == FAILURE for scores in found.val_subscores)
    assert mine.val_subscores[0] == host.val_subscores[0]
    assert len(mine.candidates) > 1
    assert len(task.metric_calls) <= mine.total_metric_calls <= 100


def test_what_cannot_be_parsed_scores_as_in_the_host(task, flash):
    class Strict(dspy.ChatAdapter):
        def __init__(self):
            super().__init__(use_json_adapter_fallback=False)

    def mumble(system, user):
        return "mumble" if "case 101" in user or "case 4" in user else task._answer(system, user)

    results = []
    with dspy.context(lm=task.make_lm("mumbling", mumble), adapter=Strict()):
        for executor in (None, Flash(lockstep=True, progress=False), flash):
            program = task.compile(executor, failure_score=FAILURE, add_format_failure_as_feedback=True)
            results.append(program.detailed_results)
    host, lockstep, mine = results
    assert host.val_subscores == lockstep.val_subscores
    assert mine.val_subscores[0] == host.val_subscores[0]
    assert {scores[1] for scores in mine.val_subscores} == {FAILURE}
    assert len(mine.candidates) > 1


@pytest.fixture
def nobody():
    """Give the base URL of a port that nobody listens on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/v1"


@pytest.mark.parametrize("which", ["task", "reflection", "predictor"])
@pytest.mark.parametrize("lockstep", [False, True])
def test_a_server_that_is_not_there_is_told_before_any_metric_call(which, lockstep, nobody, task):
    dead = dspy.LM("openai/some-model", api_base=nobody, api_key="none", num_retries=0)
    student, options = task.student(), {"reflection_lm": dead} if which == "reflection" else {}
    if which == "predictor":
        student.set_lm(dead)
    refused = pytest.raises(BackendError, match=f"No server answers at {nobody} .*Nothing was spent")
    with dspy.context(lm=dead if which == "task" else task.task_lm), refused:
        task.compile(Flash(progress=False, lockstep=lockstep), student=student, **options)
    assert task.metric_calls == task.task_calls == task.reflections == []


PLACES = {
    "the seed's validation": ("on_metric", lambda task: len(task.metric_calls) == 5),
    "a rollout": ("on_metric", lambda task: len(task.metric_calls) == 10),
    "the program": ("on_task", lambda task: len(task.task_calls) == 12),
    "a reflection": ("on_reflect", lambda task: len(task.reflections) == 2),
    "the feedback": ("on_metric", lambda task: len(task.feedback_calls) == 4),
}


@pytest.mark.parametrize(
    ("lockstep", "kind"), [(False, KeyboardInterrupt), (True, KeyboardInterrupt), (True, SystemExit)]
)
@pytest.mark.parametrize("place", PLACES)
def test_leaving_the_interpreter_ends_the_run(lockstep, place, kind, task, flash, heard):
    """Outside lockstep all that comes after it waits until the run has heard: a call in each slot at most."""
    where, now = PLACES[place]
    raised, slots = [], 4

    def wait(*_):
        if raised and not lockstep:
            assert heard.wait(60)

    def leave(*_):
        with task.lock:
            leaves = not raised and now(task)
            if leaves:
                raised.append(len(task.metric_calls))
        if leaves:
            raise kind("enough")
        wait()

    task.on_task = task.on_metric = task.on_reflect = wait
    setattr(task, where, leave)
    with pytest.raises(kind):
        task.compile(Flash(progress=False, lockstep=True) if lockstep else flash, num_threads=slots)
    assert raised
    assert lockstep or len(task.metric_calls) <= raised[0] + slots


@pytest.mark.parametrize("place", PLACES)
def test_sys_exit_ends_neither_the_process_nor_a_slot(place, task, flash, consistent):
    """It is the failure of an example, or of a reflection; a reflective dataset that fails skips its proposal."""
    where, now = PLACES[place]
    raised = []

    def leave(*_):
        with task.lock:
            if raised or not now(task):
                return
            raised.append(True)
        sys.exit("enough")

    setattr(task, where, leave)
    program = task.compile(flash)
    consistent(task, program, 100, calls=place in {"a reflection", "the feedback"})
    assert raised
    assert len(program.detailed_results.candidates) > 1


def test_ctrl_c_ends_a_run_whose_samples_hang_once_the_grace_period_is_over(task, flash):
    release, full, main = threading.Event(), threading.Barrier(4), threading.main_thread()
    assert threading.current_thread() is main

    def hang(*_):
        if full.wait(60) == 0:
            signal.pthread_kill(main.ident, signal.SIGINT)
        release.wait(60)

    task.on_metric, flash.grace = hang, 0.2
    try:
        with pytest.raises(KeyboardInterrupt):  # there is no result yet
            task.compile(flash)
        assert not release.is_set()
    finally:
        release.set()


def test_a_score_that_is_no_number_ends_the_run_where_the_host_s_ends_too(task, flash):
    for executor, error in ((None, TypeError), (flash, UsageError)):
        with pytest.raises(error):
            task.compile(executor, metric=lambda gold, pred, *rest, **named: "high")
