"""A program with `aforward` alone runs as coroutines on the run's event loop, and gives what its plain twin gives."""

import asyncio
import functools
import logging
import threading
from collections import Counter

import dspy
import pytest
from dspy.utils.callback import BaseCallback
from dspy.utils.callback_context import ACTIVE_CALL_ID
from threads_told import until

from flashevolve_plugins import BackendError, Flash, UsageError
from flashevolve_plugins._event_loop import HELPER_NAME, THREAD_NAME

LOCKSTEP, ONE, MANY = {"lockstep": True}, {"max_items": 1}, {}


class Pair(dspy.Module):
    """The task's program with two predictors, to be awaited.

    Args:
        task: the task.
        meanwhile: awaited between the two with the question.
    """

    def __init__(self, task, meanwhile=None):
        super().__init__()
        self.draft = dspy.Predict(dspy.Signature("question -> draft", "Answer."))
        self.final = dspy.Predict(dspy.Signature("question, draft -> answer", "Answer."))
        self._task, self._meanwhile = task, meanwhile

    async def aforward(self, question):
        self._task.where.append((threading.current_thread().name, asyncio.get_running_loop(), dspy.settings.lm.model))
        draft = (await self.draft.acall(question=question)).draft
        if self._meanwhile is not None:
            await self._meanwhile(question)
        return dspy.Prediction(draft=draft, answer=(await self.final.acall(question=question, draft=draft)).answer)


@pytest.fixture
def task(task):
    task.where = []  # (thread, loop, model) of each call of the program
    return task


def flash(**options):
    return Flash(progress=False, **options)


def mumble(task):
    def answer(system, user):
        return "mumble" if "case 101" in user or "case 4" in user else task._answer(system, user)

    return task.make_lm("mumbling", answer)


@pytest.mark.parametrize("executor", [None, flash(**LOCKSTEP)], ids=["the host", "lockstep"])
def test_the_host_cannot_call_it_and_neither_does_lockstep(executor, task):
    """The seed's validation is all failures; the first rollout asks for `forward`."""
    with pytest.raises(AttributeError, match="forward"):
        task.compile(executor, student=Pair(task))
    assert task.metric_calls == task.where == []


OPTIONS = {
    "plain": {},
    "merges": {"max_metric_calls": 140, "component_selector": "all"},
    "one thread": {"num_threads": 1},
    "failures": {"failure_score": 0.125, "lm": mumble},
    "the training set is the validation set": {"val": None},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_it_gives_what_its_plain_twin_gives(name, task, summary):
    options = dict(OPTIONS[name])
    lm = options.pop("lm", lambda task: task.task_lm)(task)
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        plain, mine = (
            summary(task.compile(flash(**ONE), student=student, **options)) for student in (task.pair(), Pair(task))
        )
    assert mine == plain
    assert len(plain["candidates"]) > 1
    assert {(thread, model) for thread, _, model in task.where} == {(THREAD_NAME, lm.model)}
    assert len({loop for _, loop, _ in task.where}) == 1


@pytest.mark.parametrize("slots", [1, 5])
def test_as_many_coroutines_run_at_once_as_there_are_slots(slots, task, consistent):
    """The first ones wait for each other."""
    inside, most, all_inside = Counter(), [], []

    async def meanwhile(question):
        all_inside[:] = all_inside or [asyncio.Event()]
        inside["now"] += 1
        most.append(inside["now"])
        if len(most) == slots:
            all_inside[0].set()
        await asyncio.wait_for(all_inside[0].wait(), 60)
        await asyncio.sleep(0)
        inside["now"] -= 1

    program = task.compile(flash(max_concurrency=slots), student=Pair(task, meanwhile))
    consistent(task, program, 100)
    assert max(most) == slots


def awaited(task, seen):
    async def metric(*arguments):
        seen.add((threading.current_thread().name, asyncio.get_running_loop()))
        await asyncio.sleep(0)
        return task.metric(*arguments)

    return metric


@pytest.mark.parametrize("how", [ONE, MANY], ids=str)
def test_program_metric_and_feedback_share_one_loop(how, task):
    seen = set()
    task.compile(flash(**how), student=Pair(task), metric=awaited(task, seen))
    assert task.feedback_calls
    assert seen == {(THREAD_NAME, loop) for _, loop, _ in task.where}
    assert len(seen) == 1


def test_a_client_may_be_shared_between_program_and_metric(task, consistent):
    """A lock that the program makes on its first call belongs to the loop, which the metric is awaited on."""
    locks, held = [], []

    async def meanwhile(_):
        locks[:] = locks or [asyncio.Lock()]
        async with locks[0]:
            held.append("program")
            await asyncio.sleep(0)

    async def metric(*arguments):
        async with locks[0]:
            held.append("metric")
            await asyncio.sleep(0)
        return task.metric(*arguments)

    consistent(task, task.compile(flash(), student=Pair(task, meanwhile), metric=metric), 100)
    assert set(held) == {"program", "metric"}


class Instance:
    def __init__(self, task):
        self.task = task

    async def __call__(self, gold, pred, trace=None, pred_name=None, pred_trace=None):
        return self.task.metric(gold, pred, trace, pred_name, pred_trace)


def gives_coroutine(task, *arguments):
    return Instance(task)(*arguments)


async def gives_more(task, *arguments):
    return await Instance(task)(*arguments)


METRICS = {
    "an instance": Instance,
    "a partial": lambda task: functools.partial(gives_more, task),
    "a function that gives a coroutine": lambda task: functools.partial(gives_coroutine, task),
}


@pytest.mark.parametrize("kind", METRICS)
def test_metrics_of_every_kind_are_awaited(kind, task, summary):
    plain, mine = (
        summary(task.compile(flash(**ONE), student=student, metric=metric))
        for student, metric in ((task.pair(), task.metric), (Pair(task), METRICS[kind](task)))
    )
    assert mine == plain


def test_a_blocking_metric_runs_beside_the_loop_with_the_samples_context(task, consistent):
    """It waits for another example's program, which the loop can only run if it is not blocked."""
    threads, waits, going = set(), threading.Event(), threading.Event()

    async def meanwhile(question):
        if "case 107" in question:
            await until(waits)
            going.set()

    def metric(gold, *_):
        threads.add(threading.current_thread().name)
        waits.set()
        assert going.wait(60)

    task.on_metric = metric
    with dspy.context(lm=task.make_lm("another", task._answer)):
        consistent(task, task.compile(flash(), student=Pair(task, meanwhile), num_threads=8), 100)
    assert task.lms == {"another"}
    assert {name.startswith((HELPER_NAME, "flashevolve-slot")) for name in threads} == {True}
    assert any(name.startswith(HELPER_NAME) for name in threads)


def failing(task, where):
    """A program and a metric of which one raises on one example."""

    async def meanwhile(question):
        if "case 101" in question:
            raise {"program": ValueError, "cancels itself": asyncio.CancelledError}[where]

    def metric(*arguments):
        if "case 101" in arguments[0].question:
            raise KeyError(arguments[0].question)
        return task.metric(*arguments)

    if where == "metric":
        return Pair(task), metric
    return Pair(task, meanwhile), task.metric


@pytest.mark.parametrize("where", ["program", "metric", "cancels itself"])
def test_one_example_that_raises_gets_the_failure_score(where, task, caplog, monkeypatch):
    logger = logging.getLogger("dspy.utils.parallelizer")
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    monkeypatch.setattr(logger, "propagate", False)
    student, metric = failing(task, where)
    program = task.compile(flash(), student=student, metric=metric, failure_score=0.125, max_metric_calls=22)
    assert program.detailed_results.val_subscores[0][1] == 0.125
    assert "case 101" in caplog.text


def test_raising_on_every_example_ends_the_run(task, heard):
    """What begins after the first ten examples waits until the run has heard: each of the ten lets one begin."""
    slots = 4

    async def meanwhile(question):
        if int(question.split()[1]) >= 110:
            await until(heard)
        raise ValueError("no such tool")

    with pytest.raises(BackendError, match=r"first 10 examples raised in the program \(ValueError: no such tool\)"):
        task.compile(flash(), student=Pair(task, meanwhile), val=30, num_threads=slots)
    assert 10 <= len(task.where) < 10 + slots


def test_an_interrupt_inside_it_ends_the_run(task):
    async def meanwhile(_):
        if len(task.where) >= 12:
            raise KeyboardInterrupt("enough")

    with pytest.raises(KeyboardInterrupt):
        task.compile(flash(), student=Pair(task, meanwhile))


async def bound_elsewhere():
    """Things that belong to the loop that runs here, and each of them in use."""
    lock, queue, event = asyncio.Lock(), asyncio.Queue(), asyncio.Event()
    await lock.acquire()
    for waits in (lock.acquire, queue.get, event.wait):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(waits(), 0.001)
    return {"a lock": lock.acquire, "a queue": queue.get, "an event": event.wait, "a future": asyncio.Future}


@pytest.mark.parametrize("where", ["program", "metric", "metric of a plain program"])
@pytest.mark.parametrize("what", ["a lock", "a queue", "an event", "a future"])
def test_what_belongs_to_another_loop_ends_the_run_with_a_sentence(what, where, task):
    use = asyncio.run(bound_elsewhere())[what]
    if what == "a future":
        elsewhere = asyncio.new_event_loop()
        use = elsewhere.create_future

    async def client(*_):
        await asyncio.wait_for(asyncio.shield(use()) if what == "a future" else use(), 60)

    async def metric(*arguments):
        await client()
        return task.metric(*arguments)

    student = {"program": Pair(task, client), "metric": Pair(task)}.get(where) or task.pair()
    metric = task.metric if where == "program" else metric
    with pytest.raises(UsageError, match="belongs to another event loop .*make the client, lock or queue inside"):
        task.compile(flash(), student=student, metric=metric)
    assert task.metric_calls == []
    if what == "a future":
        elsewhere.close()


def test_both_ways_to_call_it_are_the_hosts_way(task, in_slots):
    class Both(Pair):
        def forward(self, question):
            task.where.append((threading.current_thread().name, None, None))
            return dspy.Prediction(draft=self.draft(question=question).draft, answer="right")

    task.compile(flash(), student=Both(task), max_metric_calls=22)
    assert set(in_slots(name for name, *_ in task.where)) == {True}


def test_an_agent_with_async_tools(task, consistent):
    """The agent itself has a `forward`, which cannot call them; a program that awaits it can."""
    loops = set()

    async def lookup(rule: str) -> str:
        """Say something about a rule."""
        loops.add(asyncio.get_running_loop())
        task.lookups.append(rule)
        await asyncio.sleep(0)
        return f"It is rule {rule}."

    class Agent(dspy.Module):
        def __init__(self):
            super().__init__()
            self.agent = dspy.ReAct(dspy.Signature("question -> answer", "Answer."), tools=[lookup], max_iters=3)

        async def aforward(self, question):
            loops.add(asyncio.get_running_loop())
            return await self.agent.acall(question=question)

    consistent(task, task.compile(flash(), student=Agent()), 100)
    assert len(task.lookups) >= 40
    assert len(loops) == 1


class Recorder(BaseCallback):
    """Who is called under which call: parents are the module's calls, as in the host's threads."""

    def __init__(self):
        self.calls, self.modules, self.evaluations, self.lock = {}, Counter(), [], threading.Lock()

    def on_module_start(self, call_id, instance, inputs):
        self.calls[call_id] = (type(instance).__name__, ACTIVE_CALL_ID.get())

    def on_module_end(self, call_id, outputs, exception=None):
        name, parent = self.calls[call_id]
        with self.lock:
            self.modules[name, self.calls.get(parent, (None,))[0]] += 1

    def on_evaluate_end(self, call_id, outputs, exception=None):
        self.evaluations.append((threading.current_thread(), len(outputs.results), outputs.score))


@pytest.mark.parametrize("how", [ONE, MANY], ids=str)
def test_callbacks_are_called_as_of_the_plain_twin(how, task):
    told = []
    for student in (task.pair(), Pair(task)):
        recorder = Recorder()
        with dspy.context(callbacks=[recorder]):
            task.compile(flash(staleness="full", **how), student=student)
        told.append(recorder)
    plain, mine = told
    assert set(mine.modules) == set(plain.modules)
    assert {thread for thread, *_ in mine.evaluations} == {threading.current_thread()}
    examples = mine.modules["Pair", None] + mine.modules["Pair", "GEPA"]
    assert examples == len(task.where) == mine.modules["Predict", "Pair"] / 2
    if how == ONE:
        assert mine.modules == plain.modules
        assert mine.evaluations == plain.evaluations


def test_a_context_inside_it_is_gone_for_everybody_else(task):
    """Coroutines take turns inside their own contexts."""
    found = []

    async def meanwhile(question):
        with dspy.context(mine=question):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            found.append((dspy.settings.mine, question))

    task.on_metric = lambda *_: found.append((dspy.settings.get("mine"), None))
    task.compile(flash(), student=Pair(task, meanwhile), num_threads=8)
    assert all(seen == expected for seen, expected in found)
    assert len(found) > 100


def test_async_max_workers_of_the_caller_bounds_what_its_programs_asyncify(task):
    seen = set()

    def blocking(question):
        seen.add(dspy.settings.async_max_workers)

    async def meanwhile(question):
        await dspy.asyncify(blocking)(question)

    with dspy.context(async_max_workers=3):
        task.compile(flash(), student=Pair(task, meanwhile), max_metric_calls=22)
    assert seen == {3}


def test_the_callers_own_loop_is_another_one_and_goes_on(task):
    async def notebook():
        return asyncio.get_running_loop(), task.compile(flash(), student=Pair(task), max_metric_calls=22)

    loop, program = asyncio.run(notebook())
    assert program.detailed_results.total_metric_calls <= 22
    assert loop not in {each for _, each, _ in task.where}
