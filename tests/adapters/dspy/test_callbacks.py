"""dspy's evaluation callbacks and log lines: once per stage, as the host's own, in the serial order."""

import logging
import threading
from collections import Counter

import dspy
import pytest
from dspy.teleprompt.bootstrap_trace import FailedPrediction
from dspy.teleprompt.gepa.gepa_utils import DspyAdapter
from dspy.utils.callback import BaseCallback
from dspy.utils.callback_context import ACTIVE_CALL_ID
from gepa.strategies.proposal_sampling import IndependentSampling

from flashevolve_plugins import Flash
from flashevolve_plugins.hooks import hookimpl


class Recorder(BaseCallback):
    """Keeps what it is told of evaluations and of the compilation, in a form that compares between runs."""

    def __init__(self):
        self.told, self.ids, self.threads, self.compiles = [], [], set(), []

    def on_evaluate_start(self, call_id, instance, inputs):
        self.threads.add(threading.current_thread())
        self.ids.append((call_id, ACTIVE_CALL_ID.get()))
        self._metric = inputs["metric"]
        own = {**vars(instance), "devset": [each.question for each in instance.devset]}
        given = {**inputs, "program": [each.signature.instructions for each in inputs["program"].predictors()]}
        for named in (own, given):
            named["metric"] = bool(named["metric"])
        self.told.append((type(instance), own, given))

    def on_evaluate_end(self, call_id, outputs, exception=None):
        self.threads.add(threading.current_thread())
        self.ids.append((call_id, ACTIVE_CALL_ID.get()))
        rows = [(example.question, plain(prediction), plain(score)) for example, prediction, score in outputs.results]
        again = [plain(self._metric(*row[:2])) for row in outputs.results[:1] if self._metric and row[1]]
        self.told.append((type(outputs), outputs.score, rows, again, exception))

    def on_compile_start(self, call_id, **_):
        self.compiles.append(call_id)


def plain(value):
    """Predictions compare by identity, their fields by value."""
    if isinstance(value, tuple):
        prediction, trace = value
        return plain(prediction), [(predictor.signature.instructions, plain(output)) for predictor, _, output in trace]
    if isinstance(value, dspy.Prediction):
        return dict(value.items())
    return vars(value) if isinstance(value, FailedPrediction) else value


def run(task, executor, **options):
    recorder = Recorder()
    with dspy.context(callbacks=[recorder]):
        program = task.compile(executor, **options)
    return recorder, program.detailed_results


def mumble(task):
    """A task LM some of whose answers cannot be parsed."""

    def answer(system, user):
        return "mumble" if "case 101" in user or "case 4" in user else task._answer(system, user)

    return task.make_lm("mumbling", answer)


RUNS = {
    "one predictor": {},
    "two predictors and merges": {"student": "pair", "max_metric_calls": 140, "component_selector": "all"},
    "failures": {"failure_score": 0.125, "lm": mumble},
    "one thread": {"num_threads": 1},
    "Flex code beside a predictor": {"student": "mixed"},
    "the training set is the validation set": {"val": None},
}


def one_run(name, task, executor):
    options = {"student": "student", **RUNS[name]}
    lm = options.pop("lm", lambda task: task.task_lm)(task)
    student = getattr(task, options.pop("student"))()
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        return run(task, executor, student=student, **options)


@pytest.mark.parametrize("name", RUNS)
def test_one_item_at_a_time_tells_what_the_host_tells(name, task):
    """Flash spends no more than the budget, so it may stop before the host does."""
    host, lockstep, mine = (
        one_run(name, task, executor)[0].told
        for executor in (None, Flash(progress=False, lockstep=True), Flash(progress=False, max_items=1))
    )
    assert lockstep == host
    assert len(mine) > 20
    assert mine == host[: len(mine)]


def test_proposals_of_one_sampling_call_are_told_as_the_host_tells_them(task):
    """The host evaluates them at once, in an order of no meaning, and splits its threads between them."""
    told = []
    for executor in (None, Flash(progress=False, lockstep=True), Flash(progress=False, max_items=1)):
        recorder, _ = run(task, executor, gepa_kwargs={"sampling_strategy": IndependentSampling(2)})
        for kind, own, *_ in recorder.told:
            if kind is dspy.Evaluate:
                del own["num_threads"]
        told.append(Counter(map(repr, recorder.told)))
    host, lockstep, mine = told
    assert lockstep == host
    assert sum(mine.values()) > 20
    assert not mine - host


class Stages:
    """Counts the stages that evaluate."""

    def __init__(self):
        self.evaluated = 0

    @hookimpl
    def flashevolve_stage_finished(self, item, stage):
        self.evaluated += stage in ("rollout", "gate", "validate")


@pytest.mark.parametrize("student", ["student", "pair"])
def test_many_items_at_once_tell_one_pair_per_stage_on_the_callers_thread(student, task):
    stages = Stages()
    flash = Flash(progress=False, staleness="full", plugins=[stages])
    recorder, results = run(task, flash, student=getattr(task, student)(), num_threads=8, max_metric_calls=200)
    assert recorder.threads == {threading.current_thread()}
    starts, ends = recorder.ids[::2], recorder.ids[1::2]
    (compile_id,) = recorder.compiles
    assert starts == ends
    assert len(set(starts)) == len(starts) == stages.evaluated > 20
    assert {parent for _, parent in starts} == {compile_id}
    assert sum(len(own["devset"]) for _, own, _ in recorder.told[::2]) == results.total_metric_calls
    sizes = {(len(own["devset"]), str(given["callback_metadata"])) for _, own, given in recorder.told[::2]}
    assert sizes - {(5, "None")} == {  # the gate of a merge
        (8, "None"),  # the seed
        (3, "{'disable_logging': True}"),
        (8, "{'metric_key': 'eval_full'}"),
    }


def test_a_callback_that_raises_is_warned_of_and_the_run_goes_on(task, consistent, caplog, monkeypatch):
    class Broken(BaseCallback):
        def on_evaluate_start(self, call_id, instance, inputs):
            raise RuntimeError("a callback that is broken")

    logger = logging.getLogger("dspy.utils.callback")
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    with dspy.context(callbacks=[Broken()]):
        consistent(task, task.compile(Flash(progress=False)), 100)
    assert "a callback that is broken" in caplog.text


class Mine(DspyAdapter):
    """A dspy adapter with an `evaluate` of its own."""

    def evaluate(self, batch, candidate, capture_traces=False, num_threads=None):
        return super().evaluate(batch, candidate, capture_traces, num_threads)


def test_an_adapter_with_an_evaluate_of_its_own_evaluates_whole_batches_and_tells_of_them_itself(
    task, monkeypatch, caplog
):
    monkeypatch.setattr("dspy.teleprompt.gepa.gepa_utils.DspyAdapter", Mine)
    stages = Stages()
    recorder, results = run(task, Flash(progress=False, staleness="full", plugins=[stages]))
    assert len(recorder.told) == 2 * stages.evaluated > 20
    assert sum(len(own["devset"]) for _, own, *_ in recorder.told[::2]) == results.total_metric_calls
    assert "Mine does not say what it can evaluate at once" in caplog.text


LOGGER = logging.getLogger("dspy.evaluate.evaluate")


@pytest.fixture
def averages(monkeypatch, caplog):
    """Collect the host's lines on each evaluation's average."""
    monkeypatch.setattr(LOGGER, "handlers", [caplog.handler])
    monkeypatch.setattr(LOGGER, "propagate", False)
    monkeypatch.setattr(LOGGER, "level", logging.INFO)

    def collect():
        lines = [record.getMessage() for record in caplog.records if record.name == LOGGER.name]
        caplog.clear()
        return lines

    return collect


def test_each_stage_logs_its_average_as_the_host_does(task, averages):
    lines = []
    for executor in (None, Flash(progress=False, max_items=1)):
        task.compile(executor)
        lines.append(averages())
    host, mine = lines
    assert len(mine) > 10
    assert mine == host[: len(mine)]


def test_averages_stay_off_the_console_beside_a_progress_line(task, capfd, averages):
    LOGGER.addHandler(logging.StreamHandler())  # to the list that the fixture made
    task.compile(Flash())
    assert "Average Metric" not in capfd.readouterr().err
    assert averages()
    task.compile(Flash(progress=False), max_metric_calls=30)
    assert "Average Metric" in capfd.readouterr().err
