"""Results of dspy programs survive their process: predictors and examples by name, models never."""

import pickle
import uuid
from typing import Annotated

import dspy
import pytest
from dspy.utils import DummyLM
from dspy_awaited import Awaited
from pydantic import AfterValidator

from flashevolve_plugins import Flash
from flashevolve_plugins._content import digest
from flashevolve_plugins._store import Store
from flashevolve_plugins.adapters.dspy.evaluator import _shape
from flashevolve_plugins.adapters.dspy.frozen import freeze, thaw
from flashevolve_plugins.adapters.dspy.samples import Batch


class Two(dspy.Module):
    def __init__(self):
        super().__init__()
        self.first = dspy.ChainOfThought("question -> hint")
        self.second = dspy.Predict("question, hint -> answer")

    def forward(self, question):
        return self.second(question=question, hint=self.first(question=question).hint)


@pytest.fixture
def traced():
    lm = DummyLM([{"hint": "h", "answer": "a", "reasoning": "r"}] * 4)
    lm.kwargs["api_key"] = "planted-secret"
    program, example = Two(), dspy.Example(question="q", answer="a").with_inputs("question")
    program.set_lm(lm)
    with dspy.context(lm=lm, trace=[]):
        prediction = program(**example.inputs())
        trace = dspy.settings.trace.copy()
    data = {"example": example, "prediction": prediction, "trace": trace, "example_ind": 0, "score": 1.0}
    batch = Batch([prediction], [1.0], [data], None, 1, results=[(example, (prediction, trace), 1.0)])
    return program, example, batch


def test_a_traced_evaluation_comes_back_with_the_predictors_and_examples_of_the_new_process(traced):
    program, example, batch = traced
    frozen = freeze(lambda: dict(program.named_predictors()), [example], batch)
    assert b"planted-secret" not in frozen
    other, same = Two(), dspy.Example(question="q", answer="a").with_inputs("question")
    again = thaw(lambda: dict(other.named_predictors()), [same], frozen)
    (data,) = again.trajectories
    assert data["example"] is same
    assert [predictor for predictor, _, _ in data["trace"]] == [other.first.predict, other.second]
    assert [inputs for _, inputs, _ in data["trace"]] == [inputs for _, inputs, _ in batch.trajectories[0]["trace"]]
    assert data["prediction"].toDict() == batch.outputs[0].toDict()
    assert again.outputs[0] is data["prediction"]
    assert (again.scores, again.num_metric_calls, again.objective_scores) == ([1.0], 1, None)


def test_a_predictor_of_a_program_that_was_built_anew_is_known_by_its_signature(traced):
    program, example, batch = traced
    frozen = freeze(lambda: dict(Two().named_predictors()), [example], batch)
    assert thaw(lambda: dict(program.named_predictors()), [example], frozen).trajectories


@pytest.mark.parametrize("held", ["model", "module"])
def test_what_belongs_to_the_process_alone_is_not_written(traced, held):
    program, example, batch = traced
    batch.outputs = [{"model": dspy.LM("openai/x", api_key="k"), "module": dspy.Predict("a -> b")}[held]]
    with pytest.raises(pickle.PicklingError):
        freeze(lambda: dict(program.named_predictors()), [example], batch)


@pytest.mark.parametrize("stop_at", [5, 20, 47, 80])
@pytest.mark.parametrize("program", ["student", "pair"])
def test_an_interrupted_run_pays_again_for_nothing_that_had_ended(task, tmp_path, program, stop_at):
    def interrupt(*_):
        if len(task.metric_calls) >= stop_at:
            raise KeyboardInterrupt

    task.on_metric = interrupt
    options = {"student": getattr(task, program)(), "max_metric_calls": 150, "log_dir": str(tmp_path)}
    with pytest.raises(KeyboardInterrupt):
        task.compile(Flash(progress=False, max_concurrency=4), **options)
    task.on_metric = lambda *_: None
    store = Store(tmp_path)
    store.close()
    assert store.results
    found = task.compile(Flash(progress=False, max_concurrency=4), **options).detailed_results
    assert len(task.metric_calls) - 4 <= found.total_metric_calls <= 150
    assert len(found.candidates) > 1


def test_the_random_mark_that_dspy_s_data_sets_give_their_examples_makes_them_no_others(task, tmp_path, monkeypatch):
    examples = task.examples

    def marked(*arguments, **options):
        return [
            each.copy(dspy_uuid=str(uuid.uuid4())).with_inputs(*each.inputs().keys())  # which dspy 3.3.1 does not copy
            for each in examples(*arguments, **options)
        ]

    monkeypatch.setattr(task, "examples", marked)
    first = task.compile(Flash(progress=False), max_metric_calls=40, log_dir=str(tmp_path)).detailed_results
    again = task.compile(Flash(progress=False), max_metric_calls=80, log_dir=str(tmp_path)).detailed_results
    assert first.total_metric_calls <= 40 < again.total_metric_calls


def test_a_field_s_type_is_the_same_in_every_process_whatever_checks_it():
    def shape():
        def check(value):
            return value

        signature = dspy.Signature("question -> answer").with_updated_fields(
            "answer", type_=list[Annotated[str, AfterValidator(check)]]
        )
        return _shape(dspy.Predict(signature))

    assert "check" in str(shape())
    assert digest(shape()) == digest(shape())


@pytest.mark.parametrize("stop_at", [5, 40])
def test_an_interrupted_run_of_an_async_program_pays_again_for_nothing_that_had_ended(task, tmp_path, stop_at):
    def interrupt(*_):
        if len(task.metric_calls) >= stop_at:
            raise KeyboardInterrupt

    task.on_metric = interrupt
    options = {"student": Awaited(), "max_metric_calls": 150, "log_dir": str(tmp_path)}
    with pytest.raises(KeyboardInterrupt):
        task.compile(Flash(progress=False, max_concurrency=4), **options)
    task.on_metric = lambda *_: None
    found = task.compile(Flash(progress=False, max_concurrency=4), **options).detailed_results
    assert len(task.metric_calls) - 4 <= found.total_metric_calls <= 150
    assert len(found.candidates) > 1
