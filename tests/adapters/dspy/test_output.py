"""What a user sees: one line of progress, and the host's own lines at the host's own levels."""

import io
import logging
import math
import re
import sys

import pytest
from dspy_values import per_predictor

from flashevolve_plugins import Flash, _progress

GEPA_LOGGER = "dspy.teleprompt.gepa.gepa"


def test_a_run_prints_one_line_and_nothing_on_standard_output(task, capfd, monkeypatch):
    monkeypatch.setattr(_progress, "QUIET_SECONDS", math.inf)  # a slow machine's run is told of meanwhile
    task.compile(Flash())
    said = capfd.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    pattern = (
        r"flash: \d+/100 calls \(\+\d+ for feedback\) \| best [\d.]+ \(\+[\d.]+\) \| 0/4 slots busy "
        r"\| \d+ accepted of \d+ .*ended after (\d+ min )?\d+ s"
    )
    assert re.fullmatch(pattern, line)


def test_without_progress_it_prints_the_hosts_own_bar_and_nothing_else(task, capfd):
    task.compile(Flash(progress=False))
    said = capfd.readouterr()
    assert said.out == ""
    assert {line.split(":")[0] for line in said.err.splitlines() if line} == {"GEPA Optimization"}


@pytest.fixture
def lines(caplog, monkeypatch):
    """Collect what dspy.GEPA logs."""
    logger = logging.getLogger(GEPA_LOGGER)
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    monkeypatch.setattr(logger, "propagate", False)

    def collect():
        records = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == GEPA_LOGGER]
        caplog.clear()
        return records

    return collect, logger


def test_lockstep_logs_line_for_line_what_the_host_logs(task, lines):
    collect, logger = lines
    logged = []
    for executor in (None, Flash(progress=False, lockstep=True)):
        logger.setLevel(logging.INFO)
        task.compile(executor, student=task.pair(), max_metric_calls=70)
        logged.append(collect())
    assert logged[0] == logged[1]
    assert len(logged[0]) > 20


def test_flash_logs_the_hosts_lines_iteration_after_iteration(task, lines):
    collect, logger = lines
    kinds = []
    for executor in (None, Flash(progress=False, staleness="full")):
        logger.setLevel(logging.INFO)
        program = task.compile(executor, max_metric_calls=120)
        logged = collect()
        kinds.append({(level, re.sub(r"Iteration \d+: ", "", text)[:12]) for level, text in logged})
        iterations = [int(found[1]) for _, text in logged if (found := re.match(r"Iteration (\d+): ", text))]
        assert iterations == sorted(iterations)
        assert sorted(set(iterations)) == list(range(iterations[-1] + 1))
        accepted = [text for _, text in logged if "Found a better program on the valset" in text]
        assert accepted
        assert all("Traceback" not in text and "Exception" not in text for _, text in logged)
        best = max(program.detailed_results.val_aggregate_scores)
        assert accepted[-1].endswith(f"with score {best}.")
    assert {text for _, text in kinds[1] - kinds[0]} <= {"Discarded be", "Discarded: t", "Duplicate of"}
    assert {level for level, _ in kinds[1]} == {"INFO"}


@pytest.mark.parametrize("lockstep", [True, False])
def test_scores_that_differ_for_a_predictor_are_warned_of_once_per_run(lockstep, task, caplog, monkeypatch):
    logger = logging.getLogger("dspy.teleprompt.gepa.gepa_utils")
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    monkeypatch.setattr(logger, "propagate", False)
    task.compile(Flash(progress=False, lockstep=lockstep), metric=per_predictor(task))
    assert len(task.feedback_calls) > 5
    assert [record.levelname for record in caplog.records if "pred_name" in record.getMessage()] == ["WARNING"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_run_that_succeeds_leaves_the_terminal_as_it_was(task, monkeypatch):
    terminal, out = Terminal(), sys.stdout
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    task.compile(Flash())
    assert (sys.stdout, sys.stderr) == (out, terminal)
    assert "ended after" in terminal.getvalue()


def test_a_run_that_fails_leaves_the_terminal_as_it_was(task, monkeypatch):
    def fail(*_):
        raise KeyboardInterrupt

    task.on_reflect = fail
    terminal, out = Terminal(), sys.stdout
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    with pytest.raises(KeyboardInterrupt):
        task.compile(Flash())
    assert (sys.stdout, sys.stderr) == (out, terminal)
    assert 0 < terminal.getvalue().count("\x1b[?25l") == terminal.getvalue().count("\x1b[?25h")
