"""A run that was killed or stopped goes on with the same call, and pays for nothing that was finished."""

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from harness_task import Evaluator, Proposer, manifests, run

from flashevolve_plugins import Flash
from flashevolve_plugins._errors import UsageError

HELPERS = Path(__file__).resolve().parents[2] / "helpers"
BUDGET, JOBS = 9, 3


class Killed:
    """One run directory, and what was paid for in it by all processes together."""

    def __init__(self, folder, slots):
        self.folder, self.ledger, self.slots = folder, folder / "ledger", slots

    def process(self, kill_at=0, **variables):
        command = [sys.executable, HELPERS / "killed_harness.py", self.folder, self.ledger, BUDGET, self.slots, kill_at]
        environment = {**os.environ, "PYTHONPATH": str(HELPERS), **variables}
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment, check=False)

    def paid(self):
        return Counter(tuple(json.loads(line)) for line in self.ledger.read_text().splitlines())

    def finish(self):
        ended = self.process()
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout.splitlines()[-1]), ended.stderr


def test_what_was_proposed_and_evaluated_before_a_kill_is_not_paid_again(tmp_path):
    killed = Killed(tmp_path, slots=1)
    # one after the other: the baseline's three jobs, a session, three jobs ... until the last job of some candidate
    assert killed.process(kill_at=13, KEPT="yes").returncode == -9
    before = killed.paid()
    assert sum(count for (kind, *_), count in before.items() if kind == "session") >= 2
    result, said = killed.finish()
    assert "Taking up the run in" in said
    after = killed.paid()
    assert set(after.values()) == {1}
    assert sorted(result["candidates"]) == [f"c{n:04d}" for n in range(BUDGET + 1)]
    assert sum(kind == "session" for kind, *_ in after) == BUDGET
    told = manifests(tmp_path / "run")
    assert {each["outcome"] for each in told.values()} <= {"baseline", "keep", "discard", "no-change"}
    evaluated = [name for name, each in told.items() if each["valid"] and each["outcome"] != "no-change"]
    jobs = {(name, job) for name in evaluated for job in range(JOBS)}
    assert {tuple(what) for kind, *what in after if kind == "job"} == jobs


@pytest.mark.parametrize("seed", range(2))
def test_a_run_that_is_killed_again_and_again_pays_for_nothing_again_that_is_on_disk(tmp_path, seed, tell):
    """A result takes up to a second to get there; the processes are killed when all are."""
    generator, killed = random.Random(seed), Killed(tmp_path, slots=2)
    codes = []
    for kill_at in (*(generator.randrange(2, 9) for _ in range(5)), 0):
        ended = killed.process(kill_at=kill_at, KEPT="yes")
        codes.append(ended.returncode)
        if ended.returncode != -signal.SIGKILL:  # the last one, or fewer calls were left
            break
    assert codes[-1] == 0, ended.stderr
    assert len(codes) > 3
    result, paid = json.loads(ended.stdout.splitlines()[-1]), killed.paid()
    again = [what for what, count in paid.items() if count > 1]
    assert again == [what for what in again if what[:2] == ("job", "c0000")]  # the baseline, until it has ended
    assert sum(kind == "session" for kind, *_ in paid) == BUDGET
    assert len(result["candidates"]) == BUDGET + 1 == len(set(result["candidates"]))
    told = manifests(tmp_path / "run")
    assert max(each["objective"] for each in told.values()) == result["best"]
    leaderboard = json.loads((tmp_path / "run/indexes/leaderboard.json").read_text())
    lost = len(set(result["candidates"]) - set(leaderboard["candidates"]))
    outcome = "goes on where it was; at most the calls in flight and of the last second are paid again"
    tell("superagentic-metaharness, `kill -9` at a random call", tries=10, outcome=outcome, lost=lost)


def flash(**options):
    return Flash(max_concurrency=1, reflection_concurrency=1, clock="virtual", progress=False, **options)


def stopped(tmp_path):
    """A run of six candidates that is stopped when the second is the best."""
    proposer = Proposer(steps=lambda n: 1)
    run(tmp_path, flash(stop_score=2.0), proposer=proposer)
    return proposer


def test_a_run_that_was_stopped_goes_on(tmp_path, caplog):
    first, second = stopped(tmp_path), Proposer(steps=lambda n: 1)
    settings = flash()
    result, folder = run(tmp_path, settings, proposer=second)
    assert "Taking up the run" in caplog.text
    over = [each for each in manifests(folder).values() if each["outcome"] in ("keep", "discard")]
    assert len(over) == 6
    assert settings.last_run.spent == 6
    assert sum(first.sessions.values()) + sum(second.sessions.values()) <= 7  # one was under way
    assert result.best_objective >= 3


def test_a_run_that_came_to_its_end_is_begun_anew(tmp_path, caplog):
    run(tmp_path, flash(), budget=2, proposer=Proposer(steps=lambda n: 1))
    proposer = Proposer(steps=lambda n: 1)
    run(tmp_path, flash(), budget=2, proposer=proposer)
    assert sum(proposer.sessions.values()) == 2
    assert "Taking up" not in caplog.text


def test_another_run_is_not_taken_up_unless_that_is_said(tmp_path):
    stopped(tmp_path)

    class Other(Evaluator):
        pass

    with pytest.raises(UsageError, match="left in the middle of a run with another evaluator: name another directory"):
        run(tmp_path, flash(), evaluator=Other())
    result, _ = run(tmp_path, flash(resume="any"), proposer=Proposer(steps=lambda n: 1), evaluator=Other())
    assert result.best_objective >= 3


def test_a_directory_that_others_may_write_is_refused(tmp_path):
    stopped(tmp_path)
    (tmp_path / "run" / "flashevolve.sqlite").chmod(0o666)
    with pytest.raises(UsageError, match="may be written by every user"):
        run(tmp_path, flash())
