"""The history of a run, iteration by iteration, and what must hold of it outside lockstep."""

import re
import threading

from gepa.strategies.eval_policy import FullEvaluationPolicy
from gepa_checks import check_results_are_the_adapter_s_own, check_serial_history
from gepa_task import Words

LINE = re.compile(r"Iteration (\d+)")


def told(run, iterations):
    """What a run told of its first iterations, without the live state: events, log lines, trackers and trace."""
    last = run.first + iterations
    events = [
        (name, {key: each for key, each in event.items() if key != "state"})
        for name, event in run.events
        if event.get("iteration", 0) <= last and name not in {"on_state_saved", "on_optimization_end"}
    ]
    return {
        "events": events,
        "lines": before(run.lines, lambda line: number_of(line) > last),
        "tracked": before(
            run.tracked, lambda call: call[0] == "log_summary" or (call[0] == "log_metrics" and call[2]["step"] > last)
        ),
        "trace": run.trace[:last],
        "services": trackers(run, last)
        + [call for call in run.services if call[0].startswith("tqdm")][: iterations + 2],
    }


def trackers(run, last):
    """What trackers outside this process were told, up to an iteration."""
    calls = [call for call in run.services if call[0].startswith(("wandb", "mlflow", "client", "log_artifact"))]
    return before(calls, lambda call: "best_candidate_idx" in repr(call) or step_of(call) > last)


def step_of(call):
    return call[-1].get("step", 0) if isinstance(call[-1], dict) else 0


def before(entries, ends):
    """The entries before the first one that ends them."""
    return entries[: next((position for position, each in enumerate(entries) if ends(each)), len(entries))]


def number_of(line):
    found = LINE.match(line)
    return int(found[1]) if found else 0


def iterations(run):
    """How many iterations came to their end, but for the last, which a budget may have cut short."""
    return max(0, run.callbacks.names.count("on_iteration_end") - 1)


def check_history(run, limit):
    """A finished run outside lockstep: the serial history, the budget, and results that are the adapter's own."""
    state, result = run.state, run.result
    check_serial_history(run, threading.get_ident(), run.first)
    assert state.is_consistent()
    assert result.total_metric_calls == run.last.spent
    assert limit is None or result.total_metric_calls <= limit
    assert run.last.reserved == run.last.items == 0
    assert run.last.version == len(result.candidates)
    assert sum(run.last.ended.values()) == len(run.trace) - run.first, "an iteration is missing, or told twice"
    ids = set(run.engine.valset.all_ids())
    for index, parents in enumerate(result.parents):
        assert set(state.prog_candidate_val_subscores[index]) <= ids
        assert (parents == [None]) is (index == 0)
        assert index == 0 or all(0 <= parent < index for parent in parents)
    accepted = [event["new_candidate_idx"] for event in run.callbacks.named("on_candidate_accepted")]
    assert accepted == list(range(len(result.candidates) - len(accepted), len(result.candidates)))
    if type(run.engine.val_evaluation_policy) is FullEvaluationPolicy and not run.first:
        mutations = [each for each, parents in zip(result.candidates, result.parents, strict=True) if len(parents) == 1]
        assert len({tuple(sorted(each.items())) for each in mutations}) == len(mutations)
    if isinstance(run.adapter, Words):
        check_results_are_the_adapter_s_own(run)
