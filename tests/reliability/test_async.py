"""What goes wrong in async programs, and to a caller that awaits a run."""

import asyncio
import random
import threading
from contextlib import suppress

import pytest
from dspy_awaited import Awaited
from gepa.core.state import GEPAState
from threads_told import PATIENCE, until

from flashevolve_plugins import BackendError, Flash, UsageError
from flashevolve_plugins._event_loop import THREAD_NAME as LOOP_THREAD

SLOTS = 4


def flash():
    return Flash(progress=False)


def runs_left():
    """Threads of runs that have not ended, those of abandoned calls too; waited for."""
    left = [each for each in threading.enumerate() if each.name.startswith("flashevolve")]
    for each in left:
        each.join(PATIENCE)
    return sum(each.is_alive() for each in left)


async def make_client():
    """An HTTP client as programs share it."""
    import aiohttp

    client = aiohttp.ClientSession()
    return (lambda *_: client.get("http://127.0.0.1:9/").__aenter__()), client.close


async def make_lock():
    """A lock that somebody waits for, which binds it."""
    lock = asyncio.Lock()
    await lock.acquire()
    waiting = asyncio.ensure_future(lock.acquire())
    await asyncio.sleep(0)

    async def close():
        waiting.cancel()

    return (lambda *_: lock.acquire()), close


async def make_future():
    future = asyncio.get_running_loop().create_future()

    async def close():
        future.cancel()

    return (lambda *_: future), close


@pytest.fixture
def elsewhere():
    """Another event loop, under way on a thread: runs a coroutine function there."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield lambda function: asyncio.run_coroutine_threadsafe(function(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_a_client_of_another_loop(task, elsewhere, tell):
    said, scored = 0, []
    for where in ("program", "metric", "metric of a plain program"):
        for make in (make_client, make_lock, make_future):
            use, close = elsewhere(make)

            async def metric(*arguments, use=use):
                await use()
                scored.append(arguments)
                return 1.0

            async def nothing(_):
                """Await nothing."""

            student = task.student() if where.endswith("plain program") else Awaited(nothing)
            options = {"student": Awaited(use)} if where == "program" else {"student": student, "metric": metric}
            with pytest.raises(UsageError, match=r"belongs to another event loop \(.*\): each run has"):
                task.compile(flash(), **options)
            said += 1
            elsewhere(close)
    lost = len(scored) + len(task.metric_calls) + runs_left()
    tell(
        "a client, lock or future of another event loop, in an async program or metric",
        tries=said,
        outcome="`UsageError`, one sentence with the remedy; nothing is scored",
        lost=lost,
    )


@pytest.mark.parametrize("asynchronous", [True, False], ids=["async program", "plain program"])
def test_a_cancelled_acompile(asynchronous, task, tell, tmp_path):
    moments, lost = random.Random(7).sample(range(9, 90), 6), 0

    async def nothing(_):
        await asyncio.sleep(0)

    for moment in moments:
        directory = tmp_path / str(moment)
        student = Awaited(nothing) if asynchronous else task.student()
        options = {"log_dir": str(directory), "max_metric_calls": 100, "executor": flash()}
        given = {"trainset": task.examples(6), "valset": task.examples(8, first=100)}
        before, reached, asked = len(task.metric_calls), threading.Event(), threading.Event()

        def hold(*_, last=before + moment, reached=reached, asked=asked):
            if len(task.metric_calls) >= last:
                reached.set()
                assert asked.wait(PATIENCE)

        async def cancelled(reached=reached, asked=asked, student=student, options=options, given=given):
            compiling = asyncio.ensure_future(task.gepa(**options).acompile(student, **given))
            await until(reached)
            compiling.cancel()
            for _ in range(3):  # turns of the loop, in which the run hears of it
                await asyncio.sleep(0)
            asked.set()
            with suppress(asyncio.CancelledError):
                await compiling
            return compiling.cancelled()

        task.on_metric = hold
        assert asyncio.run(cancelled()), f"the run was over before {moment} calls"
        lost += runs_left()
        made = len(task.metric_calls) - before
        lost += made >= moment + SLOTS  # it went on, though nobody waits for it
        kept = GEPAState.load(str(directory))
        lost += max(0, kept.total_num_evals - made)  # counted twice
        again = []

        def count(gold, pred, name, again=again):
            again.append(name is None)

        task.on_metric = count
        resumed = task.gepa(**options).compile(student, **given).detailed_results
        task.on_metric = lambda *_: None
        texts = [next(iter(each.named_predictors()))[1].signature.instructions for each in resumed.candidates]
        known = [next(iter(each.values())) for each in kept.program_candidates]
        lost += sum(text not in texts for text in known)
        counted = resumed.total_metric_calls - kept.total_num_evals
        lost += sum(again) > counted  # the seed's validation is not paid for again
    kind = "an async program" if asynchronous else "a plain program"
    tell(
        f"a cancelled `acompile` of {kind}, at random moments after the seed's validation",
        tries=len(moments),
        outcome="the cancellation, once the state is saved; the same call goes on from there",
        lost=lost,
    )


@pytest.mark.parametrize("kind", ["raises", "cancels itself"])
def test_a_coroutine_that_fails(kind, task, tell):
    lost, tries = 0, 0
    for number in (100, 103, 107):

        async def meanwhile(question, number=number):
            await asyncio.sleep(0)
            if f"case {number} " in question:
                raise {"raises": ValueError, "cancels itself": asyncio.CancelledError}[kind]

        program = task.compile(flash(), student=Awaited(meanwhile), failure_score=-1.0)
        scores = program.detailed_results.val_subscores
        lost += sum((each[number - 100] != -1.0) + (len(each) != 8) + (list(each.values()).count(-1.0) != 1)
                    for each in scores)  # fmt: skip
        tries += 1
        lost += runs_left()
    what = {"raises": "raises", "cancels itself": "raises `CancelledError` itself"}[kind]
    tell(
        f"a coroutine that {what} on one example",
        tries=tries,
        outcome="that example gets the failure score, the others theirs",
        lost=lost,
    )


def test_a_coroutine_that_always_raises(task, tell):
    async def meanwhile(_):
        raise ValueError("no such tool")

    tries = 3
    for _ in range(tries):
        with pytest.raises(BackendError, match=r"Every one of the first 1\d examples raised in the program"):
            task.compile(flash(), student=Awaited(meanwhile), val=30)
    tell(
        "a coroutine that raises on every example",
        tries=tries,
        outcome="`BackendError`, one sentence after the first 10 examples",
        lost=len(task.metric_calls) + runs_left(),
    )


def test_a_coroutine_that_blocks_the_loop(task, tell):
    """It waits on a thread's event, where it should await: nobody can cancel it."""
    waits = []
    tries = 2
    for _ in range(tries):
        blocked, over = threading.Event(), threading.Event()

        async def meanwhile(_, blocked=blocked, over=over):
            blocked.set()
            waits.append(over.wait(PATIENCE))

        async def cancelled(blocked=blocked, meanwhile=meanwhile):
            optimizer = task.gepa(executor=flash())
            given = {"trainset": task.examples(6), "valset": task.examples(8, first=100)}
            compiling = asyncio.ensure_future(optimizer.acompile(Awaited(meanwhile), **given))
            await until(blocked)
            compiling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await compiling

        asyncio.run(cancelled())
        assert waits.count(False) == 0  # the cancellation did not wait for it
        left = [each for each in threading.enumerate() if each.name == LOOP_THREAD]
        assert all(each.daemon for each in left)  # the process could end
        over.set()
    tell(
        "a coroutine that blocks the event loop when `acompile` is cancelled",
        tries=tries,
        outcome="the cancellation after two seconds; the loop's thread is abandoned, a daemon",
        lost=len(task.metric_calls) + runs_left() + waits.count(False),
    )
