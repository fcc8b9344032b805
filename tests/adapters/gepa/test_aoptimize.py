"""`await gepa.aoptimize(...)`, adapters whose `evaluate` is `async def`, and evaluators that cannot be."""

import asyncio
import inspect
import threading

import anyio
import gepa
import gepa.optimize_anything as oa
import pytest
from anyio.lowlevel import checkpoint
from gepa.core.state import GEPAState
from threads_told import until

from flashevolve_plugins import Flash, UsageError
from flashevolve_plugins._background import THREAD_NAME
from flashevolve_plugins._event_loop import THREAD_NAME as LOOP_THREAD

LIBRARIES = pytest.mark.parametrize("library", ["asyncio", "trio"])


def flash(**options):
    return Flash(progress=False, **options)


def arguments(kit, **options):
    given = {"seed_candidate": kit.ONE, "trainset": list(range(12)), "valset": list(range(100, 110))}
    given |= {"reflection_lm": kit.Reflection(), "max_metric_calls": 100, "logger": kit.Log()}
    return given | {"adapter": kit.Words(), **options}


@LIBRARIES
def test_it_gives_what_optimize_gives_and_the_callers_loop_goes_on(library, kit):
    plain, threads = gepa.optimize(**arguments(kit), executor=flash(max_items=1)), set()
    began, beaten = threading.Event(), threading.Event()

    class Watch(kit.Callbacks):
        def __getattribute__(self, name):
            threads.add(threading.current_thread().name)
            return super().__getattribute__(name)

    class Waits(kit.Words):
        def evaluate(self, *given, **named):
            began.set()
            assert beaten.wait(60)
            return super().evaluate(*given, **named)

    async def beat():
        await until(began)
        for _ in range(10):  # turns of the caller's loop while the run is under way
            await checkpoint()
        beaten.set()

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(beat)
            options = {"executor": flash(max_items=1), "callbacks": [Watch()], "adapter": Waits()}
            return await gepa.aoptimize(**arguments(kit, **options))

    threads.clear()
    mine = anyio.run(main, backend=library)
    assert mine.candidates == plain.candidates
    assert mine.val_aggregate_scores == plain.val_aggregate_scores
    assert THREAD_NAME in threads


def test_without_an_executor_it_is_the_hosts_own_loop(kit):
    plain = gepa.optimize(**arguments(kit))
    mine = asyncio.run(gepa.aoptimize(**arguments(kit)))
    assert mine.candidates == plain.candidates
    assert mine.total_metric_calls == plain.total_metric_calls


def test_it_is_found_where_optimize_is_and_looks_like_it():
    assert gepa.aoptimize is gepa.api.aoptimize
    assert inspect.iscoroutinefunction(gepa.aoptimize)
    assert inspect.signature(gepa.aoptimize) == inspect.signature(gepa.optimize)
    assert gepa.aoptimize.__name__ == "aoptimize"
    assert gepa.optimize.__doc__ in gepa.aoptimize.__doc__


def test_what_optimize_raises_is_raised(kit):
    with pytest.raises(UsageError):
        asyncio.run(gepa.aoptimize(**arguments(kit, max_metric_calls=1), executor=flash()))


VALIDATION = 100  # the first of its examples


class Blocked:
    """Mixed into an adapter: its evaluations of training examples wait, from one of them on, until they are let go."""

    def __init__(self, after):
        super().__init__()
        self.after, self.reached, self.over = after, threading.Event(), threading.Event()

    def evaluate(self, *given, **named):
        result = super().evaluate(*given, **named)
        if len(self.batches) >= self.after and given[0][0] < VALIDATION:  # the seed's validation comes to its end
            self.reached.set()
            assert self.over.wait(60)
        return result


@pytest.fixture
def saved(monkeypatch):
    """Set once a state is saved."""
    save, event = GEPAState.save, threading.Event()

    def saves(*given, **named):
        save(*given, **named)
        event.set()

    monkeypatch.setattr(GEPAState, "save", saves)
    return event


@LIBRARIES
@pytest.mark.parametrize("lockstep", [False, True])
def test_cancelling_ends_the_run(library, lockstep, kit, tmp_path, saved):
    """In lockstep the batch at hand is the run's own; so here it is let go first."""
    adapter = type("Adapter", (Blocked, kit.Words), {})(20 if not lockstep else 6)
    cancelled = []

    async def optimizes():
        try:
            given = arguments(kit, adapter=adapter, run_dir=str(tmp_path), max_metric_calls=100_000)
            await gepa.aoptimize(**given, executor=flash(lockstep=lockstep))
        except anyio.get_cancelled_exc_class():
            cancelled.append(adapter.calls)
            raise

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(optimizes)
            await until(adapter.reached)
            await until(saved)
            group.cancel_scope.cancel()
            if lockstep:
                adapter.over.set()

    try:
        anyio.run(main, backend=library)
    finally:
        adapter.over.set()
    assert cancelled
    assert (tmp_path / "gepa_state.bin").exists()
    for each in threading.enumerate():
        if each.name == THREAD_NAME:
            each.join(60)
            assert not each.is_alive()


@pytest.fixture
def async_words(kit):
    """The task's adapter, its evaluate a coroutine function."""

    class AsyncWords(kit.Words):
        def __init__(self, **attributes):
            super().__init__()
            self.where, self.most, self.now, self.meet = set(), 0, 0, 1
            vars(self).update(attributes)

        async def evaluate(self, batch, candidate, capture_traces=False):
            self.where.add((threading.current_thread().name, asyncio.get_running_loop()))
            self.now += 1
            self.most = max(self.most, self.now)
            while self.most < self.meet:  # noqa: ASYNC110 - to take turns is the point
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.now -= 1
            return super().evaluate(batch, candidate, capture_traces=capture_traces)

    return AsyncWords


@pytest.mark.parametrize("declared", ["example", "batch", "serial"])
def test_an_adapter_with_an_async_evaluate_is_awaited(declared, kit, async_words):
    meet = 2 if declared == "example" else 1  # the first two wait for each other
    plain, adapter = kit.Words(), async_words(flashevolve_evaluate=declared, meet=meet)
    plain.flashevolve_evaluate = declared
    results = [gepa.optimize(**arguments(kit, adapter=each), executor=flash(max_items=1)) for each in (plain, adapter)]
    assert results[1].candidates == results[0].candidates
    assert results[1].val_aggregate_scores == results[0].val_aggregate_scores
    assert len(results[0].candidates) > 1
    assert [name for name, _ in adapter.where] == [LOOP_THREAD]
    assert (adapter.most > 1) is (declared == "example")


def test_an_async_batch_evaluate_is_awaited_too_and_a_plain_one_is_not_used(kit, async_words):
    class Batched(async_words):
        grouped = 0

        async def batch_evaluate(self, items):
            self.grouped += 1
            return [await self.evaluate(batch, candidate, capture_traces=True) for candidate, batch in items]

    class Blocks(async_words):
        def batch_evaluate(self, items):
            raise AssertionError("it would block the loop")

    adapter = Batched(flashevolve_evaluate="batch")
    expected = gepa.optimize(**arguments(kit), executor=flash(max_items=1)).candidates
    assert gepa.optimize(**arguments(kit, adapter=adapter), executor=flash(max_items=1)).candidates == expected
    assert adapter.grouped
    blocks = Blocks(flashevolve_evaluate="batch")
    assert gepa.optimize(**arguments(kit, adapter=blocks), executor=flash(max_items=1)).candidates == expected


def test_an_async_adapter_bound_to_another_loop_ends_the_run_with_a_sentence(kit, async_words):
    elsewhere = asyncio.new_event_loop()
    theirs = elsewhere.create_future()

    class Bound(async_words):
        async def evaluate(self, batch, candidate, capture_traces=False):
            await theirs

    with pytest.raises(UsageError, match="belongs to another event loop"):
        gepa.optimize(**arguments(kit, adapter=Bound()), executor=flash())
    elsewhere.close()


@pytest.mark.parametrize("name", ["evaluator", "batch_evaluator"])
def test_an_async_evaluator_of_optimize_anything_is_refused_in_a_sentence(name, kit):
    async def evaluate(*_):
        raise AssertionError

    given = {"seed_candidate": "x", name: evaluate, "objective": "none"}
    with pytest.raises(UsageError, match=rf"{name}= is an async function, which optimize_anything does not await"):
        oa.optimize_anything(**given, executor=flash())
    with flash(), pytest.raises(UsageError, match="async function"):
        oa.optimize_anything(**given)
