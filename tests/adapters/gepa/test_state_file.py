"""A process that cannot import our package goes on from what flash left in a run directory, and the other way round."""

import json
import os
import subprocess
import sys
from pathlib import Path

import gepa_task
import pytest
from gepa.core.state import GEPAState
from gepa_records import contents

HOST = """
import json, sys
sys.modules["flashevolve_plugins"] = None  # an import of it fails
import gepa
from gepa_task import TWO, Reflection, Words

adapter = Words()
gepa.optimize(
    seed_candidate=TWO, trainset=list(range(12)), valset=list(range(100, 110)), adapter=adapter,
    reflection_lm=Reflection(), seed=0, **json.loads(sys.argv[1]),
)
assert not [name for name, module in sys.modules.items() if name.startswith("flashevolve") and module]
print(adapter.calls)
"""
SEED = 10  # metric calls of its validation, which the host's own loop makes again in every run and counts once
FIRST, SECOND = 120, 300
OPTIONS = {
    "plain": {},
    "merges and cache": {"use_merge": True, "max_merge_invocations": 20, "cache_evaluation": True},
    "cloudpickle": {"use_cloudpickle": True, "track_best_outputs": True},
    "frontier of objectives": {"frontier_type": "hybrid", "module_selector": "all"},
}


@pytest.fixture
def host(tmp_path):
    """Runs the host's own loop in a process of its own; returns the state it leaves, and its metric calls."""
    script, helpers = tmp_path / "host.py", str(Path(gepa_task.__file__).parent)
    script.write_text(HOST)

    def run(directory, calls, **options):
        arguments = json.dumps({"run_dir": str(directory), "max_metric_calls": calls, **options})
        command = [sys.executable, str(script), arguments]
        environment = {**os.environ, "PYTHONPATH": helpers}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        return GEPAState.load(str(directory)), int(done.stdout.split()[-1])

    return run


@pytest.fixture
def ours(kit):
    """Runs under flash in this process; returns the state it leaves, and its metric calls."""

    def run(executor, directory, calls, **options):
        flash = kit.flash(max_concurrency=6) if executor == "flash" else kit.flash(lockstep=True)
        made = kit.run(flash, run_dir=str(directory), calls=calls, seed_candidate=kit.TWO, **options)
        return GEPAState.load(str(directory)), made.adapter.calls

    return run


def assert_goes_on(before, after, paid, again=SEED):
    """The second run kept everything of the first, went on where it had stopped, and paid for what it counts."""
    known = len(before.program_candidates)
    assert after.is_consistent()
    assert known > 1
    assert after.i > before.i
    for kept in ("program_candidates", "parent_program_for_candidate", "prog_candidate_val_subscores"):
        assert getattr(after, kept)[:known] == getattr(before, kept)
    assert after.full_program_trace[: len(before.full_program_trace)] == before.full_program_trace
    assert [entry["i"] for entry in after.full_program_trace] == list(range(after.i + 1))
    assert after.total_num_evals == before.total_num_evals + paid - again


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("executor", ["flash", "lockstep"])
def test_the_host_alone_goes_on_from_what_flash_left(ours, host, tmp_path, executor, options):
    before, _ = ours(executor, tmp_path, FIRST, **options)
    after, paid = host(tmp_path, SECOND, **options)
    assert_goes_on(before, after, paid)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("executor", ["flash", "lockstep"])
def test_flash_goes_on_from_what_the_host_alone_left(ours, host, tmp_path, executor, options):
    before, _ = host(tmp_path, FIRST, **options)
    after, paid = ours(executor, tmp_path, SECOND, **options)
    assert_goes_on(before, after, paid, again=SEED * (executor == "lockstep"))
    assert executor == "lockstep" or after.total_num_evals <= SECOND


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_lockstep_may_take_either_half_of_a_run_and_nothing_of_it_changes(ours, host, tmp_path, options):
    halves = {"host": host, "lockstep": lambda *some, **more: ours("lockstep", *some, **more)}
    left = []
    for first, second in (("host", "host"), ("lockstep", "host"), ("host", "lockstep")):
        directory = tmp_path / f"{first} then {second}"
        halves[first](directory, FIRST, **options)
        left.append(contents(halves[second](directory, SECOND, **options)[0]))
    assert left[0] == left[1]
    assert left[0] == left[2]
