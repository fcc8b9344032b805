"""A process that cannot import our package goes on from what dspy.GEPA left under flash, and the other way round."""

import os
import subprocess
import sys
from pathlib import Path

import dspy_task
import pytest
from gepa.core.state import GEPAState

from flashevolve_plugins import Flash

HOST = """
import sys
sys.modules["flashevolve_plugins"] = None  # an import of it fails
import dspy
from dspy_task import Task

directory, calls = sys.argv[1:]
task = Task()
with dspy.context(lm=task.task_lm):
    optimizer = task.gepa(max_metric_calls=int(calls), log_dir=directory)
    optimizer.compile(task.pair(), trainset=task.examples(6), valset=task.examples(8, first=100))
assert not [name for name, module in sys.modules.items() if name.startswith("flashevolve") and module]
print(len(task.metric_calls))
"""
SEED = 8  # metric calls of its validation, which the host's own loop makes again in every run and counts once
FIRST, SECOND = 80, 200


@pytest.fixture
def host(tmp_path):
    """Runs the host's own loop in a process of its own; returns the state it leaves, and its metric calls."""
    script, helpers = tmp_path / "host.py", str(Path(dspy_task.__file__).parent)
    script.write_text(HOST)

    def run(directory, calls):
        command = [sys.executable, str(script), str(directory), str(calls)]
        environment = {**os.environ, "PYTHONPATH": helpers}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        return GEPAState.load(str(directory)), int(done.stdout.split()[-1])

    return run


@pytest.fixture
def ours(task):
    """Runs under flash in this process; returns the state it leaves, and its metric calls."""

    def run(executor, directory, calls):
        flash, before = Flash(progress=False, lockstep=executor == "lockstep"), len(task.metric_calls)
        student = task.pair()
        task.compile(flash, student=student, max_metric_calls=calls, log_dir=str(directory))
        return GEPAState.load(str(directory)), len(task.metric_calls) - before

    return run


def assert_goes_on(before, after, paid, again=SEED):
    """The second run kept everything of the first, went on where it had stopped, and paid for what it counts."""
    known = len(before.program_candidates)
    assert after.is_consistent()
    assert after.i > before.i
    for kept in ("program_candidates", "parent_program_for_candidate", "prog_candidate_val_subscores"):
        assert getattr(after, kept)[:known] == getattr(before, kept)
    assert after.full_program_trace[: len(before.full_program_trace)] == before.full_program_trace
    assert [entry["i"] for entry in after.full_program_trace] == list(range(after.i + 1))
    assert after.total_num_evals == before.total_num_evals + paid - again


@pytest.mark.parametrize("executor", ["flash", "lockstep"])
def test_the_host_alone_goes_on_from_what_flash_left(ours, host, tmp_path, executor):
    before, _ = ours(executor, tmp_path, FIRST)
    after, paid = host(tmp_path, SECOND)
    assert_goes_on(before, after, paid)


@pytest.mark.parametrize("executor", ["flash", "lockstep"])
def test_flash_goes_on_from_what_the_host_alone_left(ours, host, tmp_path, executor):
    before, _ = host(tmp_path, FIRST)
    after, paid = ours(executor, tmp_path, SECOND)
    assert_goes_on(before, after, paid, again=SEED * (executor == "lockstep"))
    assert executor == "lockstep" or after.total_num_evals <= SECOND
