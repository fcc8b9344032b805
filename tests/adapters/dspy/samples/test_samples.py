"""A single example gives what dspy's own evaluate gives for it, and merged examples give what a batch gives."""

import contextvars
import logging
from concurrent.futures import ThreadPoolExecutor

import dspy
import pytest
from dspy.teleprompt.bootstrap_trace import FailedPrediction
from dspy.utils.callback import BaseCallback
from dspy.utils.callback_context import ACTIVE_CALL_ID
from dspy.utils.exceptions import AdapterParseError
from gepa.core.adapter import EvaluationBatch

from flashevolve_plugins import UsageError
from flashevolve_plugins.adapters.dspy.samples import ExampleEvaluator, merge

FAILURE = 0.25  # as in the conftest's adapter
SCORED = ["float", "true", "false", "zero", "feedback", "objectives", "odd", "given"]
PARSED_BADLY = ["unparsed", "xunparsed", "early"]  # kept under traces, failures without
RAISING = ["boom", "down", "partly", "foreign", "metric", "lost"]
ALL = [*SCORED[:3], *RAISING, *PARSED_BADLY, *SCORED[3:]]
both_ways = pytest.mark.parametrize("traced", [False, True], ids=["plain", "traced"])


@both_ways
@pytest.mark.parametrize("question", ALL)
@pytest.mark.parametrize("student", ["Two", "Called"])
def test_one_example_equals_the_host(student, question, traced, kit):
    live = kit.adapter(getattr(kit, student)())
    (mine,) = kit.evaluate(live, [question], traced)
    assert kit.shape(mine) == kit.shape(kit.by_host(live, [question], traced))
    assert (len(mine.outputs), len(mine.scores)) == (1, 1)


@both_ways
@pytest.mark.parametrize("questions", [ALL, RAISING, SCORED])
def test_merged_examples_equal_the_hosts_batch(questions, traced, kit):
    live = kit.adapter()
    assert kit.shape(merge(kit.evaluate(live, questions, traced))) == kit.shape(kit.by_host(live, questions, traced))


def test_a_raising_example_keeps_its_place_even_where_the_host_drops_it(kit):
    live, questions = kit.adapter(), ["float", "boom", "true"]
    mine = merge(kit.evaluate(live, questions, traced=True))
    assert (mine.scores, [d["example_ind"] for d in mine.trajectories]) == ([0.125, FAILURE, True], [0, 2])
    host = live.evaluate([kit.example(q) for q in questions], kit.CANDIDATE, capture_traces=True)
    assert host.scores in (mine.scores, [0.125, True])  # the latter in dspy 3.3.1


@both_ways
@pytest.mark.parametrize(("question", "error"), [("none", TypeError), ("text", TypeError), ("scoreless", ValueError)])
def test_a_score_that_is_no_number_raises_where_the_host_raises(question, error, traced, kit):
    with pytest.raises(error):
        kit.by_host(kit.adapter(), [question], traced)
    with pytest.raises(UsageError, match="which holds no number"):
        kit.evaluate(kit.adapter(), [question], traced)


@both_ways
def test_an_interrupt_is_no_failure_of_an_example(traced, kit):
    with pytest.raises(KeyboardInterrupt):
        kit.evaluate(kit.adapter(), ["interrupt"], traced)


@both_ways
def test_sys_exit_is_its_example_s_failure_and_told_once(traced, caplog, kit):
    batches = kit.evaluate(kit.adapter(), ["exit", "exit"], traced)
    assert [batch.scores for batch in batches] == [[FAILURE], [FAILURE]]
    told = [each for each in caplog.messages if "sys.exit" in each and "This is said once" in each]
    assert len(told) == 1


@both_ways
@pytest.mark.parametrize("running", ["program", "metric", "flex program", "flex metric"])
def test_a_failure_of_a_server_is_no_failure_of_the_example(running, traced, kit, monkeypatch):
    flex = running.startswith("flex")
    live = kit.adapter(dspy.Flex("question -> answer", interpreter_factory=kit.Canned)) if flex else kit.adapter()
    error, told = ConnectionResetError("reset"), []

    def fail(*_, **__):
        raise error

    if running.endswith("metric"):
        live.metric_fn = fail
    else:
        monkeypatch.setattr(type(live.student), "forward", fail)
    candidate = dict.fromkeys(live._flex_paths, live.student.module_src) if flex else kit.CANDIDATE
    with pytest.raises(ConnectionResetError) as caught:
        kit.evaluate(live, ["true"], traced, candidate, told)
    assert caught.value is error
    assert told == []


@both_ways
@pytest.mark.parametrize("question", RAISING)
def test_a_swallowed_exception_is_told_and_logged_once(question, traced, caplog, monkeypatch, kit):
    told, where = [], logging.getLogger("dspy.utils.parallelizer")  # where the host logs it
    monkeypatch.setattr(where, "propagate", False)
    monkeypatch.setattr(where, "handlers", [caplog.handler])
    kit.evaluate(kit.adapter(), [question], traced, told=told)
    assert told == [("metric" if question == "metric" else "program", kit.raising[question])]
    assert [(record.levelname, question in record.getMessage()) for record in caplog.records] == [("ERROR", True)]


@both_ways
def test_a_parse_failure_is_told_although_its_trace_is_kept(traced, kit):
    told = []
    batch, _ = kit.evaluate(kit.adapter(), ["unparsed", "float"], traced, told=told)
    assert told == [("program", AdapterParseError)]
    assert [type(step[2]) for d in batch.trajectories or () for step in d["trace"]] == [
        dspy.Prediction,
        FailedPrediction,
    ][: 2 * traced]


@both_ways
def test_flex_code_is_scored_as_the_host_scores_it_and_what_it_swallows_is_told(traced, kit):
    live = kit.adapter(dspy.Flex("question -> answer", interpreter_factory=kit.Canned))
    (name,) = live._flex_paths
    told, questions = [], ["objectives", "boom", "metric"]
    for source in (live.student.module_src, "no python ("):
        for question in questions:
            (mine,) = kit.evaluate(live, [question], traced, {name: source}, told)
            assert kit.shape(mine) == kit.shape(kit.by_host(live, [question], traced, {name: source}))
    assert told == [("program", RuntimeError), ("metric", KeyError), *[("program", SyntaxError)] * 3]


@both_ways
def test_a_candidate_that_does_not_build_is_scored_as_the_host_scores_it(traced, monkeypatch, kit):
    live, told, built = kit.adapter(), [], []
    monkeypatch.setattr(live, "build_program", lambda candidate: built.append(candidate) or compile("(", "", "eval"))
    host = kit.by_host(live, ["true"], traced)
    assert [kit.shape(batch) for batch in kit.evaluate(live, ["true", "false"], traced, told=told)] == [
        kit.shape(host)
    ] * 2
    assert (told, len(built)) == ([("program", SyntaxError)] * 2, 2)
    assert ExampleEvaluator(live).build(kit.CANDIDATE) is None


@both_ways
def test_thirty_two_threads_give_what_one_gives_with_one_program(traced, monkeypatch, kit):
    live, built = kit.adapter(), []
    serial = [kit.shape(batch) for batch in kit.evaluate(live, ALL * 2, traced)]
    build = live.build_program
    monkeypatch.setattr(live, "build_program", lambda candidate: built.append(candidate) or build(candidate))
    evaluator = ExampleEvaluator(live)

    def work(context, question):
        return context.run(evaluator.evaluate, kit.CANDIDATE, kit.example(question), capture_traces=traced)

    with ThreadPoolExecutor(32) as pool:
        batches = list(pool.map(work, (contextvars.copy_context() for _ in serial), ALL * 2))
    assert [kit.shape(batch) for batch in batches] == serial
    assert built == [kit.CANDIDATE]


@both_ways
@pytest.mark.parametrize("threads", [1, 4])
def test_usage_is_tracked_as_the_host_tracks_it(threads, traced, kit):
    live = kit.adapter(threads=threads)
    with dspy.context(track_usage=True):
        assert kit.shape(kit.evaluate(live, ["float"], traced)[0]) == kit.shape(kit.by_host(live, ["float"], traced))
    with dspy.track_usage() as host:
        kit.by_host(live, ["float", "true"], traced)
    with dspy.track_usage() as mine:
        kit.evaluate(live, ["float", "true"], traced)
    assert mine.usage_data == host.usage_data
    assert bool(mine.usage_data) is (threads == 1)


@both_ways
def test_module_callbacks_fire_below_the_caller_as_in_the_host_and_evaluation_callbacks_do_not(traced, kit):
    class Recorder(BaseCallback):
        def __init__(self):
            self.seen, self.evaluations = [], 0

        def on_module_start(self, call_id, instance, inputs):
            self.seen.append((type(instance).__name__, inputs, ACTIVE_CALL_ID.get() == "stage"))

        def on_module_end(self, call_id, outputs, exception=None):
            self.seen.append((type(outputs), outputs and len(outputs), type(exception)))

        def on_evaluate_start(self, call_id, instance, inputs):
            self.evaluations += 1

    def run(evaluate):
        ACTIVE_CALL_ID.set("stage")
        recorder = Recorder()
        with dspy.context(callbacks=[recorder]):
            for question in ("true", "unparsed", "boom"):
                evaluate(kit.adapter(threads=1), [question], traced)
        return recorder

    mine, host = (contextvars.copy_context().run(run, each) for each in (kit.evaluate, kit.by_host))
    assert (mine.evaluations, host.evaluations) == (0, 3)
    assert [found for *found, _ in mine.seen] == [found for *found, _ in host.seen]
    assert mine.seen[0][-1]
    assert len(mine.seen) == 14


@both_ways
@pytest.mark.parametrize("student", ["Two", "Called"])
def test_examples_carry_what_the_hosts_evaluation_gives_for_them(student, traced, kit):
    class Recorder(BaseCallback):
        def on_evaluate_end(self, call_id, outputs, exception=None):
            self.results = outputs.results

    recorder, live = Recorder(), kit.adapter(getattr(kit, student)())
    with dspy.context(callbacks=[recorder]):
        live.evaluate([kit.example(question) for question in ALL], kit.CANDIDATE, capture_traces=traced)
    mine = merge(kit.evaluate(live, ALL, traced)).results
    assert [kit.row(each) for each in mine] == [kit.row(each) for each in recorder.results]


def test_a_program_is_shared_until_it_has_run_many_examples_and_the_oldest_are_forgotten(monkeypatch, kit):
    monkeypatch.setattr("flashevolve_plugins.adapters.dspy.samples._EXAMPLES_PER_PROGRAM", 2)
    evaluator = ExampleEvaluator(kit.adapter())
    first, second, third = (evaluator.build(kit.CANDIDATE) for _ in range(3))
    assert first is second is not third
    others = [evaluator.build({"draft": str(n)}) for n in range(16)]
    assert evaluator.build({"draft": "15"}) is others[-1]
    assert evaluator.build(kit.CANDIDATE) is not third


def test_metric_calls_are_summed_when_any_batch_counts_them():
    counted = EvaluationBatch(outputs=[1, 2], scores=[0.0, 0.0], num_metric_calls=5)
    assert merge([counted, EvaluationBatch(outputs=[3], scores=[1.0])]).num_metric_calls == 6
    assert vars(merge([])) == {**vars(EvaluationBatch(outputs=[], scores=[])), "results": []}
