"""A metric may be ``async def``: it is awaited, on one event loop per run, in lockstep too."""

import asyncio
import functools
import gc
import logging
import signal
import threading

import dspy
import pytest

from flashevolve_plugins import Flash
from flashevolve_plugins._event_loop import THREAD_NAME

MODES = {"lockstep": {"lockstep": True}, "one item at a time": {"max_items": 1}, "many items at once": {}}


def flash(mode):
    return Flash(progress=False, **MODES[mode])


@pytest.fixture
def failures(caplog, monkeypatch):
    """Collect what is logged of failing examples."""
    logger = logging.getLogger("dspy.utils.parallelizer")
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    monkeypatch.setattr(logger, "propagate", False)
    return caplog


def join_slots():
    for thread in threading.enumerate():
        if thread.name.startswith(("flashevolve-slot", THREAD_NAME)):
            thread.join(60)


class Awaited:
    """A task's metric as an instance whose call gives an awaitable, and where it was awaited."""

    def __init__(self, task):
        self.task, self.threads, self.loops, self.models = task, set(), set(), set()

    async def __call__(self, gold, pred, trace=None, pred_name=None, pred_trace=None):
        await asyncio.sleep(0)
        self.threads.add(threading.current_thread().name)
        self.loops.add(asyncio.get_running_loop())
        self.models.add(dspy.settings.lm.model)
        return self.task.metric(gold, pred, trace, pred_name, pred_trace)

    async def function(self, gold, pred, trace=None, pred_name=None, pred_trace=None):
        return await self(gold, pred, trace, pred_name, pred_trace)

    def plain_function(self, *arguments):
        return self(*arguments)


async def more(awaited, *arguments):
    return await awaited(*arguments)


KINDS = {
    "an async function": lambda awaited: awaited.function,
    "an instance": lambda awaited: awaited,
    "a partial": lambda awaited: functools.partial(more, awaited),
    "a function that gives a coroutine": lambda awaited: awaited.plain_function,
}


def test_the_host_itself_cannot_await(task):
    awaited, made = Awaited(task), []

    def metric(*arguments):
        made.append(awaited(*arguments))
        return made[-1]

    with pytest.raises(TypeError, match="coroutine"):
        task.compile(None, metric=metric, num_threads=1)
    for each in made:
        each.close()


@pytest.mark.parametrize("mode", ["lockstep", "one item at a time"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_gives_what_the_plain_metric_gives(kind, mode, task, summary):
    awaited = Awaited(task)
    metrics = task.metric, KINDS[kind](awaited)
    plain, mine = (summary(task.compile(flash(mode), student=task.pair(), metric=metric)) for metric in metrics)
    assert mine == plain
    assert len(plain["candidates"]) > 2
    assert awaited.threads == {THREAD_NAME}
    assert awaited.models == {"task"}
    assert len(awaited.loops) == 1
    assert task.feedback_calls


def test_many_are_awaited_at_once(task, consistent):
    """The seed's examples wait for each other inside the metric."""
    inside, all_inside = [], []

    async def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
        if not all_inside:
            all_inside.append(asyncio.Event())
        inside.append(gold)
        if len(inside) == 8:
            all_inside[0].set()
        await asyncio.wait_for(all_inside[0].wait(), 60)
        return task.metric(gold, pred, trace, pred_name, pred_trace)

    program = task.compile(flash("many items at once"), metric=metric, num_threads=8)
    consistent(task, program, 100)
    assert all_inside[0].is_set()


@pytest.mark.parametrize("mode", MODES)
def test_it_may_be_compiled_inside_a_running_event_loop(mode, task):
    async def notebook():
        return task.compile(flash(mode), metric=Awaited(task).function)

    program = asyncio.run(notebook())
    assert max(program.detailed_results.val_aggregate_scores) > program.detailed_results.val_aggregate_scores[0]


@pytest.mark.parametrize("mode", MODES)
def test_one_that_raises_gives_the_failure_score(mode, task):
    async def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
        if "case 101" in gold.question:
            raise ValueError("no score")
        return task.metric(gold, pred, trace, pred_name, pred_trace)

    budget = 8 if mode == "lockstep" else 22  # the own loop of dspy 3.3 does not get over a validation that raises
    program = task.compile(flash(mode), metric=metric, failure_score=0.125, max_metric_calls=budget)
    assert program.detailed_results.val_subscores[0][1] == 0.125


FEEDBACKS = {"a number": lambda score: score, "no feedback": lambda score: dspy.Prediction(score=score, feedback=None)}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what", FEEDBACKS)
def test_feedback_that_is_missing_is_made_of_the_score(what, mode, task):
    prompts = []

    async def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
        return FEEDBACKS[what](task.metric(gold, pred, trace, pred_name, pred_trace).score)

    task.on_reflect = lambda system, user: prompts.append(system + user)
    task.compile(flash(mode), metric=metric, max_metric_calls=40)
    assert prompts
    assert all("This trajectory got a score of 0.0." in prompt for prompt in prompts)


@pytest.mark.parametrize(("mode", "kind"), [*((mode, KeyboardInterrupt) for mode in MODES), ("lockstep", SystemExit)])
def test_leaving_the_interpreter_inside_it_ends_the_run(mode, kind, task):
    async def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
        if len(task.metric_calls) >= 10:
            raise kind("enough")
        return task.metric(gold, pred, trace, pred_name, pred_trace)

    with pytest.raises(kind):
        task.compile(flash(mode), metric=metric)


def test_ctrl_c_cancels_what_is_being_awaited_and_calls_it_no_failure(task, failures):
    cancelled, waiting, main = [], [], threading.main_thread()

    async def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
        waiting.append(gold)
        if len(waiting) == 4:
            signal.pthread_kill(main.ident, signal.SIGINT)
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            cancelled.append(gold)
            raise

    hurried = flash("many items at once")
    hurried.grace = 0.0
    with pytest.raises(KeyboardInterrupt):  # there is no result yet
        task.compile(hurried, metric=metric)
    join_slots()
    assert len(cancelled) == 4
    assert [record.name for record in failures.records] == ["flashevolve_plugins"]  # that it stops, and no failure


def test_one_that_is_cancelled_by_its_own_code_fails_its_example(task, failures):
    async def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
        if "case 101" in gold.question:
            raise asyncio.CancelledError
        return task.metric(gold, pred, trace, pred_name, pred_trace)

    program = task.compile(flash("many items at once"), metric=metric, failure_score=0.125, max_metric_calls=22)
    assert program.detailed_results.val_subscores[0][1] == 0.125
    assert "case 101" in failures.text


def test_what_goes_on_after_the_run_awaits_nothing_and_leaves_nothing_unawaited(task):
    """A reflective dataset under way asks for one feedback, and then for more when the run is over."""
    over, main = threading.Event(), threading.main_thread()

    def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
        if pred_name is not None and not over.is_set():
            signal.pthread_kill(main.ident, signal.SIGINT)
            assert over.wait(60)
            return 0.0
        return Awaited(task)(gold, pred, trace, pred_name, pred_trace)

    task.compile(flash("one item at a time"), metric=metric)
    asked = len(task.feedback_calls)
    over.set()
    join_slots()
    gc.collect()
    assert len(task.feedback_calls) == asked


def test_flex_code_is_scored_by_one_that_asks_for_the_trace(task):
    traces = []

    async def metric(gold, pred, trace=None, pred_name=None, pred_trace=None, program_trace=None):
        traces.append((trace, program_trace))
        return 0.5

    for mode in MODES:
        task.compile(flash(mode), student=task.flex(), metric=metric, max_metric_calls=30)
        assert all(trace is None and isinstance(program_trace, list) for trace, program_trace in traces)
        assert len(traces) >= 8
        traces.clear()
