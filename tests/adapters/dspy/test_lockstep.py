"""``Flash(lockstep=True)`` gives what dspy.GEPA's own loop gives, call for call, and everything goes through slots."""

import threading

import pytest

from flashevolve_plugins import Flash

RUNS = [("student", seed, {}) for seed in range(3)] + [("pair", seed, {}) for seed in range(2)]
RUNS += [
    ("pair", 2, {"component_selector": "all", "use_merge": False}),
    ("student", 3, {"num_threads": None, "val": None, "train": 5}),
    ("student", 4, {"candidate_selection_strategy": "current_best", "skip_perfect_score": False}),
]


@pytest.mark.parametrize(("program", "seed", "options"), RUNS)
def test_lockstep_equals_the_hosts_own_loop(program, seed, options, task, summary):
    runs, flash = [], Flash(lockstep=True, progress=False)
    for executor in (None, flash):
        counts = [len(each) for each in (task.task_calls, task.reflections, task.metric_calls, task.feedback_calls)]
        student = getattr(task, program)()
        compiled = task.compile(executor, student=student, seed=seed, max_metric_calls=70, **options)
        after = [len(each) for each in (task.task_calls, task.reflections, task.metric_calls, task.feedback_calls)]
        runs.append((summary(compiled), [new - old for new, old in zip(after, counts, strict=True)]))
    assert runs[0] == runs[1]
    assert len(runs[0][0]["candidates"]) > 2
    assert flash.last_run.spent == runs[0][0]["total_metric_calls"]
    assert flash.last_run.version == len(runs[0][0]["candidates"])


def test_lockstep_stays_on_the_callers_thread_as_the_host_does(task):
    task.compile(Flash(lockstep=True, progress=False), max_metric_calls=40)
    here = threading.current_thread().name
    assert set(task.reflections + task.feedback_calls) == {here}
    assert task.reflections
    assert task.feedback_calls
