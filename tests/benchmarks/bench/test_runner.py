"""Runs that are there are not made again; those that fail are told and stay missing; the command writes it all."""

from __future__ import annotations

import json

import pytest

from flashevolve_plugins._cli import main
from flashevolve_plugins._errors import UsageError
from flashevolve_plugins._whole_file import UNFINISHED
from flashevolve_plugins.benchmarks.bench import one, runner
from flashevolve_plugins.benchmarks.bench.cells import Cell, RunKey
from flashevolve_plugins.benchmarks.bench.programs import RunFailedError, python_for, start
from flashevolve_plugins.benchmarks.bench.record import read
from flashevolve_plugins.benchmarks.bench.rivals import Rival, parse
from flashevolve_plugins.benchmarks.bench.runner import missing, run_missing

CELL = Cell(slots=2, val=10, calls=100)
KEYS = [RunKey("virtual", CELL, rival, seed) for seed in (0, 1) for rival in ("sequential", "full")]


@pytest.fixture
def made(monkeypatch, record, tmp_path):
    """Collect the runs that are made; each ends at once with a made-up record."""
    runs = []

    def make(key, **_):
        runs.append(key)
        one.keep(record(key.rival, key.seed, [(0.0, 10, 0.2), (60.0, 100, 0.6)], cell=key.cell), tmp_path)

    monkeypatch.setattr(runner, "_run_virtual", make)
    return runs


def test_only_what_is_missing_is_run(made, tmp_path):
    assert run_missing(KEYS[:3], tmp_path) == []
    assert made == KEYS[:3]
    assert run_missing([*KEYS, *KEYS], tmp_path) == []
    assert made == KEYS
    assert missing(KEYS, tmp_path) == []


def test_a_run_that_fails_is_told_and_stays_missing(monkeypatch, made, tmp_path):
    fine = runner._run_virtual

    def make(key, **options):
        if key == KEYS[1]:
            raise RuntimeError("the moon was in the way")
        fine(key, **options)

    monkeypatch.setattr(runner, "_run_virtual", make)
    assert run_missing(KEYS, tmp_path) == [f"{KEYS[1]} failed: the moon was in the way"]
    assert missing(KEYS, tmp_path) == [KEYS[1]]


def test_a_file_that_is_no_record_is_named(tmp_path):
    path = tmp_path / KEYS[0].path
    path.parent.mkdir(parents=True)
    path.write_text("{}", "utf-8")
    with pytest.raises(UsageError, match="is no record of a run") as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_synchronous_hosts_run_side_by_side_and_flash_alone(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(
        runner, "_together", lambda _, jobs, keys, *__: asked.append((jobs, [key.rival for key in keys]))
    )
    names = ("sequential", "full", "gepa:pxn-2x2", "turbo-gepa")
    run_missing([RunKey("server", CELL, name, 0) for name in names], tmp_path, jobs=5)
    assert asked == [(5, []), (5, ["sequential", "gepa:pxn-2x2"]), (1, ["full", "turbo-gepa"])]


@pytest.mark.filterwarnings("ignore")  # matplotlib's own
def test_the_command_runs_what_is_missing_and_writes_the_report(tmp_path, capsys):
    size = ["--slots", "4", "--val", "10", "--calls", "60", "--train", "20", "--seeds", "2", "--jobs", "1"]
    command = ["bench", *size, "--rivals", "sequential", "full", "--results", str(tmp_path)]
    assert main([*command, "--dry-run"]) == 0
    assert capsys.readouterr().out == "chosen: 0 of 4 runs are there, 4 to make.\n"
    assert main(command) == 0
    text = (tmp_path / "report.md").read_text("utf-8")
    assert text.strip() in capsys.readouterr().out
    assert "| sequential | 2 |" in text
    assert set(json.loads((tmp_path / "report.json").read_text("utf-8"))) == {"chosen"}
    assert (tmp_path / "pictures" / "chosen-1.png").read_bytes().startswith(b"\x89PNG")
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*/*/*/*.json")}
    assert len(times) == 4
    assert main(command) == 0
    assert "4 of 4 runs are there" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert list(tmp_path.rglob(UNFINISHED)) == []


def test_a_report_alone_runs_nothing(tmp_path, capsys):
    assert main(["bench", "--slots", "4", "--report-only", "--results", str(tmp_path)]) == 0
    assert "No run of this table has been made yet." in capsys.readouterr().out


def test_a_server_that_is_not_there_is_told_before_anything_is_run(tmp_path, capsys):
    file = tmp_path / "examples.jsonl"
    file.write_text('{"question": "1 + 1?", "answer": "#### 2"}\n' * 30, "utf-8")
    given = [
        "--server",
        "http://127.0.0.1:9/v1",
        "--model",
        "any",
        "--data",
        str(file),
        "--results",
        str(tmp_path / "r"),
    ]
    assert main(["bench", *given, "--train", "5", "--val", "40"]) == 2
    assert "has 30 examples, fewer than train=5 and val=40 together" in capsys.readouterr().err
    assert main(["bench", *given, "--train", "5", "--val", "20"]) == 2
    assert "No server answers at http://127.0.0.1:9/v1" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_a_program_that_fails_is_told_by_its_last_words(tmp_path):
    import sys

    job = json.dumps({"key": {"clock": "virtual", "cell": {}, "rival": "nobody", "seed": 0}, "folder": str(tmp_path)})
    with pytest.raises(RunFailedError, match="Unknown rival 'nobody'"):
        start(sys.executable, job)


def test_an_environment_is_made_once_and_only_where_one_is_needed(monkeypatch, tmp_path):
    import sys

    from flashevolve_plugins.benchmarks.bench import programs

    assert python_for(parse("full"), tmp_path) == sys.executable
    commands = []

    def call(command):
        commands.append(command[1:3])
        (tmp_path / "environments" / "odd").mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(programs, "_call", call)
    odd = Rival("odd", requirements=("odd==1",))
    python = python_for(odd, tmp_path)
    assert python.startswith(str(tmp_path / "environments" / "odd"))
    assert commands == [["-m", "venv"], ["-m", "pip"]]
    assert python_for(odd, tmp_path) == python
    assert len(commands) == 2
    python_for(Rival("odd", requirements=("odd==2",)), tmp_path)
    assert len(commands) == 4
