"""What must hold for a gepa run, and between two of them."""

import re
import threading

from gepa_records import contents, frozen
from gepa_task import score

SEEN = ("events", "lines", "tracked", "trace", "generator", "evaluated", "reflections")


def assert_same(host, flash):
    """Nothing that a user can see differs between two runs. Raises AssertionError that names the first difference."""
    assert frozen(host.error) == frozen(flash.error), "the errors differ"
    for name in vars(host.result) if host.result is not None else ():
        assert getattr(host.result, name) == getattr(flash.result, name), f"result.{name} differs"
    for name in SEEN:
        ours, theirs = getattr(flash, name), getattr(host, name)
        if isinstance(theirs, list):
            for position, (one, other) in enumerate(zip(theirs, ours, strict=False)):
                assert one == other, f"{name}[{position}] differs"
            assert len(theirs) == len(ours), f"{name} differ in length"
        assert theirs == ours, f"{name} differ"
    if host.state is not None:
        assert contents(host.state) == contents(flash.state), "the states differ"


def check_host_invariants(run, limit):
    """What holds for every result of the host, and that nothing was paid for that is not counted."""
    state, result = run.state, run.result
    assert state.is_consistent()
    assert result.total_metric_calls == run.adapter.calls == run.last.spent
    assert limit is None or result.total_metric_calls <= limit
    assert run.last.reserved == run.last.items == 0
    ids = set(run.engine.valset.all_ids())
    for index, parents in enumerate(result.parents):
        assert set(state.prog_candidate_val_subscores[index]) == ids
        assert (parents == [None]) is (index == 0)
        assert index == 0 or all(0 <= parent < index for parent in parents)
    assert result.num_full_val_evals == len(result.candidates)
    assert sorted(result.discovery_eval_counts) == result.discovery_eval_counts


def check_results_are_the_adapter_s_own(run):
    for candidate, scores in zip(run.result.candidates, run.state.prog_candidate_val_subscores, strict=True):
        for name, value in scores.items():
            assert value == score(run.engine.valset.fetch([name])[0], candidate)
    for event in run.callbacks.named("on_evaluation_end"):
        for (example, texts), value in zip(event["outputs"], event["scores"], strict=True):
            assert value == score(example, dict(enumerate(texts)))
        assert event["has_trajectories"] is bool(event["trajectories"])
        if event["trajectories"]:
            assert [trace["score"] for trace in event["trajectories"]] == event["scores"]


def check_serial_history(run, caller, last=0):
    """One iteration after the other, each with its events together, as if the host had run them so."""
    assert run.callbacks.threads <= {caller}
    assert run.log.threads <= {caller}
    assert run.tracker.threads <= {caller}
    current = total = None
    for name, event in run.events:
        if name == "on_iteration_start":
            assert current is None
            assert event["iteration"] == last + 1
            current = event["iteration"]
        elif current is None:
            assert name in {"on_optimization_start", "on_optimization_end", "on_valset_evaluated", "on_state_saved"}, (
                name
            )
        else:
            assert event["iteration"] == current, name
        if name == "on_iteration_end":
            current, last = None, current
        if name == "on_budget_updated":
            assert total is None or event["metric_calls_used"] == total + event["metric_calls_delta"]
            total = event["metric_calls_used"]
    assert current is None
    assert total in {None, run.result.total_metric_calls}
    assert [entry["i"] for entry in run.trace] == list(range(last))
    numbers = [int(found[1]) for line in run.lines if (found := re.match(r"Iteration (\d+)", line))]
    assert numbers == sorted(numbers)
    steps = [call[2]["step"] for call in run.tracked if call[0] == "log_metrics"]
    assert steps == sorted(steps)


def check(run, limit=None, resumed_at=0):
    """A finished run outside lockstep, whatever its options."""
    check_host_invariants(run, limit)
    check_results_are_the_adapter_s_own(run)
    check_serial_history(run, threading.get_ident(), resumed_at)


def assert_dispatched(run, dispatch):
    """Every evaluation of the adapter was a sample that the Scheduler started."""
    assert run.adapter.outside == 0, f"{run.adapter.outside} evaluations outside the Scheduler"
    assert dispatch.count("task") == len(run.adapter.batches), (dispatch.count("task"), len(run.adapter.batches))
