"""gepa's ``ConfidenceAdapter``: answers scored by how sure the model was."""

import json
import sys
from types import SimpleNamespace

from gepa.adapters.confidence_adapter.confidence_adapter import ConfidenceAdapter
from gepa_adapters import Echo, data, grade, run_all

KINDS = ("right", "wrong")
FORMAT = {"type": "object", "properties": {"kind": {"type": "string", "enum": list(KINDS)}}}


class Sure(Echo):
    """Says right, the surer the better the system prompt is, and answers as the OpenAI API does."""

    def answer(self, messages):
        value = grade(int(messages[1]["content"].split()[1]), messages[0]["content"])
        kind = "right" if value > 1 / 4 else "wrong"
        tokens = ['{"', "kind", '":', ' "', kind, '"}']
        logprobs = [{"token": each, "logprob": value - 1.0, "bytes": None, "top_logprobs": []} for each in tokens]
        choice = {
            "message": {"content": json.dumps({"kind": kind})},
            "logprobs": {"content": logprobs},
            "finish_reason": "stop",
        }
        return {"object": "chat.completion", "choices": [choice]}

    def batch_completion(self, *, messages, logprobs, top_logprobs, response_format, max_workers, model):
        assert (logprobs, top_logprobs, response_format, max_workers, model) == (True, 5, FORMAT, 4, "some/model")
        return [self(each) for each in messages]


def by_name(model):
    adapter = ConfidenceAdapter("some/model", "kind", FORMAT, max_litellm_workers=4)
    adapter.litellm = model
    return adapter


def rows(numbers):
    return [{**each, "answer": "right"} for each in data(numbers)]


def try_it(kit, monkeypatch, make, meet=(), **settings):
    monkeypatch.setattr("gepa_adapters.Echo", Sure)
    monkeypatch.setitem(sys.modules, "litellm", SimpleNamespace())
    return run_all(kit, make, meet, rows=rows, **settings)


def test_with_a_model_s_name_it_works_example_by_example(kit, monkeypatch, caplog):
    run = try_it(kit, monkeypatch, by_name, meet=(1, 2))
    assert 2 <= run.most_at_once <= run.last.slots["task"] == 4
    assert caplog.messages == []
    scores = {score for each in run.result.val_subscores for score in each.values()}
    assert len(scores) > 2  # not only right or wrong


def test_with_a_function_it_works_one_batch_at_a_time(kit, monkeypatch, caplog):
    run = try_it(kit, monkeypatch, lambda model: ConfidenceAdapter(model, "kind"))
    assert run.most_at_once == 1
    assert caplog.messages[0].startswith("ConfidenceAdapter with a function as its model is called one batch at a time")
