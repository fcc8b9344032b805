"""MLflow, in local files: what it keeps of a run under flash."""

import threading
import uuid

import mlflow
import pytest
from tracked import mlflow_runs

pytestmark = [
    pytest.mark.usefixtures("store"),
    pytest.mark.filterwarnings("ignore:For backward compatibility, 'str' dtypes"),  # MLflow's way with pandas
]


@pytest.fixture
def kept(kit):
    """Runs, and tells what MLflow kept of it."""

    def keep(executor, **options):
        experiment = uuid.uuid4().hex
        settings = {"calls": 80, "use_mlflow": True, "mlflow_experiment_name": experiment}
        run = kit.run(executor, **{**settings, **options})
        assert mlflow.active_run() is None
        (found,) = mlflow_runs(experiment)
        return run, found

    return keep


def single(history):
    """The metrics that are logged once per step, or with the same value each time."""
    return {step: {name: values[-1] for name, values in row.items()} for step, row in history.items()}


def check(run, found):
    """Every step once, in order, and every row of the tables."""
    result, events = run.result, run.callbacks
    assert sorted(found.history) == list(range(run.state.i + 2))  # the seed's is step 0
    changing = [(name, values) for row in found.history.values() for name, values in row.items() if len({*values}) > 1]
    assert {name for name, _ in changing} <= {"total_metric_calls"}  # which the host logs at each stage of a step
    assert all(values == sorted(values) for _, values in changing)
    rows = single(found.history)
    assert [rows[step]["iteration"] for step in sorted(rows)[1:]] == sorted(rows)[1:]
    spent = [rows[step]["total_metric_calls"] for step in sorted(rows)]
    assert spent == sorted(spent)
    candidates = found.tables["candidates"]
    accepted = [[each["iteration"], each["new_candidate_idx"]] for each in events.named("on_candidate_accepted")]
    assert [row[:2] for row in candidates] == accepted
    assert [row[5:] for row in candidates] == [[each["a"]] for each in result.candidates[1:]]
    rejected = [[each["iteration"], -1] for each in events.named("on_candidate_rejected")]
    assert sorted([row[0], row[3]] for row in found.tables["proposals"]) == sorted(accepted + rejected)
    assert len(found.pages["candidate_tree"]) == len(candidates)
    assert found.summary["summary/best/a"] == result.best_candidate["a"]
    assert found.ended == "FINISHED"


def test_lockstep_logs_what_the_host_logs(kept, lockstep):
    host, theirs = kept(None)
    _, ours = kept(lockstep)
    for name, value in vars(theirs).items():
        assert getattr(ours, name) == value, name
    assert len(host.result.candidates) > 2
    assert {"candidates", "proposals", "valset_scores", "valset_pareto_front"} <= theirs.tables.keys()


def test_at_once_it_sees_one_step_after_the_other_under_the_host_s_names(kept, flash):
    _, host = kept(None)
    run, found = kept(flash)
    assert len(run.result.candidates) > 1
    check(run, found)
    assert found.names == host.names
    assert (found.config, found.tables.keys()) == (host.config, host.tables.keys())


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_the_run_is_over_when_the_host_raises(kit, kept, flash, kind):
    endings = []
    for executor in (None, flash):
        adapter, recorder = kit.Words(), kit.Callbacks()
        if kind is RuntimeError:
            adapter.errors["evaluate"] = lambda _, recorder=recorder: recorder.names.count("on_iteration_end") >= 2
        else:
            recorder.watchers.append(interrupt)
        run, found = kept(executor, adapter=adapter, recorder=recorder, catch=True)
        assert type(run.error) is kind
        assert len(found.history) > 1
        assert sorted(found.history) == list(range(len(found.history)))
        endings.append(found.ended)
    assert endings[0] == endings[1] == "FINISHED"  # the host ends it without saying how


def interrupt(name, event):
    if name == "on_iteration_end" and event["iteration"] == 3:
        raise KeyboardInterrupt


@pytest.mark.parametrize("attach", [True, False])
def test_a_run_of_the_user_s_own_is_joined_and_left_open(kit, flash, attach):
    experiment = uuid.uuid4().hex
    mlflow.set_experiment(experiment)
    with mlflow.start_run() as mine:
        run = kit.run(flash, calls=80, use_mlflow=True, mlflow_attach_existing=attach)
        assert mlflow.active_run().info.run_id == mine.info.run_id
        mlflow.log_metric("after", 1)
    (found,) = mlflow_runs(experiment)
    assert {"after", "iteration", "subsample/after"} <= found.names
    assert [row[1] for row in found.tables["candidates"]] == list(range(1, len(run.result.candidates)))


def test_what_a_slot_logs_goes_to_the_run_if_it_is_named(kit, flash):
    """MLflow's active run belongs to a thread: code in a slot has none, and says which run it means."""
    experiment, client, seen = uuid.uuid4().hex, mlflow.MlflowClient(), []
    mlflow.set_experiment(experiment)

    class Logging(kit.Words):
        def working(self, batch, candidate):
            seen.append((threading.get_ident(), mlflow.active_run()))
            client.log_metric(mine.info.run_id, "evaluated", len(seen), step=len(seen))

    with mlflow.start_run() as mine:
        kit.run(flash, calls=60, adapter=Logging(), use_mlflow=True, mlflow_attach_existing=True)
    (found,) = mlflow_runs(experiment)
    assert "evaluated" in found.names
    slots = {run for thread, run in seen if thread != threading.get_ident()}
    assert slots <= {None}
    assert bool(slots) is (flash.clock == "local")
