"""``flashevolve bench ace``: from options to runs, tables and files."""

from __future__ import annotations

import json

import pytest

from flashevolve_plugins._cli import main

SMALL = ["--data", "landscape", "--samples", "30", "--val", "20", "--slots", "8", "--seeds", "2"]
BAD = {
    "no slots": (["--slots", "0"], "--slots=0 must be at least 1"),
    "no time": (["--time-scale", "0"], "--time-scale=0 must be above 0"),
    "unknown data": (["--data", "moon"], "Unknown --data 'moon': known are"),
    "unknown landscape": (["--landscape", "moon"], "Unknown --landscape 'moon': known are"),
    "unknown profile": (["--profile", "abacus"], "Unknown --profile 'abacus': known are"),
    "unknown rival": (["--rivals", "nobody"], "Unknown rival 'nobody'"),
    "another host's rival": (["--rivals", "independent-4"], "its own loop, and every policy of flash"),
    "refusals in virtual time": (["--profile", "api-limited"], "api-limited refuses requests"),
    "no folder": (["--data", "formula"], "needs --data-dir"),
    "no files": (["--data", "finer", "--data-dir", "nowhere"], "cannot be read"),
}


def bench(*arguments):
    return main(["bench", "ace", *map(str, arguments)])


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_work_is_refused_in_one_sentence(case, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("FLASHEVOLVE_DATA", raising=False)
    arguments, sentence = BAD[case]
    assert bench(*SMALL, *arguments, "--results", tmp_path) == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert len(err.strip().splitlines()) == 1


def test_runs_are_kept_and_reported(tmp_path, capsys):
    arguments = [*SMALL, "--rivals", "sequential", "full", "merge", "--results", tmp_path]
    assert bench(*arguments) == 0
    made = capsys.readouterr()
    assert "0 of 6 runs are there, 6 to make." in made.out
    assert len(made.err.splitlines()) == 6
    figures = json.loads((tmp_path / "ace.json").read_text())
    ((title, rivals),) = figures.items()
    assert title.startswith("landscape, plain, h100, 8 slots, 30 samples x 1")
    assert list(rivals) == ["sequential", "full", "merge"]
    against = rivals["full"]["against"]
    assert against["pairs"] == 2
    assert against["faster"][0] > 2
    score = [rivals[name]["score"][1] for name in ("full", "sequential")]
    assert against["score"][0] == pytest.approx(score[0] - score[1])
    assert len(rivals["full"]["over_samples"]) == 11
    assert bench(*arguments) == 0
    again = capsys.readouterr()
    assert "6 of 6 runs are there, 0 to make." in again.out
    assert (tmp_path / "ace.md").read_text() in again.out


def test_real_questions_are_read_from_their_folder(tmp_path, capsys):
    for split, count in (("train_subset_500", 12), ("val_subset_300", 8)):
        rows = [json.dumps({"context": f"{split} {number}", "target": "1"}) for number in range(count)]
        (tmp_path / f"formula_{split}.jsonl").write_text("\n".join(rows))
    size = ["--data-dir", tmp_path, "--seeds", "1", "--results", tmp_path / "results", "--rivals", "sequential"]
    assert bench("--samples", 12, "--val", 8, *size) == 0
    assert "12 samples x 1, 8 validation questions" in capsys.readouterr().out
    assert bench("--samples", 13, "--val", 8, *size) == 2
    assert "12 training samples and 8 validation questions, fewer than --samples=13" in capsys.readouterr().err


def test_the_same_through_the_server(tmp_path, capsys):
    size = ["--data", "landscape", "--samples", 12, "--val", 10, "--slots", 4, "--seeds", 1]
    time = ["--clock", "server", "--time-scale", "0.002"]
    assert bench(*size, *time, "--rivals", "sequential", "full", "--results", tmp_path) == 0
    capsys.readouterr()
    ((_, rivals),) = json.loads((tmp_path / "ace.json").read_text()).items()
    for figures in rivals.values():
        assert 2 <= figures["calls"][1] <= 3
        assert 0 < figures["score"][1] < 1
