"""A single example of an async program gives what it gives of the program's plain twin."""

import logging

import dspy
import pytest
from dspy.teleprompt.bootstrap_trace import FailedPrediction

from flashevolve_plugins import UsageError
from flashevolve_plugins._event_loop import EventLoop
from flashevolve_plugins.adapters.dspy.awaiting import metric_on
from flashevolve_plugins.adapters.dspy.samples import ExampleEvaluator

FAILURE = 0.25  # as in the conftest's adapter
SCORED = ["float", "true", "false", "zero", "feedback", "objectives", "odd", "given"]
PARSED_BADLY = ["unparsed", "early"]
RAISING = ["boom", "down", "partly", "foreign", "metric", "lost"]
ALL = [*SCORED, *RAISING, *PARSED_BADLY]


@pytest.fixture
def student(kit):
    """The twin of the kit's program, to be awaited."""

    class AwaitedTwo(kit.Predictors):
        async def aforward(self, question):
            self.before(question)
            if question == "given":
                return FailedPrediction("made by the program", format_reward=0.5)
            draft = (await self.draft.acall(question=question)).draft
            self.between(question)
            return "no prediction" if question == "odd" else await self.final.acall(question=question, draft=draft)

    return AwaitedTwo()


@pytest.fixture
def await_all(kit):
    """Await examples one after the other, on an event loop."""

    def await_all(live, questions, traced, told=None):
        evaluator = ExampleEvaluator(live)
        hear = None if told is None else lambda kind, error: told.append((kind, type(error)))
        with EventLoop() as loop:
            evaluator.ask = metric_on(loop, live.metric_fn)
            return [
                loop.wait(evaluator.aevaluate(kit.CANDIDATE, kit.example(q), capture_traces=traced, on_failure=hear))
                for q in questions
            ]

    return await_all


both_ways = pytest.mark.parametrize("traced", [False, True], ids=["plain", "traced"])


@both_ways
@pytest.mark.parametrize("question", ALL)
def test_one_example_equals_that_of_the_plain_program(question, traced, kit, student, await_all):
    told, told_too = [], []
    (plain,) = kit.evaluate(kit.adapter(), [question], traced, told=told)
    (awaited,) = await_all(kit.adapter(student), [question], traced, told=told_too)
    assert kit.shape(awaited) == kit.shape(plain)
    assert list(map(kit.row, awaited.results)) == list(map(kit.row, plain.results))
    assert told_too == told


@both_ways
@pytest.mark.parametrize("question", ["none", "text"])
def test_a_score_that_is_no_number_raises(question, traced, kit, student, await_all):
    with pytest.raises(UsageError, match="which holds no number"):
        await_all(kit.adapter(student), [question], traced)


@both_ways
def test_an_interrupt_is_no_failure_of_an_example(traced, kit, student, await_all):
    with pytest.raises(KeyboardInterrupt):
        await_all(kit.adapter(student), ["interrupt"], traced)


@both_ways
def test_sys_exit_is_its_examples_failure(traced, kit, student, await_all):
    told = []
    (batch,) = await_all(kit.adapter(student), ["exit"], traced, told)
    assert (batch.scores, told) == ([FAILURE], [("program", RuntimeError)])


@both_ways
@pytest.mark.parametrize("running", ["program", "metric"])
def test_a_failure_of_a_server_is_no_failure_of_the_example(running, traced, kit, student, await_all, monkeypatch):
    live, error, told = kit.adapter(student), ConnectionResetError("reset"), []

    async def fail(*_, **__):
        raise error

    if running == "metric":
        live.metric_fn = fail
    else:
        monkeypatch.setattr(type(live.student), "aforward", fail)
    with pytest.raises(ConnectionResetError) as caught:
        await_all(live, ["true"], traced, told)
    assert caught.value is error
    assert told == []


@both_ways
@pytest.mark.parametrize("question", RAISING)
def test_a_swallowed_exception_is_logged_once(question, traced, caplog, monkeypatch, kit, student, await_all):
    where = logging.getLogger("dspy.utils.parallelizer")
    monkeypatch.setattr(where, "propagate", False)
    monkeypatch.setattr(where, "handlers", [caplog.handler])
    await_all(kit.adapter(student), [question], traced)
    assert [(record.levelname, question in record.getMessage()) for record in caplog.records] == [("ERROR", True)]


@both_ways
@pytest.mark.parametrize("threads", [1, 4])
def test_usage_is_tracked_as_of_the_plain_program(threads, traced, kit, student, await_all):
    live, twin = kit.adapter(threads=threads), kit.adapter(student, threads=threads)
    with dspy.context(track_usage=True):
        plain, awaited = kit.evaluate(live, ["float"], traced)[0], await_all(twin, ["float"], traced)[0]
    assert kit.shape(awaited) == kit.shape(plain)
    assert awaited.outputs[0].get_lm_usage()["lm"] == {"tokens": 1}
    with dspy.track_usage() as around:
        kit.evaluate(live, ["float", "true"], traced)
    with dspy.track_usage() as around_too:
        await_all(twin, ["float", "true"], traced)
    assert around_too.usage_data == around.usage_data
    assert bool(around.usage_data) is (threads == 1)


def test_without_an_event_loop_it_is_refused(kit, student):
    with pytest.raises(TypeError, match="on an event loop"):
        kit.evaluate(kit.adapter(student), ["float"], traced=False)
