"""The progress line: what it says, redrawn on a terminal, and every 30 seconds where there is none."""

import io
import sys
from dataclasses import replace

import pytest

from flashevolve_plugins._progress import ProgressLine, describe
from flashevolve_plugins.hooks import Snapshot

HALFWAY = Snapshot(
    seconds=100.0,
    slots={"task": 8, "reflection": 8, "local": 1},
    busy={"task": 7, "reflection": 2},
    entry="task",
    ended={"committed": 3, "rejected": 9, "discarded": 4, "failed": 1, "skipped": 2, "merged": 1},
    spent=250,
    reserved=40,
    budget=1000,
    seed_score=0.5,
    best_score=0.625,
)


def test_the_line_tells_the_calls_of_reflective_datasets_beside_the_budget():
    assert "| 7/8" in describe(HALFWAY)
    assert describe(replace(HALFWAY, feedback_calls=72)).startswith("flash: 250/1000 calls (+72 for feedback) | best")


def test_the_line_tells_who_is_at_work_of_how_many_where_that_is_limited():
    workers = {"rollout": None, "propose": 16, "gate": 16, "merge": 4, "validate": 8}
    at_work = {"rollout": 7, "propose": 3, "gate": 0, "merge": 0, "validate": 8}
    finished = {"rollout": 20, "propose": 12, "gate": 9, "merge": 0, "validate": 0}
    line = describe(replace(HALFWAY, workers=workers, at_work=at_work, finished=finished))
    assert "(1 merged, +4 discarded) | workers propose 3/16, gate 0/16, validate 8/8 | 5 min" in line
    assert "workers" not in describe(replace(HALFWAY, workers=dict.fromkeys(workers), at_work=at_work))


class Terminal(io.StringIO):
    """A terminal that remembers what was written."""

    def isatty(self):
        return True


def at(seconds, spent=250, budget=1000):
    return Snapshot(seconds=seconds, slots={"task": 8}, entry="task", spent=spent, budget=budget)


def test_the_line_tells_calls_score_slots_acceptance_and_time_left():
    line = (
        "flash: 250/1000 calls | best 0.625 (+0.125) | 7/8 slots busy | 3 accepted of 13 (1 merged, +4 discarded)"
        " | 5 min 00 s left"
    )
    assert describe(HALFWAY) == line


@pytest.mark.parametrize(
    ("seconds", "spent", "budget", "end"),
    [
        (10, 0, 1000, "0 accepted of 0"),
        (10, 1000, 1000, "0 accepted of 0"),
        (10, 500, 1000, "| 10 s left"),
        (90, 500, 1000, "| 1 min 30 s left"),
        (7200, 500, 1000, "| 2 h 00 min left"),
        (59.7, 500, 1000, "| 1 min 00 s left"),
    ],
)
def test_the_time_left_follows_from_the_calls_so_far(seconds, spent, budget, end):
    assert describe(at(seconds, spent, budget)).endswith(end)


def test_without_a_budget_or_a_score_it_says_neither():
    assert describe(at(10, 5, None)) == "flash: 5 calls | 0/8 slots busy | 0 accepted of 0"


def test_a_loss_is_shown_as_one():
    snapshot = Snapshot(seed_score=0.5, best_score=0.25)
    assert "best 0.250 (-0.250)" in describe(snapshot)


def test_without_a_terminal_a_line_every_thirty_seconds_and_one_at_the_end(capsys):
    line = ProgressLine()
    for tick in range(0, 191, 1):  # 0 to 95 seconds, twice a second
        line.flashevolve_snapshot(at(tick / 2))
    lines = capsys.readouterr()
    assert lines.out == ""
    assert lines.err.splitlines() == [describe(at(seconds)) for seconds in (30, 60, 90)]
    line.flashevolve_run_finished(at(95, 1000))
    assert capsys.readouterr().err == f"{describe(at(95, 1000), left=False)} | ended after 1 min 35 s\n"


def test_a_quiet_minute_is_not_caught_up_with(capsys):
    line = ProgressLine()
    for seconds in (10, 200, 210, 229, 230):
        line.flashevolve_snapshot(at(seconds))
    assert capsys.readouterr().err.splitlines() == [describe(at(200)), describe(at(230))]


@pytest.fixture
def terminal(monkeypatch):
    """Call it in the test to get a terminal in place of standard error: pytest puts its own there between the two."""

    def start(columns=150):
        made = Terminal()
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys, "stderr", made)
        return made

    return start


def test_on_a_terminal_one_line_is_redrawn_and_the_last_one_stays(terminal):
    terminal = terminal()
    line, out = ProgressLine(), sys.stdout
    for spent in (250, 500):
        line.flashevolve_snapshot(at(1, spent))
        assert f"flash: {spent}/1000 calls" in terminal.getvalue()
    line.flashevolve_run_finished(at(2, 1000))
    text = terminal.getvalue()
    assert text.count("\n") == 1  # one line in all
    assert text.index("250/1000") < text.index("500/1000") < text.index("1000/1000") < text.index("ended after 2 s")
    assert "\x1b[2K" in text  # each is drawn over the one before
    assert (sys.stdout, sys.stderr) == (out, terminal)
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is back


def test_a_line_wider_than_the_terminal_is_cut_but_the_last_one_is_not(terminal):
    terminal = terminal(columns=40)
    line = ProgressLine()
    line.flashevolve_snapshot(HALFWAY)
    assert "…" in terminal.getvalue()
    assert "\n" not in terminal.getvalue()
    drawn = len(terminal.getvalue())
    line.flashevolve_run_finished(HALFWAY)
    last = terminal.getvalue()[drawn:]
    assert "…" not in last
    assert "ended after 1 min 40 s" in " ".join(last.split())


def test_a_run_that_ends_before_its_first_snapshot_still_leaves_its_line(terminal):
    terminal = terminal()
    ProgressLine().flashevolve_run_finished(at(0.1))
    assert "ended after 0 s" in terminal.getvalue()


def test_a_server_that_does_not_answer_is_told_instead_of_the_time_left():
    away = replace(HALFWAY, outage=12.4, outage_reason="ConnectionResetError: reset")
    assert describe(away).endswith("| server not answering for 12 s: ConnectionResetError: reset")
    assert "answering" not in describe(away, left=False)


def test_abandoned_calls_are_told_only_if_there_are_any():
    assert "| 2 calls abandoned |" in describe(replace(HALFWAY, abandoned=2))
    assert "abandoned" not in describe(HALFWAY)
