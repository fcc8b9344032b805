"""A single example gives what dspy's own evaluate gives for it, and merged examples give what a batch gives."""

import contextvars
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

dspy = pytest.importorskip("dspy")

from dspy.teleprompt.bootstrap_trace import FailedPrediction  # noqa: E402
from dspy.teleprompt.gepa.gepa_utils import DspyAdapter  # noqa: E402
from dspy.utils.callback import BaseCallback  # noqa: E402
from dspy.utils.callback_context import ACTIVE_CALL_ID  # noqa: E402
from dspy.utils.exceptions import AdapterParseError, LMTransportError  # noqa: E402
from flashevolve_plugins.adapters.dspy.samples import ExampleEvaluator, merge  # noqa: E402
from gepa.core.adapter import EvaluationBatch  # noqa: E402

FAILURE = 0.25
CANDIDATE = {"draft": "Draft it.", "final": "Answer it."}
ANSWERS = {
    "unparsed": {"draft": "a draft", "stray": "x"},
    "partly": {"draft": "a draft", "answer": "an answer"},
    "early": {"stray": "x"},
    "": {"draft": "a draft", "answer": "an answer", "why": "a reason"},
}
SCORED = ["float", "true", "false", "zero", "feedback", "objectives", "odd", "given"]
PARSED_BADLY = ["unparsed", "xunparsed", "early"]  # kept under traces, failures without
RAISING = {"boom": RuntimeError, "down": LMTransportError, "partly": AdapterParseError, "foreign": AdapterParseError}
RAISING |= {"metric": KeyError, "lost": ValueError}
ALL = [*SCORED[:3], *RAISING, *PARSED_BADLY, *SCORED[3:]]
SCORES = {"true": True, "false": False, "zero": 0, "none": None, "text": "high", "scoreless": dspy.Prediction(a=1)}
both_ways = pytest.mark.parametrize("traced", [False, True], ids=["plain", "traced"])


class Two(dspy.Module):
    def __init__(self):
        super().__init__()
        self.draft = dspy.Predict("question -> draft")
        self.final = dspy.Predict("question, draft -> answer, why")

    def forward(self, question):
        if question == "boom":
            raise RuntimeError(question)
        if question == "foreign":
            raise AdapterParseError("x", dspy.Signature("a -> b"), "of no predictor here")
        if question == "given":
            return FailedPrediction("made by the program", format_reward=0.5)
        if question in ("exit", "interrupt"):
            raise SystemExit if question == "exit" else KeyboardInterrupt
        draft = self.draft(question=question).draft
        if question == "down":
            raise LMTransportError("no server")
        if dspy.settings.usage_tracker is not None:
            dspy.settings.usage_tracker.add_usage("lm", {"tokens": 1})
        return "no prediction" if question == "odd" else self.final(question=question, draft=draft)


class Called(Two):
    """A program with an entry point of its own: what `forward` gets is not what the example says."""

    def __call__(self, question):
        return super().__call__(question=question.removeprefix("x"))


def metric(gold, prediction, *rest):
    if gold.question == "metric":
        raise KeyError(gold.question)
    if gold.question == "feedback":
        return dspy.Prediction(score=0.5, feedback=f"{rest} beside {type(prediction)}")
    if gold.question == "objectives":
        return dspy.Prediction(score=0.75, feedback="", objective_scores={"brevity": 0.5})
    return SCORES.get(gold.question, 0.125)


def example(question):
    made = dspy.Example(question=question, gold="g")
    return made if question == "lost" else made.with_inputs("question")


def adapter(student=None, threads=4):
    return DspyAdapter(student or Two(), metric, {}, failure_score=FAILURE, num_threads=threads)


def evaluate(live, questions, traced, candidate=CANDIDATE, told=None):
    """Evaluate one by one; `told` gets what is reported of failures."""
    evaluator = ExampleEvaluator(live)
    hear = None if told is None else lambda kind, error: told.append((kind, type(error)))
    return [evaluator.evaluate(candidate, example(q), capture_traces=traced, on_failure=hear) for q in questions]


def by_host(live, questions, traced, candidate=CANDIDATE):
    """Evaluate with the host; where it leaves out examples (3.3.1, traced, raising), put the rest back in place."""
    batch = live.evaluate([example(q) for q in questions], candidate, capture_traces=traced)
    if len(batch.outputs) == len(questions):
        return batch
    assert traced
    assert len(batch.scores) == len(batch.trajectories) == len([q for q in questions if q not in RAISING])
    kept = {d["example_ind"]: d for d in batch.trajectories}
    outputs, scores = ([kept.get(i, {}).get(k) for i in range(len(questions))] for k in ("prediction", "score"))
    return live._make_evaluation_batch(outputs, scores, batch.trajectories)


def shape(batch):
    """Return all of a batch, comparable although each evaluation has predictors of its own."""

    def steps(d):
        return [(p.signature.instructions, list(p.signature.fields), inputs, out) for p, inputs, out in d["trace"]]

    extras = [[type(value) for value in [*batch.scores, *batch.outputs]]]
    extras += [out.get_lm_usage() if isinstance(out, dspy.Prediction) else None for out in batch.outputs]
    return {
        **vars(batch),
        "trajectories": batch.trajectories and [{**d, "trace": steps(d)} for d in batch.trajectories],
        "extras": extras,
    }


@pytest.fixture(autouse=True)
def _settings():
    strict = dspy.ChatAdapter(use_json_adapter_fallback=False)
    with dspy.context(lm=dspy.utils.DummyLM(ANSWERS), adapter=strict):
        yield


@both_ways
@pytest.mark.parametrize("question", ALL)
@pytest.mark.parametrize("student", [Two, Called])
def test_one_example_equals_the_host(student, question, traced):
    live = adapter(student())
    (mine,) = evaluate(live, [question], traced)
    assert shape(mine) == shape(by_host(live, [question], traced))
    assert (len(mine.outputs), len(mine.scores)) == (1, 1)


@both_ways
@pytest.mark.parametrize("questions", [ALL, list(RAISING), SCORED])
def test_merged_examples_equal_the_hosts_batch(questions, traced):
    live = adapter()
    assert shape(merge(evaluate(live, questions, traced))) == shape(by_host(live, questions, traced))


def test_a_raising_example_keeps_its_place_even_where_the_host_drops_it():
    live, questions = adapter(), ["float", "boom", "true"]
    mine = merge(evaluate(live, questions, traced=True))
    assert (mine.scores, [d["example_ind"] for d in mine.trajectories]) == ([0.125, FAILURE, True], [0, 2])
    host = live.evaluate([example(q) for q in questions], CANDIDATE, capture_traces=True)
    assert host.scores in (mine.scores, [0.125, True])  # the latter in dspy 3.3.1


@both_ways
@pytest.mark.parametrize(("question", "error"), [("none", TypeError), ("text", TypeError), ("scoreless", ValueError)])
def test_a_score_that_is_no_number_raises_as_in_the_host(question, error, traced):
    with pytest.raises(error):
        by_host(adapter(), [question], traced)
    with pytest.raises(error):
        evaluate(adapter(), [question], traced)


@both_ways
@pytest.mark.parametrize(("question", "error"), [("exit", SystemExit), ("interrupt", KeyboardInterrupt)])
def test_leaving_the_interpreter_is_no_failure_of_an_example(question, error, traced):
    with pytest.raises(error):
        evaluate(adapter(), [question], traced)


@both_ways
@pytest.mark.parametrize(("question", "error"), RAISING.items())
def test_a_swallowed_exception_is_told_and_logged_once(question, error, traced, caplog, monkeypatch):
    told, where = [], logging.getLogger("dspy.utils.parallelizer")  # where the host logs it
    monkeypatch.setattr(where, "propagate", False)
    monkeypatch.setattr(where, "handlers", [caplog.handler])
    evaluate(adapter(), [question], traced, told=told)
    assert told == [("metric" if question == "metric" else "program", error)]
    assert [(record.levelname, question in record.getMessage()) for record in caplog.records] == [("ERROR", True)]


@both_ways
def test_a_parse_failure_is_told_although_its_trace_is_kept(traced):
    told = []
    batch, _ = evaluate(adapter(), ["unparsed", "float"], traced, told=told)
    assert told == [("program", AdapterParseError)]
    assert [type(step[2]) for d in batch.trajectories or () for step in d["trace"]] == [
        dspy.Prediction,
        FailedPrediction,
    ][: 2 * traced]


class Canned:
    """An interpreter that answers a Flex module without running its code."""

    def __init__(self):
        self.tools = {}

    def start(self): ...

    def shutdown(self): ...

    def execute(self, code, variables=None):
        if "boom" in str(variables):
            raise RuntimeError("boom")
        return '{"answer": "an answer"}'


@both_ways
def test_flex_code_goes_through_the_host_and_what_it_swallows_is_told(traced):
    live = adapter(dspy.Flex("question -> answer", interpreter_factory=Canned))
    (name,) = live._flex_paths
    told, questions = [], ["objectives", "boom", "metric"]
    for source in (live.student.module_src, "no python ("):
        for question in questions:
            (mine,) = evaluate(live, [question], traced, {name: source}, told)
            assert shape(mine) == shape(by_host(live, [question], traced, {name: source}))
    assert told == [("program", RuntimeError), ("metric", KeyError), *[("program", SyntaxError)] * 3]


@both_ways
def test_a_candidate_that_does_not_build_is_scored_as_the_host_scores_it(traced, monkeypatch):
    live, told, built = adapter(), [], []
    monkeypatch.setattr(live, "build_program", lambda candidate: built.append(candidate) or compile("(", "", "eval"))
    host = by_host(live, ["true"], traced)
    assert [shape(batch) for batch in evaluate(live, ["true", "false"], traced, told=told)] == [shape(host)] * 2
    assert (told, len(built)) == ([("program", SyntaxError)] * 2, 2)
    assert ExampleEvaluator(live).build(CANDIDATE) is None


@both_ways
def test_thirty_two_threads_give_what_one_gives_with_one_program(traced, monkeypatch):
    live, built = adapter(), []
    serial = [shape(batch) for batch in evaluate(live, ALL * 4, traced)]
    build = live.build_program
    monkeypatch.setattr(live, "build_program", lambda candidate: built.append(candidate) or build(candidate))
    evaluator = ExampleEvaluator(live)

    def work(context, question):
        return context.run(evaluator.evaluate, CANDIDATE, example(question), capture_traces=traced)

    with ThreadPoolExecutor(32) as pool:
        batches = list(pool.map(work, (contextvars.copy_context() for _ in serial), ALL * 4))
    assert [shape(batch) for batch in batches] == serial
    assert built == [CANDIDATE]


@both_ways
@pytest.mark.parametrize("threads", [1, 4])
def test_usage_is_tracked_as_the_host_tracks_it(threads, traced):
    live = adapter(threads=threads)
    with dspy.context(track_usage=True):
        assert shape(evaluate(live, ["float"], traced)[0]) == shape(by_host(live, ["float"], traced))
    with dspy.track_usage() as host:
        by_host(live, ["float", "true"], traced)
    with dspy.track_usage() as mine:
        evaluate(live, ["float", "true"], traced)
    assert mine.usage_data == host.usage_data
    assert bool(mine.usage_data) is (threads == 1)


@both_ways
def test_module_callbacks_fire_below_the_caller_and_evaluation_callbacks_do_not(traced):
    seen = []

    class Recorder(BaseCallback):
        def on_module_start(self, call_id, instance, inputs):
            seen.append((type(instance).__name__, ACTIVE_CALL_ID.get()))

        def on_evaluate_start(self, call_id, instance, inputs):
            seen.append("evaluate")

    def run():
        ACTIVE_CALL_ID.set("stage")
        with dspy.context(callbacks=[Recorder()]):
            evaluate(adapter(), ["true"], traced)

    contextvars.copy_context().run(run)
    assert [name for name, _ in seen] == ["Two", "Predict", "Predict"]
    assert seen[0] == ("Two", "stage")


def test_a_program_is_shared_until_it_has_run_many_examples_and_the_oldest_are_forgotten(monkeypatch):
    monkeypatch.setattr("flashevolve_plugins.adapters.dspy.samples._EXAMPLES_PER_PROGRAM", 2)
    evaluator = ExampleEvaluator(adapter())
    first, second, third = (evaluator.build(CANDIDATE) for _ in range(3))
    assert first is second is not third
    others = [evaluator.build({"draft": str(n)}) for n in range(16)]
    assert evaluator.build({"draft": "15"}) is others[-1]
    assert evaluator.build(CANDIDATE) is not third


def test_metric_calls_are_summed_when_any_batch_counts_them():
    counted = EvaluationBatch(outputs=[1, 2], scores=[0.0, 0.0], num_metric_calls=5)
    assert merge([counted, EvaluationBatch(outputs=[3], scores=[1.0])]).num_metric_calls == 6
    assert merge([]) == EvaluationBatch(outputs=[], scores=[])
