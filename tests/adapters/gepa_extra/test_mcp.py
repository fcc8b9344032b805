"""gepa's ``MCPAdapter`` with real servers: a process per session, that is per batch."""

import json
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from gepa.adapters.mcp_adapter import MCPAdapter
from gepa_adapters import TRAINSET, VALSET, Echo, grade, run_all
from mcp import StdioServerParameters

from flashevolve_plugins import Flash, _governor
from flashevolve_plugins.adapters.gepa.evaluation import evaluator_for
from flashevolve_plugins.adapters.gepa.shipped import declare_shipped

HERE = Path(__file__).parent
SEED = {"tool_description": "start"}

declare_shipped()


class Caller(Echo):
    """Calls the tool, then answers with its description."""

    def answer(self, messages):
        case = messages[1]["content"]
        if len(messages) == 2:
            return json.dumps({"action": "call_tool", "tool": "look_up", "arguments": {"case": case}})
        assert messages[2]["content"].endswith(f"found {case}"), messages[2]
        return re.search(r"Description: (.*)", messages[0]["content"])[1]


def rows(numbers):
    return [
        {"user_query": f"case {each}", "tool_arguments": {}, "reference_answer": None, "additional_context": {}}
        for each in numbers
    ]


def metric(row, output):
    return grade(int(row["user_query"].split()[1]), output)


@pytest.fixture
def adapter(tmp_path, monkeypatch):
    """Makes adapters; afterwards no server may be left."""
    monkeypatch.setattr("gepa_adapters.Echo", Caller)

    def make(model, *, script="words_server.py", by_name=True):
        arguments = ["-I", str(HERE / script), str(tmp_path)]
        server = StdioServerParameters(command=sys.executable, args=arguments)
        made = MCPAdapter("look_up", "some/model" if by_name else model, metric, server_params=server)
        if by_name:
            made._lm = model  # what it makes of a model's name
        return made

    yield make
    left = [int(each.stem) for each in tmp_path.glob("*.pid") if is_running(int(each.stem))]
    assert left == []


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


TASK = {"seed_candidate": SEED, "rows": rows, "calls": 80}


def test_with_a_model_s_name_several_batches_run_at_once_each_in_a_session_of_its_own(kit, adapter, tmp_path, caplog):
    run = run_all(kit, adapter, meet=(21, 22), **TASK)  # the seed is one batch of ten, two calls each
    assert 2 <= run.most_at_once <= run.last.slots["task"] == 8
    assert run.model.calls == 2 * run.result.total_metric_calls
    assert caplog.messages == []


def test_every_session_is_a_process_and_is_over_when_its_batch_is(kit, adapter, tmp_path):
    model = Caller()
    run = kit.run(
        Flash(progress=False, reflection_concurrency=4), adapter=adapter(model), trainset=rows(TRAINSET),
        valset=rows(VALSET), seed_candidate=SEED, calls=50,
    )  # fmt: skip
    evaluated = len(run.callbacks.named("on_evaluation_start")) + len(run.result.candidates)
    assert len(list(tmp_path.iterdir())) == evaluated


def test_its_examples_run_at_once_if_the_run_says_so(kit, adapter):
    run = run_all(kit, adapter, meet=(1, 2), evaluate="example", max_concurrency=3, **TASK)
    assert 2 <= run.most_at_once <= 3


def test_with_a_function_it_works_one_batch_at_a_time(kit, adapter, caplog):
    run = run_all(kit, lambda model: adapter(model, by_name=False), meet=(), **TASK)
    assert run.most_at_once == len(run.threads) == 1
    assert caplog.messages[0].startswith("MCPAdapter with a function as its model is called one batch at a time: pass")


@pytest.mark.parametrize("by_name", [True, False], ids=["a model's name", "a function"])
def test_a_batch_whose_model_s_server_fails_is_tried_again_and_not_scored(kit, adapter, monkeypatch, by_name):
    monkeypatch.setattr(_governor, "FIRST_DELAY", 0.01)
    raised = []

    class Failing(Caller):
        def answer(self, messages):
            if len(raised) < 3:
                raised.append(1)
                raise ConnectionResetError("reset")
            return super().answer(messages)

    task = {"trainset": rows(TRAINSET), "valset": rows(VALSET), "seed_candidate": SEED, "calls": 50}
    flash = Flash(progress=False, reflection_concurrency=4)
    run = kit.run(flash, adapter=adapter(Failing(), by_name=by_name), **task)
    undisturbed = kit.run(Flash(progress=False), adapter=adapter(Caller()), **task)
    assert run.result.val_subscores[0] == undisturbed.result.val_subscores[0]
    assert len(raised) == flash.last_run.retries == 3


def test_two_sessions_at_once_with_a_server_made_with_the_sdk(adapter):
    evaluator = evaluator_for(adapter(Caller(meet=(1, 2)), script="sdk_server.py"), None)
    with ThreadPoolExecutor(2) as threads:
        batches = [threads.submit(evaluator.evaluate, SEED, rows([each]), capture_traces=True) for each in (1, 2)]
    assert [each.result().outputs[0]["tool_response"] for each in batches] == ["found case 1", "found case 2"]
    assert [each.result().outputs[0]["final_answer"] for each in batches] == ["start", "start"]
