"""A small deterministic task for ``optimize_anything``, and runs of it in which everything a user can see is kept."""

import dataclasses
import json
import sys
import threading
from collections import Counter, defaultdict, deque
from contextlib import contextmanager
from types import SimpleNamespace

import gepa.optimize_anything as oa
from gepa_records import Callbacks, Log, Tracker
from gepa_task import ONE, WORDS, Reflection, chance, score

TEXT = "current_candidate"  # the component that the host makes of a str
JSON = "(JSON)\n```json\n"  # where the refiner's prompt has the candidate
TRAIN, VALID = list(range(12)), list(range(100, 106))
MODES = {
    "single task": {"seed_candidate": "start"},
    "multi task": {"seed_candidate": "start", "dataset": TRAIN},
    "generalization": {"seed_candidate": ONE, "dataset": TRAIN, "valset": VALID},
    "seedless": {"objective": "The right words.", "dataset": TRAIN, "valset": VALID},
    "seedless single task": {"objective": "The right words."},
}
#: Where ``GEPAConfig`` keeps its options. No two of them share a name.
PARTS = {
    "engine": oa.EngineConfig,
    "reflection": oa.ReflectionConfig,
    "tracking": oa.TrackingConfig,
    "merge": oa.MergeConfig,
    "refiner": oa.RefinerConfig,
}
OPTIONAL = ("merge", "refiner")


def texts_of(candidate):
    """What of a candidate counts, as a dict: all but the refiner's instruction."""
    found = {TEXT: candidate} if isinstance(candidate, str) else candidate
    return {name: text for name, text in found.items() if name != "refiner_prompt"}


def value(candidate, example):
    """The score of a candidate on an example; ``None`` is the one of a single task."""
    return score(0 if example is None else example, texts_of(candidate))


def line(candidate, example):
    """What an evaluation says of itself."""
    return f"{example}: {json.dumps(texts_of(candidate))}"


def side_info(candidate, example):
    return {"of": line(candidate, example), "scores": {"words": value(candidate, example)}}


class Evaluator:
    """The user's function: scores and logs, and knows what of it happened at once.

    Args:
        fails: of (candidate, example), true where it raises.
    """

    def __init__(self, fails=lambda candidate, example: False):
        self.lock = threading.Lock()
        self.calls, self.threads = [], set()
        self.at_once = self.most_at_once = 0
        self.fails = fails

    def __call__(self, candidate, example=None):
        with self.under_way([(candidate, example)]):
            self.say("begins", candidate, example)
            self.working()
            if self.fails(candidate, example):
                raise RuntimeError(f"no {example}")
            self.say("ends", candidate, example)
            return self.found(candidate, example)

    @contextmanager
    def under_way(self, pairs):
        with self.lock:
            self.calls += [line(*pair) for pair in pairs]
            self.threads.add(threading.current_thread().name)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            yield
        finally:
            with self.lock:
                self.at_once -= 1

    def say(self, what, candidate, example):
        oa.log(what, line(candidate, example))

    def working(self):
        """What tests override to hold an evaluation in its middle."""

    def found(self, candidate, example):
        return value(candidate, example), side_info(candidate, example)


class Printing(Evaluator):
    """Also prints what it logs."""

    def say(self, what, candidate, example):
        super().say(what, candidate, example)
        print(what, line(candidate, example))  # noqa: T201 - the host captures it
        print(what, "badly", line(candidate, example), file=sys.stderr)  # noqa: T201 - the host captures it


class Scoring(Evaluator):
    """Returns a score alone."""

    def found(self, candidate, example):
        return value(candidate, example)


class Warm(Evaluator):
    """Asks for the best evaluations of its example so far, and scores a little more where there are many."""

    def __init__(self):
        super().__init__()
        self.seen = []  # (example, what it was given)

    def __call__(self, candidate, example, opt_state):
        best = opt_state.best_example_evals
        with self.under_way([(candidate, example)]):
            self.seen.append((example, best))
            return value(candidate, example) + 0.01 * len(best), {"of": line(candidate, example)}


class BatchEvaluator(Evaluator):
    """The user's function for many pairs in one call."""

    def __init__(self, **options):
        super().__init__(**options)
        self.sizes = []

    def __call__(self, pairs):
        with self.under_way(pairs):
            self.sizes.append(len(pairs))
            self.working()
            if any(self.fails(*pair) for pair in pairs):
                raise RuntimeError(f"none of {len(pairs)}")
            return [self.found(*pair) for pair in pairs]


class Refiner(Reflection):
    """The refiner's model: one word more; sometimes no JSON, sometimes an error."""

    def answer(self, prompt):
        luck = chance("refine", prompt)
        if luck.random() < 0.1:
            return "no JSON"
        if luck.random() < 0.1:
            raise RuntimeError("the refiner fails")
        texts = json.loads(prompt.partition(JSON)[2].partition("\n```")[0])
        name = luck.choice(sorted(texts))
        return f"```json\n{json.dumps({**texts, name: f'{texts[name]} {luck.choice(WORDS)}'})}\n```"


class Words(Refiner):
    """The reflection model; asked for a seed, it gives one. A single task asks the same again and again."""

    def answer(self, prompt):
        if "initial candidate" in prompt:
            return "```\nstart\n```"
        if JSON in prompt:
            return super().answer(prompt)
        return Reflection.answer(self, f"{prompt}\n{self.calls}")


class Events(Callbacks):
    """The host's stand-in for the example of a single task is ``None``, as the user's functions see it."""

    def __getattr__(self, name):
        keep = super().__getattr__(name)

        def keep_readable(event):
            if event.get("inputs") == [oa._SINGLE_INSTANCE_SENTINEL]:
                event = {**event, "inputs": [None]}
            keep(event)

        return keep_readable


class Recorded(SimpleNamespace):
    """A run, and everything it left behind."""

    @property
    def last(self):
        return self.flash.last_run

    def evaluations(self):
        """(candidate, example, score, side_info) of every example of a minibatch that callbacks were told of."""
        begun = defaultdict(deque)  # iteration to the inputs of evaluations that began and have not ended
        for name, event in self.events:
            if name == "on_evaluation_start":
                begun[event["iteration"]].append(event["inputs"])
            if name == "on_evaluation_end":
                inputs = begun[event["iteration"]].popleft()
                for example, (it, candidate, info) in zip(inputs, event["outputs"], strict=True):
                    yield candidate, example, it, info
                assert [output[0] for output in event["outputs"]] == event["scores"]


def configuration(options):
    """A ``GEPAConfig`` of the options that are fields of its parts, which are taken out of ``options``."""
    parts = {}
    for part, kind in PARTS.items():
        known = {each.name for each in dataclasses.fields(kind)}
        given = {name: options.pop(name) for name in sorted(known & set(options))}
        if given or part not in OPTIONAL:
            parts[part] = kind(**given)
    more = {name: options.pop(name) for name in ("stop_callbacks", "callbacks") if name in options}
    return oa.GEPAConfig(**parts, **more)


def run(executor=None, *, calls=60, mode="generalization", catch=False, **options):
    """One run of ``optimize_anything``.

    Args:
        executor: as the host's function has it; ``...`` gives it none.
        calls: ``max_metric_calls``.
        mode: one of ``MODES``.
        catch: keep what is raised as the run's ``error``.
        options: of the function, or of any part of its configuration; ``configure`` is called with the latter.
    """
    log, callbacks, tracker = options.pop("logger", Log()), Events(), Tracker()
    functions = {"evaluator": Evaluator(), "reflection_lm": Words(), "batch_evaluator": None}
    functions |= {name: options.pop(name) for name in functions if name in options}
    options["callbacks"] = [callbacks, *options.get("callbacks", ())]
    configure = options.pop("configure", lambda config: config)
    defaults = {"max_metric_calls": calls, "use_cloudpickle": False}  # gepa alone does not bring cloudpickle
    config = configuration(defaults | {"logger": log, "reflection_lm": functions["reflection_lm"]} | options)
    known = {each.name for kind in (*PARTS.values(), oa.GEPAConfig) for each in dataclasses.fields(kind)}
    arguments = MODES[mode] | {name: each for name, each in options.items() if name not in known}
    if isinstance(arguments.get("seed_candidate"), dict):
        arguments["seed_candidate"] = dict(arguments["seed_candidate"])  # the host adds the refiner's instruction
    arguments |= {name: functions[name] for name in ("evaluator", "batch_evaluator")}
    arguments |= {} if executor is ... else {"executor": executor}
    kept = {"engine": None, "state": None, "result": None, "error": None}
    make_engine, make_tracker = oa.GEPAEngine, oa.create_experiment_tracker

    def engine(**made):
        kept["engine"] = found = make_engine(**made)
        host_run = found.run
        found.run = lambda: kept.update(state=host_run()) or kept["state"]
        return found

    oa.GEPAEngine = engine
    if not (config.tracking.use_wandb or config.tracking.use_mlflow):
        oa.create_experiment_tracker = lambda **_: tracker
    try:
        kept["result"] = oa.optimize_anything(config=configure(config), **arguments)
    except BaseException as raised:
        if not catch:
            raise
        kept["error"] = raised
    finally:
        oa.GEPAEngine, oa.create_experiment_tracker = make_engine, make_tracker
    return _recorded(executor, log, callbacks, tracker, functions, **kept)


def _recorded(executor, log, callbacks, tracker, functions, engine, state, result, error):
    evaluators = [functions[name] for name in ("evaluator", "batch_evaluator") if hasattr(functions[name], "calls")]
    proposer = None if engine is None else engine.reflective_proposer
    sources = [getattr(proposer, name, None) for name in ("candidate_selector", "batch_sampler")]
    return Recorded(
        result=result,
        error=error,
        state=state,
        engine=engine,
        log=log if isinstance(log, Log) else Log(),
        callbacks=callbacks,
        tracker=tracker,
        flash=executor,
        events=callbacks.events,
        lines=getattr(log, "lines", []),
        tracked=tracker.calls,
        trace=[] if state is None else state.full_program_trace,
        reflections=getattr(functions["reflection_lm"], "calls", 0),
        evaluated=Counter(call for each in evaluators for call in each.calls),  # the host's threads know no order
        generator=[each.rng.getstate() for each in sources if hasattr(each, "rng")],
    )
