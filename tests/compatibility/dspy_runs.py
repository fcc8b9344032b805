"""Runs of dspy.GEPA in which everything a user can see is recorded, files and services included."""

import contextlib
import io
import logging
import shutil
import sys
from collections import Counter
from inspect import signature

import dspy
from dspy.teleprompt.bootstrap_trace import FailedPrediction
from dspy.utils.callback import BaseCallback
from dspy_task import Task, assert_consistent, summarize
from fake_services import Mlflow, Service
from gepa.core.state import GEPAState
from gepa_records import contents
from gepa_values import FOLDER, host_files

DEFAULTS = {"max_metric_calls": 60, "num_threads": 4, "track_stats": True, "use_merge": False}
BUDGETS = ("auto", "max_full_evals", "max_metric_calls")
OURS = ("student", "train", "val", "images", "settings", "before", "teacher")
LOGGERS = ("dspy.teleprompt.gepa.gepa", "dspy.teleprompt.gepa.gepa_utils", "dspy.evaluate.evaluate")


class Run:
    """A run, and everything it left behind.

    Args:
        executor: as for ``dspy.GEPA``.
        case: the options, each a value or a function from the run's :class:`Task` to one; besides the constructor's
            also ``student`` (the name of a task's method), ``train`` and ``val`` (sizes), ``teacher``, ``images``,
            ``settings`` (dspy's) and ``before`` (options of a run that goes before in the same folder).
        seed: the optimizer's.
        monkeypatch: replaces the experiment trackers.
    """

    def __init__(self, executor, case, seed, monkeypatch):
        self.task, self.case, self.services = Task(), dict(case), []
        monkeypatch.setitem(sys.modules, "wandb", Service(self.services, "wandb"))
        monkeypatch.setitem(sys.modules, "mlflow", Mlflow(self.services))
        shutil.rmtree(FOLDER, ignore_errors=True)
        before = self.case.pop("before", None)
        self.counts_calls = before is None and not {"metric", "settings"} & set(self.case)
        if before is not None:
            Run._run(self, executor, {**self.case, **before}, seed)
        self._run(executor, self.case, seed)
        self.files = files()

    def _run(self, executor, case, seed):
        task = self.task
        made = {name: each(task) if callable(each) else each for name, each in {"seed": seed, **case}.items()}
        defaults = {
            name: each for name, each in DEFAULTS.items() if name not in BUDGETS or not set(BUDGETS) & set(made)
        }
        options = {"metric": task.metric, "reflection_lm": task.reflection_lm, **defaults, **made}
        ours = {name: options.pop(name) for name in OURS if name in options}
        images = ours.get("images", False)
        data = {"trainset": task.examples(ours.get("train", 6), images=images)}
        if ours.get("val", 8) is not None:
            data["valset"] = task.examples(ours.get("val", 8), first=100, images=images)
        if "teacher" in ours:
            data["teacher"] = ours["teacher"]
        self.told, self.events, self.lines = Evaluations(), Callbacks(), Lines()
        options["gepa_kwargs"] = {"callbacks": [self.events], **options.get("gepa_kwargs", {})}
        settings = {"lm": task.task_lm, "callbacks": [self.told], **ours.get("settings", {})}
        self.program = self.optimizer = None
        with dspy.context(**settings), self.lines.kept(), contextlib.redirect_stdout(io.StringIO()):
            try:
                self.optimizer = dspy.GEPA(**options, executor=executor)
                self.program = self.optimizer.compile(getattr(task, ours.get("student", "student"))(), **data)
                self.error = None
            except Exception as error:  # noqa: BLE001 - compared
                self.error = error
        self.settings = settings
        self.budget = getattr(self.optimizer, "max_metric_calls", None)

    @property
    def error_seen(self):
        """What a user sees of the error, or ``None``."""
        return self.error and (type(self.error), str(self.error))

    @property
    def seen(self):
        """What a user can see, under names."""
        task = self.task
        numbers = {name: len(getattr(task, name)) for name in ("task_calls", "reflections", "metric_calls")}
        numbers |= {name: len(getattr(task, name)) for name in ("feedback_calls", "lookups")}
        found = {"error": self.error_seen, "calls": numbers}
        found |= {"models of the proposer": task.proposers, "services": self.services, "files": self.files}
        found |= {"evaluations": self.told.seen, "events": self.events.events, "lines": self.lines.seen}
        if self.program is not None:
            found["program"] = self.program.dump_state()
            found["budget"] = self.budget
            has_results = hasattr(self.program, "detailed_results")
            found["results"] = summarize(self.program) if has_results else None
        return found

    @property
    def results(self):
        return getattr(self.program, "detailed_results", None)


class Callbacks:
    """Keeps what gepa's callbacks are told."""

    def __init__(self):
        self.events = []

    def __getattr__(self, name):
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda event: self.events.append((name, plain(event)))

    def named(self, name):
        return [event for kind, event in self.events if kind == name]


def plain(value):
    """A copy that compares by content: predictions and predictors of dspy compare by identity."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    for kind, content in CONTENTS.items():
        if isinstance(value, kind):
            return kind.__name__, plain(content(value))
    return list(value.all_ids()) if hasattr(value, "all_ids") else value


CONTENTS = {
    dspy.Example: lambda value: dict(value.items()),  # and predictions
    dspy.Module: lambda value: value.dump_state(),
    FailedPrediction: vars,
    BaseException: str,
    GEPAState: lambda value: (value.i, value.total_num_evals, value.program_candidates),
}


class Evaluations(BaseCallback):
    """Keeps the evaluations that dspy's callbacks are told of, whatever their order within an iteration."""

    def __init__(self):
        self.seen = Counter()

    def on_evaluate_end(self, call_id, outputs, exception=None):
        rows = tuple((example.question, repr(score)) for example, _, score in outputs.results)
        self.seen[rows, outputs.score] += 1


class Lines(logging.Handler):
    """Keeps what dspy's loggers say of an optimization."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def emit(self, record):
        text = record.getMessage()
        if text.startswith("Traceback"):
            text = text.strip().rsplit("\n", 1)[-1]  # the way to the error is not the host's alone
        if "Average Metric" not in text:  # told by the evaluations
            self.seen.append((record.levelname, text))

    @contextlib.contextmanager
    def kept(self):
        loggers = [logging.getLogger(name) for name in LOGGERS]
        before = [(each.level, each.propagate) for each in loggers]
        for each in loggers:
            each.addHandler(self)
            each.setLevel(logging.INFO)
            each.propagate = False
        try:
            yield
        finally:
            for each, (level, propagate) in zip(loggers, before, strict=True):
                each.removeHandler(self)
                each.setLevel(level)
                each.propagate = propagate


def files():
    """What is in the run directory."""
    found = {}
    for each in host_files():
        name = str(each.relative_to(FOLDER))
        if each.suffix == ".bin":
            found[name] = {
                key: value for key, value in contents(GEPAState.load(str(FOLDER))).items() if "outputs" not in key
            }
        elif each.is_file():
            found[name] = each.read_text(encoding="utf-8")
    return found


def assert_equal(host, mine):
    """Nothing that a user can see differs between two runs. Raises AssertionError that names the first difference."""
    one, other = host.seen, mine.seen
    assert set(one) == set(other)
    for name, theirs in one.items():
        if isinstance(theirs, list):
            for position, (each, mine_) in enumerate(zip(theirs, other[name], strict=False)):
                assert each == mine_, f"{name}[{position}] differ"
        assert theirs == other[name], f"{name} differ"


def assert_begins(host, mine):
    """A run's events are the host's own first ones, as far as it went."""
    for position, (one, other) in enumerate(zip(host, mine, strict=False)):
        assert one == other, f"events[{position}] differ"
    assert len(mine) <= len(host)


def differ(one, other):
    """Whether a user sees a difference between two runs."""
    return one.seen != other.seen


def check(run):
    """What holds of a finished run outside lockstep, whatever its options."""
    results, task = run.results, run.task
    assert_consistent(task, run.program, run.budget, calls=run.counts_calls)
    with dspy.context(**{**run.settings, "callbacks": []}):
        metric = run.optimizer.metric_fn
        images = run.case.get("images", False)
        for program, scores in zip(results.candidates, results.val_subscores, strict=True):
            examples = task.examples(8, first=100, images=images) if run.case.get("val", 8) else ()
            for example, score in zip(examples, scores.values(), strict=False):
                assert score == truth(run, metric, program, example)


def truth(run, metric, program, example):
    """What a candidate's program deserves on an example."""
    named = {"program_trace": []} if "program_trace" in signature(metric).parameters else {}
    try:
        found = metric(example, program(**example.inputs()), None, None, None, **named)
    except Exception:  # noqa: BLE001 - whatever raises gets the failure score
        return run.optimizer.failure_score
    return getattr(found, "score", found)
