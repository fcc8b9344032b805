"""`await dspy.GEPA(...).acompile(...)`: the caller's loop goes on; cancelling ends the run and keeps its state."""

import asyncio
import contextvars
import inspect
import subprocess
import sys
import threading

import anyio
import dspy
import pytest
from anyio import to_thread
from threads_told import PATIENCE, until

from flashevolve_plugins import Flash
from flashevolve_plugins._background import THREAD_NAME
from flashevolve_plugins.hooks import hookimpl

LIBRARIES = pytest.mark.parametrize("library", ["asyncio", "trio"])
SCRATCH = contextvars.ContextVar("scratch", default=None)
TURNS = 10


def flash(**options):
    return Flash(progress=False, **options)


def given(task, val=8):
    return {"trainset": task.examples(6), "valset": task.examples(val, first=100)}


class Where:
    """The threads on which the host and its plugins are called."""

    def __init__(self):
        self.names = set()

    @hookimpl
    def flashevolve_item_ended(self, record):
        self.names.add(threading.current_thread().name)


@LIBRARIES
def test_it_gives_what_compile_gives_and_the_callers_loop_goes_on(library, task, summary):
    plain, where = summary(task.compile(flash(max_items=1))), Where()
    turns, taken, calls = threading.Semaphore(0), threading.Semaphore(0), iter(range(TURNS))

    def wait_for_a_turn(*_):
        if next(calls, None) is not None:
            turns.release()
            assert taken.acquire(timeout=PATIENCE)

    async def beat():
        for _ in range(TURNS):
            assert await to_thread.run_sync(turns.acquire, True, PATIENCE)
            taken.release()

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(beat)
            optimizer = task.gepa(executor=flash(max_items=1, plugins=[where]))
            return await optimizer.acompile(task.student(), **given(task))

    task.on_metric = wait_for_a_turn
    assert summary(anyio.run(main, backend=library)) == plain
    assert next(calls, None) is None  # it took turns all the time
    assert where.names == {THREAD_NAME}


@pytest.mark.parametrize("executor", [None, "flash"], ids=str)
def test_the_callers_context_is_in_force(executor, task):
    seen = set()
    task.on_metric = lambda *_: seen.add((dspy.settings.get("mine"), SCRATCH.get(), dspy.settings.lm.model))

    async def main():
        SCRATCH.set("the caller's")
        with dspy.context(mine="a setting"):
            await task.gepa(executor=executor, max_metric_calls=22).acompile(task.student(), **given(task))

    asyncio.run(main())
    assert ("a setting", "the caller's", "task") in seen
    if executor:  # the host's own threads take dspy's settings along, and no other context variables
        assert len(seen) == 1


def test_without_an_executor_it_is_the_hosts_own_loop(task, summary):
    host = summary(task.compile(None))
    optimizer = task.gepa()
    program = asyncio.run(optimizer.acompile(task.student(), **given(task)))
    assert summary(program) == host


def test_its_signature_and_its_words_are_those_of_compile():
    mine, plain = dspy.GEPA.acompile, dspy.GEPA.compile
    assert inspect.iscoroutinefunction(mine)
    assert inspect.signature(mine) == inspect.signature(plain)
    assert (mine.__name__, mine.__qualname__) == ("acompile", "GEPA.acompile")
    assert plain.__doc__ in mine.__doc__


def test_what_compile_raises_is_raised(task):
    async def main():
        await task.gepa(executor=flash()).acompile(task.student(), trainset=[])

    with pytest.raises(AssertionError, match="Trainset must be provided"):
        asyncio.run(main())


def test_a_subclass_with_a_compile_of_its_own_is_asked(task):
    class Mine(dspy.GEPA):
        def compile(self, student, *, trainset, teacher=None, valset=None):
            return "mine"

    optimizer = Mine(metric=task.metric, reflection_lm=task.reflection_lm, max_metric_calls=10)
    assert asyncio.run(optimizer.acompile(task.student(), trainset=[])) == "mine"


def test_several_at_once_in_one_loop(task, summary):
    """All of them are under way before one goes on."""
    began, lock, count = threading.Barrier(3), threading.Lock(), {}

    def once(*_):
        name = SCRATCH.get()
        with lock:
            count[name] = count.get(name, 0) + 1
            first = count[name] == 1
        if first:
            began.wait(60)

    task.on_task = once

    async def one(name):
        SCRATCH.set(name)
        return await task.gepa(executor=flash(max_items=1)).acompile(task.student(), **given(task))

    async def main():
        return await asyncio.gather(*map(one, "abc"))

    programs = asyncio.run(main())
    assert set(count) == {"a", "b", "c"}
    assert len({str(summary(program)) for program in programs}) == 1


class Cancels:
    """Lets the caller cancel once there were this many task calls, which wait until the run has ended."""

    def __init__(self, task, after):
        self.reached, self.over, self.after, self.task = threading.Event(), threading.Event(), after, task
        task.on_task = self

    def __call__(self, *_):
        if len(self.task.task_calls) >= self.after:
            self.reached.set()
            assert self.over.wait(60)


@LIBRARIES
@pytest.mark.parametrize("after", [3, 30])
def test_cancelling_ends_the_run_and_keeps_its_state(after, library, task, tmp_path):
    cancels, ended, cancelled = Cancels(task, after), [], []

    async def compiles():
        optimizer = task.gepa(executor=flash(), log_dir=str(tmp_path))
        try:
            await optimizer.acompile(task.student(), **given(task))
        except anyio.get_cancelled_exc_class():
            cancelled.append(optimizer)
            ended.extend(each for each in threading.enumerate() if each.name == THREAD_NAME and each.is_alive())
            raise

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(compiles)
            await until(cancels.reached)
            group.cancel_scope.cancel()

    try:
        anyio.run(main, backend=library)
    finally:
        cancels.over.set()
    assert cancelled
    for thread in ended:  # it has said that it is over, and only returns
        thread.join(60)
        assert not thread.is_alive()
    asked = len(task.task_calls)
    assert (tmp_path / "gepa_state.bin").exists() is (after > 8)  # after the seed's validation
    task.on_task = lambda *_: None
    task.gepa(executor=flash(), log_dir=str(tmp_path)).compile(task.student(), **given(task))
    assert len(task.task_calls) > asked


def test_cancelling_without_an_executor_waits_for_nothing(task):
    """The host's own loop cannot be ended from outside: it goes on, on a daemon thread, and nobody hears of it."""
    cancels = Cancels(task, 3)

    async def main():
        compiling = asyncio.ensure_future(task.gepa(num_threads=1).acompile(task.student(), **given(task)))
        await until(cancels.reached)
        compiling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await compiling
        assert not cancels.over.is_set()

    try:
        asyncio.run(main())
    finally:
        (left,) = [each for each in threading.enumerate() if each.name == THREAD_NAME]
        assert left.daemon
        cancels.over.set()
        left.join(60)


def test_cancelling_an_async_program_ends_its_coroutines(task):
    waiting, gone, all_wait = [], [], threading.Event()

    class Program(dspy.Module):
        def __init__(self):
            super().__init__()
            self.answer = dspy.Predict(dspy.Signature("question -> answer", "Answer."))

        async def aforward(self, question):
            waiting.append(question)
            if len(waiting) == 4:
                all_wait.set()
            try:
                await asyncio.Event().wait()
            finally:
                gone.append(question)

    async def main():
        optimizer = task.gepa(executor=flash(), num_threads=4)
        compiling = asyncio.ensure_future(optimizer.acompile(Program(), **given(task)))
        await until(all_wait)
        compiling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await compiling

    asyncio.run(main())
    assert sorted(gone) == sorted(waiting)
    assert len(waiting) == 4


def test_a_loop_that_is_closed_meanwhile_is_nobodys_business(task):
    """A caller that gives up its loop altogether leaves no run behind."""
    cancels, loop = Cancels(task, 3), asyncio.new_event_loop()
    compiling = task.gepa(executor=flash()).acompile(task.student(), **given(task))
    waits = loop.create_task(compiling)

    loop.run_until_complete(until(cancels.reached))
    (run,) = [each for each in threading.enumerate() if each.name == THREAD_NAME]
    waits._log_destroy_pending = False
    compiling.close()  # as the garbage collector does
    loop.close()
    run.join(60)
    assert not run.is_alive()
    cancels.over.set()


def test_it_is_there_for_whoever_imported_dspy_first(tmp_path):
    script = tmp_path / "first.py"
    script.write_text("import dspy, flashevolve_plugins\nassert dspy.GEPA.acompile\n", encoding="utf-8")
    subprocess.run([sys.executable, str(script)], check=True, timeout=170)
