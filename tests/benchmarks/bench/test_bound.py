"""What full slots would take, and what a run loses against that."""

from __future__ import annotations

import pytest

from flashevolve_plugins.benchmarks.bench.bound import HEAD, bounds, full_slots, main
from flashevolve_plugins.benchmarks.bench.cells import Cell, RunKey
from flashevolve_plugins.benchmarks.bench.one import keep
from flashevolve_plugins.benchmarks.bench.virtual import run_virtual
from flashevolve_plugins.benchmarks.server.profiles import PROFILES

CELL = Cell(slots=8, val=30, calls=400)


@pytest.fixture(scope="module")
def runs():
    return [run_virtual(RunKey("virtual", CELL, rival, 0)) for rival in ("sequential", "full")]


def test_the_time_beyond_full_slots_is_what_was_lost_at_the_start_in_between_and_in_the_drain(runs):
    _, full = runs
    assert full.seconds - full_slots(full) == pytest.approx(sum(full.lost.values()))
    assert full.lost["start"] > 0 > full.lost["steady"]  # reflections have slots of their own


def test_work_takes_as_long_as_the_model_says_with_full_slots(record):
    speed = PROFILES["h100"].latency.tokens_per_second(2)
    assert speed == pytest.approx(2 / (0.01 * (1 + 2 / 128)))
    run = record("full", 0, [(0.0, 10, 0.2), (60.0, 100, 0.4)], work=30 * speed)
    assert full_slots(run) == pytest.approx(30)


def test_times_are_compared_per_metric_call_over_the_seeds_that_both_have(record):
    speed = PROFILES["h100"].latency.tokens_per_second(2)
    lost = {"start": 7.0, "steady": -1.0, "drain": 4.0}
    rows = bounds([
        record("sequential", 0, [(0.0, 10, 0.2), (150.0, 125, 0.4)], work=1.0),
        record("sequential", 1, [(0.0, 10, 0.2), (999.0, 100, 0.4)], work=1.0),
        record("full", 0, [(0.0, 10, 0.2), (40.0, 100, 0.4)], work=30 * speed, lost=lost),
        record("full", 1, [(0.0, 10, 0.2), (40.0, 100, 0.4)], clock="server"),
    ])  # fmt: skip
    first, second = (dict(zip(HEAD, row, strict=True)) for row in rows)
    assert (first["rival"], first["wall time, s"]) == ("sequential", "150")
    assert first["rival / flash"] == "3.00 (3.00 to 3.00)"
    assert first["most possible"] == "4.00"
    assert first["profile"] == "validate 75%, gate 25%"
    assert (second["with full slots, s"], second["most possible"]) == ("30", "1.33")
    assert second["profile"] == "start +7 s, steady -1 s, drain +4 s"


def test_the_table_is_made_of_a_folder_of_results(runs, tmp_path, capsys):
    for run in runs:
        keep(run, tmp_path)
    assert main([str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[1] for line in lines[2:]] == ["full", "sequential"]
    assert main([str(tmp_path), "--policy", "guarded"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
