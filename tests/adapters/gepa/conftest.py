"""A small deterministic task for gepa, and runs of it in which everything a user can see is recorded.

A module beside the tests cannot be imported under ``--import-mode=importlib``: what the tests share is handed to them
by the fixture ``kit``.
"""

import contextvars
import copy
import marshal
import random
import re
import threading
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace
from zlib import crc32

import pytest

if find_spec("gepa") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    import gepa
    import gepa.api
    from gepa.core.adapter import EvaluationBatch
    from gepa.core.state import GEPAState

    from flashevolve_plugins import Flash
    from flashevolve_plugins._driver import Driver
    from flashevolve_plugins._inline import InlineDriver
    from flashevolve_plugins._local import LocalDriver
    from flashevolve_plugins._virtual import VirtualDriver

WORDS = ["ant", "bee", "cat", "doe", "elk", "fox", "gnu", "hen", "ibis", "jay", "koi", "lynx"]
LONG = 6  # words
VIRTUAL_SECONDS = {"dataset": 0.0, "propose": 2.0}


def chance(*key):
    """A generator that depends on nothing but its key, in every process."""
    return random.Random(crc32(repr(key).encode()))


def score(example, candidate):
    """How many of the example's three words the candidate has, each in its component; one less if it is long."""
    names = sorted(candidate)
    kept = [set(candidate[name].split()) for name in names]
    needs = chance("needs", example).sample(range(len(WORDS)), 3)
    found = sum(WORDS[each] in kept[each % len(names)] for each in needs)
    return (1 + max(0, found - (sum(map(len, kept)) > LONG))) / 4


class Words:
    """Evaluates without any model. Counts what it does, and what of it happens at once."""

    propose_new_texts = None
    flashevolve_evaluate = "example"

    def __init__(self):
        self.lock = threading.Lock()
        self.batches = []  # (examples, candidate) of every evaluate
        self.at_once = self.most_at_once = 0
        self.datasets = 0
        self.outside = 0  # evaluations that no sample asked for
        self.errors = {}  # stage or hook -> function of the number of the call, true where it raises

    @property
    def calls(self):
        return sum(len(examples) for examples, _ in self.batches)

    def evaluate(self, batch, candidate, capture_traces=False):
        with self.lock:
            self.batches.append((list(batch), dict(candidate)))
            self.outside += not inside.get()
            self.at_once += len(batch)
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            self.working(batch, candidate)
            self._maybe_raise("evaluate", len(self.batches))
            scores = [score(each, candidate) for each in batch]
        finally:
            with self.lock:
                self.at_once -= len(batch)
        return EvaluationBatch(
            outputs=[(each, [text for _, text in sorted(candidate.items())]) for each in batch],
            scores=scores,
            trajectories=[{"x": each, "score": it} for each, it in zip(batch, scores, strict=True)]
            if capture_traces
            else None,
            objective_scores=[{"score": it, "length": 1.0 / (1 + len(candidate))} for it in scores],
        )

    def working(self, batch, candidate):
        """What tests override to see or hold evaluations."""

    def _maybe_raise(self, hook, number):
        if hook in self.errors and self.errors[hook](number):
            raise RuntimeError(f"{hook} {number} fails")

    def make_reflective_dataset(self, candidate, evaluation, components):
        with self.lock:
            self.datasets += 1
            number = self.datasets
        self._maybe_raise("dataset", number)
        records = [
            {"Inputs": str(trace["x"]), "Generated Outputs": "-", "Feedback": f"{trace['score']:.2f}"}
            for trace in evaluation.trajectories
        ]
        return dict.fromkeys(components, records)

    def flashevolve_seconds(self, stage, *what):
        return VIRTUAL_SECONDS.get(stage, 0.5 + chance(stage, *what).random())


class Batched:
    """Mixed into an adapter: evaluates many pairs in one call."""

    def batch_evaluate(self, items):
        return [self.evaluate(batch, candidate, capture_traces=True) for candidate, batch in items]


class Reflection:
    """The reflection model: adds a word or two, and sometimes loses one."""

    def __init__(self):
        self.lock = threading.Lock()
        self.calls = self.at_once = self.most_at_once = 0
        self.errors = None

    def __call__(self, prompt):
        with self.lock:
            self.calls += 1
            number = self.calls
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            self.working()
            if self.errors is not None and self.errors(number):
                raise RuntimeError(f"reflection {number} fails")
            return self.answer(prompt)
        finally:
            with self.lock:
                self.at_once -= 1

    def working(self):
        """What tests override to see or hold reflections."""

    def answer(self, prompt):
        luck = chance("reflect", prompt)
        words = set(re.search(r"```\n(.*?)\n```", prompt, re.DOTALL).group(1).split()) & set(WORDS)
        words = {each for each in sorted(words) if luck.random() < 0.6} | set(luck.sample(WORDS, 2))
        return "```\n" + " ".join(sorted(words)) + "\n```"


class Log:
    def __init__(self):
        self.lines, self.threads = [], set()

    def log(self, message):
        if message.startswith("Traceback"):
            message = message.strip().rsplit("\n", 1)[-1]  # the way to the error is not the host's alone
        self.lines.append(message)
        self.threads.add(threading.get_ident())


class Callbacks:
    """Keeps every event, deeply copied, in order."""

    def __init__(self):
        self.events, self.threads = [], set()
        self.watchers = []  # called with (name, live event)

    def __getattr__(self, name):
        if not name.startswith("on_"):
            raise AttributeError(name)

        def keep(event):
            self.threads.add(threading.get_ident())
            self.events.append((name, {key: frozen(value) for key, value in event.items()}))
            for watch in self.watchers:
                watch(name, event)

        return keep

    def named(self, name):
        return [event for kind, event in self.events if kind == name]

    @property
    def names(self):
        return [name for name, _ in self.events]


def frozen(value):
    """A copy that compares by content."""
    if isinstance(value, GEPAState):
        return value.i, value.total_num_evals, digest(contents(value))
    if isinstance(value, BaseException):
        return type(value), str(value)
    if type(value).__name__ in {"ListDataLoader", "Named"}:
        return type(value).__name__, list(value.all_ids())
    try:
        return marshal.loads(marshal.dumps(value))  # noqa: S302 - our own bytes; many times faster than a deep copy
    except ValueError:
        return copy.deepcopy(value)


def digest(value):
    try:
        return crc32(marshal.dumps(value, 2))  # the last version that does not depend on who shares what
    except ValueError:
        return crc32(repr(value).encode())


def contents(state):
    """What the host keeps in its state file."""
    return {name: each for name, each in vars(state).items() if name != "_budget_hooks"}


class Tracker:
    """Stands in for gepa's experiment tracker."""

    def __init__(self):
        self.calls, self.threads = [], set()

    def __enter__(self):
        self.calls.append(("enter",))
        return self

    def __exit__(self, *exc):
        self.calls.append(("exit", exc[0]))

    def __getattr__(self, name):
        if not name.startswith("log_"):
            raise AttributeError(name)

        def keep(*arguments, **words):
            self.threads.add(threading.get_ident())
            self.calls.append((name, frozen(arguments), frozen(words)))

        return keep


inside = contextvars.ContextVar("inside a sample", default=False)


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


def assert_dispatched(run, dispatch):
    """Every evaluation of the adapter was a sample that the Scheduler started."""
    assert run.adapter.outside == 0, f"{run.adapter.outside} evaluations outside the Scheduler"
    assert dispatch.count("task") == len(run.adapter.batches), (dispatch.count("task"), len(run.adapter.batches))


class Named:
    """A data loader with ids of its own."""

    def __init__(self, examples, prefix):
        self._examples = {f"{prefix}{number}": each for number, each in enumerate(examples)}

    def all_ids(self):
        return list(self._examples)

    def fetch(self, ids):
        return [self._examples[each] for each in ids]

    def __len__(self):
        return len(self._examples)


ONE = {"a": "start"}
TWO = {"a": "start", "b": "begin"}
SEEN = ("events", "lines", "tracked", "trace", "generator", "evaluated", "reflections")


def assert_same(host, flash):
    """Nothing that a user can see differs between two runs. Raises AssertionError that names the first difference."""
    for name in vars(host.result):
        assert getattr(host.result, name) == getattr(flash.result, name), f"result.{name} differs"
    for name in SEEN:
        ours, theirs = getattr(flash, name), getattr(host, name)
        if isinstance(theirs, list):
            for position, (one, other) in enumerate(zip(theirs, ours, strict=False)):
                assert one == other, f"{name}[{position}] differs"
            assert len(theirs) == len(ours), f"{name} differ in length"
        assert theirs == ours, f"{name} differ"
    assert contents(host.state) == contents(flash.state), "the states differ"


def check_host_invariants(run, limit):
    """What holds for every result of the host, and that nothing was paid for that is not counted."""
    state, result = run.state, run.result
    assert state.is_consistent()
    assert result.total_metric_calls == run.adapter.calls == run.last.spent
    assert limit is None or result.total_metric_calls <= limit
    assert run.last.reserved == run.last.items == 0
    ids = set(run.engine.valset.all_ids())
    for index, parents in enumerate(result.parents):
        assert set(state.prog_candidate_val_subscores[index]) == ids
        assert (parents == [None]) is (index == 0)
        assert index == 0 or all(0 <= parent < index for parent in parents)
    assert result.num_full_val_evals == len(result.candidates)
    assert sorted(result.discovery_eval_counts) == result.discovery_eval_counts


def check_results_are_the_adapter_s_own(run):
    for candidate, scores in zip(run.result.candidates, run.state.prog_candidate_val_subscores, strict=True):
        for name, value in scores.items():
            assert value == score(run.engine.valset.fetch([name])[0], candidate)
    for event in run.callbacks.named("on_evaluation_end"):
        for (example, texts), value in zip(event["outputs"], event["scores"], strict=True):
            assert value == score(example, dict(enumerate(texts)))
        assert event["has_trajectories"] is bool(event["trajectories"])
        if event["trajectories"]:
            assert [trace["score"] for trace in event["trajectories"]] == event["scores"]


def check_serial_history(run, caller, last=0):
    """One iteration after the other, each with its events together, as if the host had run them so."""
    assert run.callbacks.threads <= {caller}
    assert run.log.threads <= {caller}
    assert run.tracker.threads <= {caller}
    current = total = None
    for name, event in run.events:
        if name == "on_iteration_start":
            assert current is None
            assert event["iteration"] == last + 1
            current = event["iteration"]
        elif current is None:
            assert name in {"on_optimization_start", "on_optimization_end", "on_valset_evaluated", "on_state_saved"}, (
                name
            )
        else:
            assert event["iteration"] == current, name
        if name == "on_iteration_end":
            current, last = None, current
        if name == "on_budget_updated":
            assert total is None or event["metric_calls_used"] == total + event["metric_calls_delta"]
            total = event["metric_calls_used"]
    assert current is None
    assert total in {None, run.result.total_metric_calls}
    assert [entry["i"] for entry in run.trace] == list(range(last))
    numbers = [int(found[1]) for line in run.lines if (found := re.match(r"Iteration (\d+)", line))]
    assert numbers == sorted(numbers)
    steps = [call[2]["step"] for call in run.tracked if call[0] == "log_metrics"]
    assert steps == sorted(steps)


def check(run, limit=None, resumed_at=0):
    """A finished run outside lockstep, whatever its options."""
    check_host_invariants(run, limit)
    check_results_are_the_adapter_s_own(run)
    check_serial_history(run, threading.get_ident(), resumed_at)


class Run:
    """A run, and everything it left behind."""

    def __init__(self, result, error, adapter, reflection, log, callbacks, tracker, engine, flash):
        self.result, self.error = result, error
        self.adapter, self.reflection, self.log, self.callbacks, self.tracker = (
            adapter, reflection, log, callbacks, tracker,
        )  # fmt: skip
        self.engine, self.flash = engine, flash
        self.events, self.lines, self.tracked = callbacks.events, log.lines, tracker.calls
        self.evaluated = adapter.batches if isinstance(adapter, Words) else []
        self.reflections = reflection.calls if isinstance(reflection, Reflection) else 0
        self.state = next((event["final_state"] for event in self._live if "final_state" in event), None)
        self.trace = self.state.full_program_trace if self.state is not None else []
        selector, sampler = engine.reflective_proposer.candidate_selector, engine.reflective_proposer.batch_sampler
        self.generator = [each.rng.getstate() for each in (selector, sampler) if hasattr(each, "rng")]

    @property
    def _live(self):
        return self.callbacks.live

    @property
    def last(self):
        return self.flash.last_run


class Kit(SimpleNamespace):
    """Runs gepa.optimize with everything recorded."""

    def run(self, executor=None, *, calls=150, seed=0, catch=False, **options):
        adapter = options.pop("adapter", None) or Words()
        reflection = options.pop("reflection", None) or Reflection()
        log, callbacks, tracker, engines = Log(), options.pop("recorder", None) or Callbacks(), Tracker(), []
        callbacks.live = []
        callbacks.watchers.append(lambda _, event: callbacks.live.append(event) if "final_state" in event else None)
        on_engine = options.pop("on_engine", None)
        make_engine, make_tracker = gepa.api.GEPAEngine, gepa.api.create_experiment_tracker

        def engine(**arguments):
            engines.append(make_engine(**arguments))
            if on_engine is not None:
                on_engine(engines[-1])
            return engines[-1]

        arguments = {
            "seed_candidate": ONE,
            "trainset": list(range(12)),
            "valset": list(range(100, 110)),
            "adapter": adapter,
            "reflection_lm": reflection,
            "max_metric_calls": calls,
            "logger": log,
            "callbacks": [callbacks],
            "seed": seed,
            **options,
        }
        if arguments.get("custom_candidate_proposer") or arguments.get("reflection_strategy"):
            arguments["reflection_lm"] = None
        result = error = None
        gepa.api.GEPAEngine, gepa.api.create_experiment_tracker = engine, lambda **_: tracker
        try:
            result = gepa.optimize(executor=executor, **arguments)
        except BaseException as raised:
            if not catch:
                raise
            error = raised
        finally:
            gepa.api.GEPAEngine, gepa.api.create_experiment_tracker = make_engine, make_tracker
        return Run(result, error, adapter, reflection, log, callbacks, tracker, engines[0], executor)

    def optimize(self, **options):
        """gepa.optimize alone, from any thread, with whatever executor is in force."""
        arguments = {"seed_candidate": ONE, "trainset": list(range(12)), "valset": list(range(100, 110))}
        arguments |= {"reflection_lm": Reflection(), "max_metric_calls": 60, "logger": Log(), **options}
        return gepa.optimize(**arguments)

    def flash(self, **settings):
        """Virtual time and many reflections at once, unless said otherwise."""
        if settings.get("lockstep"):  # takes none of these
            for name in ("max_concurrency", "reflection_concurrency", "max_items", "max_staleness", "evaluate"):
                settings.pop(name, None)
        else:
            settings = {"reflection_concurrency": 8, **settings}
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
        thread.join(5)
    assert not any(thread.is_alive() for thread in left)


@pytest.fixture
def dispatch(monkeypatch):
    return Dispatch(monkeypatch)
