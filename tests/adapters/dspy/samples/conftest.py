"""A program and a metric that do all that an example can do to its evaluation, and the host's evaluation of it."""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

if find_spec("dspy") is None:
    collect_ignore_glob = ["test_*.py"]

FAILURE = 0.25
CANDIDATE = {"draft": "Draft it.", "final": "Answer it."}
ANSWERS = {
    "unparsed": {"draft": "a draft", "stray": "x"},
    "partly": {"draft": "a draft", "answer": "an answer"},
    "early": {"stray": "x"},
    "": {"draft": "a draft", "answer": "an answer", "why": "a reason"},
}


@pytest.fixture(autouse=True)
def _settings():
    import dspy

    strict = dspy.ChatAdapter(use_json_adapter_fallback=False)
    with dspy.context(lm=dspy.utils.DummyLM(ANSWERS), adapter=strict):
        yield


@pytest.fixture(scope="session")
def kit() -> Any:  # noqa: C901 - many small things under one name
    """Return the classes and functions below under their own names."""
    import dspy
    from dspy.teleprompt.bootstrap_trace import FailedPrediction
    from dspy.teleprompt.gepa.gepa_utils import DspyAdapter
    from dspy.utils.exceptions import AdapterParseError, LMAuthError

    from flashevolve_plugins.adapters.dspy.samples import ExampleEvaluator

    scores = {"true": True, "false": False, "zero": 0, "none": None, "text": "high", "scoreless": dspy.Prediction(a=1)}
    raising = {"boom": RuntimeError, "down": LMAuthError, "metric": KeyError, "lost": ValueError}
    raising |= {"partly": AdapterParseError, "foreign": AdapterParseError}

    class Predictors(dspy.Module):
        def __init__(self):
            super().__init__()
            self.draft = dspy.Predict("question -> draft")
            self.final = dspy.Predict("question, draft -> answer, why")

        def before(self, question):
            if question == "boom":
                raise RuntimeError(question)
            if question == "foreign":
                raise AdapterParseError("x", dspy.Signature("a -> b"), "of no predictor here")
            if question in ("exit", "interrupt"):
                raise SystemExit if question == "exit" else KeyboardInterrupt

        def between(self, question):
            if question == "down":
                raise LMAuthError("no key")
            if dspy.settings.usage_tracker is not None:
                dspy.settings.usage_tracker.add_usage("lm", {"tokens": 1})

    class Two(Predictors):
        def forward(self, question):
            self.before(question)
            if question == "given":
                return FailedPrediction("made by the program", format_reward=0.5)
            draft = self.draft(question=question).draft
            self.between(question)
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
        return scores.get(gold.question, 0.125)

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
        assert len(batch.scores) == len(batch.trajectories) == len([q for q in questions if q not in raising])
        kept = {d["example_ind"]: d for d in batch.trajectories}
        outputs, values = ([kept.get(i, {}).get(k) for i in range(len(questions))] for k in ("prediction", "score"))
        return live._make_evaluation_batch(outputs, values, batch.trajectories)

    def shape(batch):
        """Return all of a batch, comparable although each evaluation has predictors of its own."""

        def steps(d):
            return [(p.signature.instructions, list(p.signature.fields), inputs, out) for p, inputs, out in d["trace"]]

        extras = [[type(value) for value in [*batch.scores, *batch.outputs]]]
        extras += [out.get_lm_usage() if isinstance(out, dspy.Prediction) else None for out in batch.outputs]
        return {
            **{name: value for name, value in vars(batch).items() if name != "results"},
            "trajectories": batch.trajectories and [{**d, "trace": steps(d)} for d in batch.trajectories],
            "extras": extras,
        }

    def row(result):
        """Return a row of an evaluation, comparable as a batch is."""
        example, output, score = result
        if isinstance(output, tuple):
            prediction, trace = output
            output = (prediction, [(p.signature.instructions, inputs, out) for p, inputs, out in trace])
        return example.toDict(), output, type(score), score

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

    names = (Predictors, Two, Called, metric, example, adapter, evaluate, by_host, shape, row, Canned)
    return SimpleNamespace(CANDIDATE=CANDIDATE, raising=raising, **{each.__name__: each for each in names})
