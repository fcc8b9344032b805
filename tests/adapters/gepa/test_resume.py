"""The state file is the host's: it loads without us, and either loop goes on from what the other left."""

import json
import subprocess
import sys

import pytest
from gepa.core.state import GEPAState

from flashevolve_plugins.hooks import hookimpl

LOAD = """
import sys
sys.modules["flashevolve_plugins"] = None  # an import of it fails
from gepa.core.state import GEPAState
state = GEPAState.load(sys.argv[1])
assert state.is_consistent()
print(len(state.program_candidates), state.total_num_evals, state.i)
"""


@pytest.mark.parametrize("lockstep", [False, True], ids=["flash", "lockstep"])
def test_the_state_file_loads_without_our_package(kit, tmp_path, lockstep):
    flash = kit.flash(lockstep=lockstep, max_concurrency=20)
    run = kit.run(flash, run_dir=str(tmp_path), use_merge=True, seed_candidate=kit.TWO, cache_evaluation=True)
    command = [sys.executable, "-c", LOAD, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    iterations = run.callbacks.names.count("on_iteration_start")
    assert found.stdout.split() == [
        str(len(run.result.candidates)), str(run.result.total_metric_calls), str(iterations - 1)
    ]  # fmt: skip
    assert json.loads((tmp_path / "candidates.json").read_text()) == run.result.candidates
    assert len(json.loads((tmp_path / "run_log.json").read_text())) == iterations


def test_every_saved_state_is_one_that_the_host_could_have_saved(kit, tmp_path):
    recorder, seen = kit.Callbacks(), []

    def load(name, event):
        if name == "on_state_saved":
            state = GEPAState.load(str(tmp_path))
            assert state.is_consistent()
            seen.append((state.i, state.total_num_evals, len(state.full_program_trace)))

    recorder.watchers.append(load)
    run = kit.run(kit.flash(max_concurrency=20), run_dir=str(tmp_path), recorder=recorder)
    kit.check(run, 150)
    assert [i for i, *_ in seen] == list(range(-1, len(seen) - 1))
    assert all(entries == i + 1 for i, _, entries in seen)
    totals = [total for _, total, _ in seen]
    assert totals == sorted(totals)


DIRECTIONS = {
    "host to flash": ("host", "flash"),
    "flash to host": ("flash", "host"),
    "flash to flash": ("flash", "flash"),
}


@pytest.mark.parametrize("directions", DIRECTIONS.values(), ids=DIRECTIONS)
@pytest.mark.parametrize("cached", [False, True], ids=["plain", "cached"])
def test_either_loop_goes_on_from_the_other_s_state(kit, tmp_path, directions, cached):
    executors = {"host": lambda: None, "flash": lambda: kit.flash(max_concurrency=20)}
    options = {"run_dir": str(tmp_path), "seed_candidate": kit.TWO, "use_merge": True, "cache_evaluation": cached}
    before = kit.run(executors[directions[0]](), calls=120, **options)
    after = kit.run(executors[directions[1]](), calls=300, **options)
    known = len(before.result.candidates)
    assert after.result.candidates[:known] == before.result.candidates
    assert after.result.val_subscores[:known] == before.result.val_subscores
    assert len(after.result.candidates) > known
    assert after.state.is_consistent()
    paid = after.adapter.calls - 10 * (directions[1] == "host")  # which validates the seed again, and counts it once
    assert after.result.total_metric_calls == before.result.total_metric_calls + paid
    assert after.trace[: len(before.trace)] == before.trace
    assert [entry["i"] for entry in after.trace] == list(range(len(after.trace)))
    first = after.callbacks.named("on_iteration_start")[0]["iteration"]
    assert first == before.callbacks.named("on_iteration_end")[-1]["iteration"] + 1
    if directions[1] == "flash":
        kit.check_serial_history(after, next(iter(after.callbacks.threads)), last=first - 1)
        assert after.result.total_metric_calls <= 300
        assert after.last.version == len(after.result.candidates)
        assert sum(after.last.ended.values()) == len(after.trace) - len(before.trace)


def test_a_run_that_is_resumed_with_its_budget_spent_offers_nothing(kit, tmp_path):
    before = kit.run(kit.flash(), run_dir=str(tmp_path), calls=150)
    after = kit.run(kit.flash(), run_dir=str(tmp_path), calls=before.result.total_metric_calls + 5)
    assert after.result.total_metric_calls == before.result.total_metric_calls
    assert after.result.candidates == before.result.candidates
    assert after.adapter.calls == 0
    assert after.last.ended == {}


def test_an_adapter_s_own_state_is_saved_and_restored(kit, tmp_path):
    class Keeping(kit.Words):
        kept = None

        def get_adapter_state(self):
            return {"batches": len(self.batches)}

        def set_adapter_state(self, state):
            self.kept = dict(state)

    before = kit.run(kit.flash(), run_dir=str(tmp_path), adapter=Keeping())
    after = kit.run(kit.flash(), run_dir=str(tmp_path), adapter=Keeping(), calls=200)
    assert after.adapter.kept == {"batches": len(before.adapter.batches)}


def test_a_run_that_failed_goes_on_from_its_last_saved_state(kit, tmp_path):
    adapter = kit.Words()
    adapter.errors = {"evaluate": lambda number: number == 70}
    failed = kit.run(kit.flash(max_concurrency=6), adapter=adapter, run_dir=str(tmp_path), calls=300, catch=True)
    assert type(failed.error) is RuntimeError
    saved = GEPAState.load(str(tmp_path))
    after = kit.run(kit.flash(max_concurrency=6), run_dir=str(tmp_path), calls=300)
    assert after.result.candidates[: len(saved.program_candidates)] == saved.program_candidates
    assert after.state.is_consistent()
    assert after.result.total_metric_calls <= 300


def test_a_candidate_that_was_paid_for_is_on_disk_before_the_next_sample_starts(kit, tmp_path):
    class Entries:
        def __init__(self):
            self.version = 0

        @hookimpl
        def flashevolve_pool_updated(self, entry):
            self.version = entry.version

    entries, seen = Entries(), []

    class Looking(kit.Words):
        def evaluate(self, batch, candidate, *, capture_traces=False):
            if entries.version > 1:
                seen.append((entries.version, len(GEPAState.load(str(tmp_path)).program_candidates)))
            return super().evaluate(batch, candidate, capture_traces=capture_traces)

    flash = kit.flash(max_concurrency=4, plugins=[entries])
    kit.run(flash, adapter=Looking(), run_dir=str(tmp_path), calls=200)
    assert len({version for version, _ in seen}) > 1
    assert all(on_disk == version for version, on_disk in seen)
