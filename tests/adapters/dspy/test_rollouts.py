"""``Flash(rollouts=...)`` with dspy.GEPA: a metric that says something else each time."""

import random
import threading

import dspy
import pytest

from flashevolve_plugins import Flash


@pytest.fixture
def noisy(task):
    """Give a metric with luck of its own, and count its calls by example."""
    luck, lock, calls = random.Random(3), threading.Lock(), {}

    def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
        found = task.metric(gold, pred, trace, pred_name, pred_trace)
        if pred_name is not None:
            return found
        with lock:
            calls[gold.question] = calls.get(gold.question, 0) + 1
            return dspy.Prediction(score=found.score + luck.choice([-0.3, 0.0, 0.3]), feedback=found.feedback)

    metric.calls = calls
    return metric


def test_every_example_is_evaluated_as_often_and_no_call_too_many(task, noisy, consistent):
    flash = Flash(progress=False, rollouts=3, check_connection=False)
    program = task.compile(flash, metric=noisy, max_metric_calls=200)
    consistent(task, program, 200)
    found = program.detailed_results
    assert len(found.candidates) > 1
    for scores in found.val_subscores:
        for score in scores.values():
            thirds = (score - round(score)) / 0.1  # a mean of three of these
            assert abs(thirds - round(thirds)) < 1e-6
    assert any(abs(score - round(score)) > 1e-6 for scores in found.val_subscores for score in scores.values())
    assert all(count % 3 == 0 for question, count in noisy.calls.items() if question.startswith("case 10"))


def test_a_model_that_caches_is_told(task, caplog):
    lm = dspy.LM("openai/none", api_key="none-of-any-use", cache=True)
    with dspy.context(lm=lm), pytest.raises(Exception, match="examples raised"):
        task.compile(Flash(progress=False, rollouts=2, check_connection=False), student=Broken(), max_metric_calls=100)
    assert any("rollouts=2 repeats" in line and "openai/none" in line for line in caplog.messages)


class Broken(dspy.Module):
    def __init__(self):
        super().__init__()
        self.unused = dspy.Predict("question -> answer")

    def forward(self, question):
        raise AttributeError("no such tool")
