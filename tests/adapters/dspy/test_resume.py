"""A run may start under one executor and resume under the other, from the host's own files."""

import pickle

import pytest
from gepa.core.state import GEPAState

from flashevolve_plugins import Flash

BUDGETS = (80, 150)


def make(name):
    quiet = {"progress": False, "staleness": "full"}
    return {"host": None, "flash": Flash(**quiet), "lockstep": Flash(**quiet, lockstep=True)}[name]


@pytest.mark.parametrize("program", ["student", "pair"])
@pytest.mark.parametrize(
    "order", [("host", "flash"), ("flash", "host"), ("flash", "flash"), ("flash", "lockstep")], ids="-".join
)
def test_a_run_goes_on_where_another_executor_stopped(order, program, task, tmp_path):
    results, calls = [], []
    for name, budget in zip(order, BUDGETS, strict=True):
        before = len(task.metric_calls)
        student = getattr(task, program)()
        made = task.compile(make(name), student=student, max_metric_calls=budget, log_dir=str(tmp_path))
        results.append(made.detailed_results.to_dict())
        calls.append(len(task.metric_calls) - before)
        assert GEPAState.load(str(tmp_path)).is_consistent()
    first, second = results
    known = len(first["candidates"])
    for kept in ("candidates", "parents", "val_subscores", "val_aggregate_scores", "discovery_eval_counts"):
        assert second[kept][:known] == first[kept]
    assert first["total_metric_calls"] < second["total_metric_calls"]
    if order[1] == "flash":
        assert second["total_metric_calls"] <= BUDGETS[1]
        assert calls[1] == second["total_metric_calls"] - first["total_metric_calls"]
    assert len(second["candidates"]) >= known > 1


def test_the_state_file_of_flash_is_the_hosts_and_knows_nothing_of_us(task, tmp_path):
    program = task.compile(Flash(progress=False), log_dir=str(tmp_path))
    content = (tmp_path / "gepa_state.bin").read_bytes()
    assert b"flashevolve" not in content
    state = pickle.loads(content)
    found = program.detailed_results
    assert len(state["program_candidates"]) == len(found.candidates)
    assert state["total_num_evals"] == found.total_metric_calls == len(task.metric_calls)
    assert [entry["i"] for entry in state["full_program_trace"]] == list(range(len(state["full_program_trace"])))
    assert state["i"] == len(state["full_program_trace"]) - 1


def test_resuming_a_run_whose_budget_is_spent_changes_nothing(task, tmp_path):
    results = []
    for _ in range(2):
        program = task.compile(Flash(progress=False, staleness="full"), log_dir=str(tmp_path))
        results.append((program.detailed_results.to_dict()["candidates"], program.detailed_results.total_metric_calls))
    assert results[0] == results[1]
