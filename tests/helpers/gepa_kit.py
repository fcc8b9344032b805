"""Runs of gepa in which everything a user can see is recorded, and the fixtures of the tests that use them."""

import threading
from dataclasses import replace
from types import SimpleNamespace

import gepa
import gepa.api
import pytest
from gepa_checks import assert_dispatched, assert_same, check, check_host_invariants, check_serial_history
from gepa_records import Callbacks, Log, Tracker, frozen
from gepa_task import ONE, TWO, WORDS, Batched, Named, Reflection, Words, chance, inside, score

from flashevolve_plugins import Flash
from flashevolve_plugins._driver import Driver
from flashevolve_plugins._inline import InlineDriver
from flashevolve_plugins._local import LocalDriver
from flashevolve_plugins._virtual import VirtualDriver


class Dispatch:
    """What the Scheduler asked to start, and whether the samples' calls were made for that."""

    def __init__(self, monkeypatch):
        self.started = []  # (stage, resource)
        begin = Driver._begin_sample

        def begin_sample(driver, item, index, stage):
            self.started.append((stage.name, stage.samples[index].resource))
            return begin(driver, item, index, stage)

        monkeypatch.setattr(Driver, "_begin_sample", begin_sample)
        for kind in (LocalDriver, VirtualDriver, InlineDriver):
            start = kind._start
            monkeypatch.setattr(
                kind,
                "_start",
                lambda driver, item, index, sample, start=start: start(
                    driver, item, index, replace(sample, call=marked(sample.call))
                ),
            )

    def count(self, resource):
        return sum(each == resource for _, each in self.started)


def marked(call):
    def run():
        token = inside.set(True)
        try:
            return call()
        finally:
            inside.reset(token)

    return run


class Run:
    """A run, and everything it left behind."""

    def __init__(self, result, error, adapter, reflection, log, callbacks, tracker, engine, state, flash):
        self.result, self.error, self.state = result, error, state
        self.adapter, self.reflection, self.log, self.callbacks, self.tracker = (
            adapter, reflection, log, callbacks, tracker,
        )  # fmt: skip
        self.engine, self.flash = engine, flash
        self.events, self.lines, self.tracked = callbacks.events, log.lines, tracker.calls
        self.evaluated = adapter.batches if isinstance(adapter, Words) else []
        self.reflections = reflection.calls if isinstance(reflection, Reflection) else 0
        self.trace = state.full_program_trace if state is not None else []
        proposer = engine.reflective_proposer if engine is not None else None
        sources = [getattr(proposer, name, None) for name in ("candidate_selector", "batch_sampler")]
        self.generator = [each.rng.getstate() for each in sources if hasattr(each, "rng")]

    @property
    def last(self):
        return self.flash.last_run


class Kit(SimpleNamespace):
    """Runs gepa.optimize with everything recorded."""

    def run(self, executor=None, *, calls=150, seed=0, catch=False, **options):
        """One run of the task.

        Args:
            executor: as ``gepa.optimize`` has it.
            calls: ``max_metric_calls``.
            seed: the host's.
            catch: keep what is raised as the run's ``error``.
            options: the host's own, and these: ``adapter`` and ``reflection`` (the reflection model), each with a
                default; ``recorder``, the first callback; ``callbacks``, further ones; ``on_engine``, called with the
                engine before it runs.
        """
        adapter = options.pop("adapter", None) or (None if options.get("task_lm") else Words())
        reflection = options.pop("reflection", None) or options.get("reflection_lm") or Reflection()
        log, callbacks, tracker = Log(), options.pop("recorder", None) or Callbacks(), Tracker()
        on_engine = options.pop("on_engine", None)
        engines, states = [], []
        make_engine, make_tracker = gepa.api.GEPAEngine, gepa.api.create_experiment_tracker

        def engine(**arguments):
            made = make_engine(**arguments)
            run = made.run
            made.run = lambda: states.append(run()) or states[-1]
            engines.append(made)
            if on_engine is not None:
                on_engine(made)
            return made

        arguments = {
            "seed_candidate": ONE,
            "trainset": list(range(12)),
            "valset": list(range(100, 110)),
            "adapter": adapter,
            "reflection_lm": reflection,
            "max_metric_calls": calls,
            "logger": log,
            "seed": seed,
            **options,
            "callbacks": [callbacks, *options.pop("callbacks", ())],
        }
        if arguments.get("custom_candidate_proposer") or arguments.get("reflection_strategy"):
            arguments["reflection_lm"] = None
        result = error = None
        gepa.api.GEPAEngine = engine
        if not (options.get("use_wandb") or options.get("use_mlflow")):
            gepa.api.create_experiment_tracker = lambda **_: tracker
        try:
            result = gepa.optimize(executor=executor, **arguments)
        except BaseException as raised:
            if not catch:
                raise
            error = raised
        finally:
            gepa.api.GEPAEngine, gepa.api.create_experiment_tracker = make_engine, make_tracker
        return Run(
            result, error, adapter, reflection, log, callbacks, tracker,
            next(iter(engines), None), next(iter(states), None), executor,
        )  # fmt: skip

    def optimize(self, **options):
        """gepa.optimize alone, from any thread, with whatever executor is in force."""
        arguments = {"seed_candidate": ONE, "trainset": list(range(12)), "valset": list(range(100, 110))}
        arguments |= {"reflection_lm": Reflection(), "max_metric_calls": 60, "logger": Log(), **options}
        return gepa.optimize(**arguments)

    def flash(self, **settings):
        """Guarded, virtual time and many reflections at once, unless said otherwise."""
        if settings.get("lockstep"):  # takes none of these
            for name in ("max_concurrency", "reflection_concurrency", "max_items", "max_staleness", "evaluate"):
                settings.pop(name, None)
        else:
            settings = {"reflection_concurrency": 8, "staleness": "guarded", **settings}
        return Flash(**{"progress": False, "clock": "virtual", **settings})


@pytest.fixture(scope="session")
def kit():
    return Kit(
        Words=Words,
        Batched=Batched,
        Reflection=Reflection,
        Callbacks=Callbacks,
        Log=Log,
        Named=Named,
        ONE=ONE,
        TWO=TWO,
        WORDS=WORDS,
        assert_same=assert_same,
        assert_dispatched=assert_dispatched,
        check=check,
        check_host_invariants=check_host_invariants,
        check_serial_history=check_serial_history,
        chance=chance,
        score=score,
        frozen=frozen,
    )


@pytest.fixture(autouse=True)
def no_thread_stays():
    """A test that leaves a slot's thread behind fails."""
    yield
    left = [each for each in threading.enumerate() if each.name.startswith("flashevolve-slot")]
    for thread in left:
        thread.join(60)
    assert not any(thread.is_alive() for thread in left)


@pytest.fixture
def dispatch(monkeypatch):
    return Dispatch(monkeypatch)
