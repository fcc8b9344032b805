"""`mlflow.dspy.autolog()` keeps one complete, ordered run of dspy.GEPA under flash: its evaluations and its traces."""

import asyncio
import threading
import uuid

import dspy
import mlflow
import pytest
from dspy_awaited import Awaited
from dspy_task import Task

from flashevolve_plugins import Flash

pytestmark = [
    pytest.mark.usefixtures("store"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # MLflow's pools of threads
]
PARENT = "mlflow.parentRunId"
EXECUTORS = {
    "the host": lambda: None,
    "lockstep": lambda: Flash(progress=False, lockstep=True),
    "one item at a time": lambda: Flash(progress=False, max_items=1),
    "many items at once": lambda: Flash(progress=False),
}


@pytest.fixture(autouse=True)
def autolog():
    options = {
        f"log_{name}": True for name in ("compiles", "evals", "traces", "traces_from_compile", "traces_from_eval")
    }
    mlflow.dspy.autolog(silent=True, **options)
    yield
    mlflow.dspy.autolog(disable=True, silent=True)


class Kept:
    """What MLflow kept of one compilation, and what that found."""

    def __init__(self, name, student=None):
        experiment = mlflow.set_experiment(uuid.uuid4().hex).experiment_id
        self.task = Task()
        with dspy.context(lm=self.task.task_lm):
            program = self.task.compile(EXECUTORS[name](), student=student and student(), max_metric_calls=60)
        mlflow.flush_trace_async_logging()
        self.found = program.detailed_results
        client = mlflow.MlflowClient()
        self.runs = client.search_runs([experiment], order_by=["attributes.start_time ASC"])
        self.traces = mlflow.search_traces(locations=[experiment], return_type="list", max_results=500)

    @property
    def names(self):
        return [run.info.run_name for run in self.runs[1:]]

    @property
    def scores(self):
        return [run.data.metrics["eval"] for run in self.runs[1:]]

    @property
    def examples(self):
        """How many programs' calls were traced, each to its end."""
        whole = [each for each in self.traces if each.data.spans[0].name.endswith("forward")]
        asked = [span for each in whole for span in each.data.spans if span.name in {"LM.__call__", "LM.acall"}]
        assert all(each.info.state == "OK" for each in self.traces)
        return len(asked)


@pytest.mark.parametrize("name", EXECUTORS)
@pytest.mark.parametrize("student", [None, Awaited], ids=["a plain program", "an async program"])
def test_evaluations_are_runs_of_their_own_in_the_candidates_order(student, name):
    if student is not None and name in {"the host", "lockstep"}:
        pytest.skip("the host cannot call it")
    kept = Kept(name, student)
    compiled = kept.runs[0]
    assert all(run.info.status == "FINISHED" for run in kept.runs)
    assert mlflow.active_run() is None
    validations = len(kept.found.candidates)
    assert kept.names == ["eval_0", *(f"eval_full_{n}" for n in range(validations - 1))]
    assert kept.scores == [100 * score for score in kept.found.val_aggregate_scores]
    if isinstance(EXECUTORS[name](), Flash) and name != "lockstep":  # the host loses that the later ones belong to it
        assert {run.data.tags[PARENT] for run in kept.runs[1:]} == {compiled.info.run_id}
    assert kept.examples >= len(kept.task.task_calls)


def test_a_run_that_is_awaited_is_kept_as_well():
    experiment = mlflow.set_experiment(uuid.uuid4().hex).experiment_id
    task = Task()

    async def main():
        with dspy.context(lm=task.task_lm):
            given = {"trainset": task.examples(6), "valset": task.examples(8, first=100)}
            optimizer = task.gepa(executor=Flash(progress=False), max_metric_calls=60)
            return await optimizer.acompile(task.student(), **given)

    program = asyncio.run(main())
    runs = mlflow.MlflowClient().search_runs([experiment])
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert len(runs) == 1 + len(program.detailed_results.candidates)
    assert not [each for each in threading.enumerate() if each.name == "flashevolve-event-loop"]
