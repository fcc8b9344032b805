"""Processes that are killed at random moments, and taken up."""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from gepa.core.state import GEPAState

HELPERS = Path(__file__).resolve().parents[1] / "helpers"
BUDGET, VALSET, SLOTS = 300, 15, 6
SEED = {"a": "start", "b": "begin"}


class Killed:
    """One run directory, and what was paid for in it by all processes together."""

    def __init__(self, folder, script="killed_run.py"):
        self.script, self.run_dir, self.ledger = HELPERS / script, folder / "run", folder / "ledger"

    def process(self, kill_at=0, **options):
        command = [sys.executable, self.script, self.run_dir, self.ledger, BUDGET, kill_at, json.dumps(options)]
        environment = {**os.environ, "PYTHONPATH": str(HELPERS)}
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment, check=False)

    def finish(self, **options):
        ended = self.process(**options)
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout.splitlines()[-1])

    @property
    def paid(self):
        """Lines of finished calls: kind, and what it was."""
        return [json.loads(line) for line in self.ledger.read_text().splitlines()]

    @property
    def examples(self):
        return [line for line in self.paid if line[0] == "example"]


def assert_nothing_lost(killed, kills, result):
    """Every finished call is counted once, but for what was in flight; nothing is in the pool twice."""
    lost = len(killed.examples) - result["calls"]
    assert 0 <= lost <= kills * SLOTS, f"{lost} calls were paid for again after {kills} kills"
    assert result["calls"] <= BUDGET
    candidates = [json.dumps(candidate, sort_keys=True) for candidate in result["candidates"]]
    assert len(candidates) == len(set(candidates))
    seed = Counter(example for _, example, candidate, traces in killed.examples if candidate == SEED and not traces)
    assert sum(seed.values()) <= VALSET + kills * SLOTS  # what was in flight alone is paid for again
    assert max(result["scores"]) > result["scores"][0]
    items = [json.loads(line) for line in (killed.run_dir / "flashevolve_items.jsonl").read_text().splitlines()]
    versions = {entry["version"] for item in items for entry in item.get("entries", ())}
    assert versions == set(range(1, len(candidates) + 1))  # each candidate has a record


@pytest.mark.parametrize("seed", range(5))
def test_a_process_that_is_killed_ten_times_pays_for_nothing_twice(tmp_path, seed, tell):
    generator, killed = random.Random(seed), Killed(tmp_path)
    options = [{}, {"use_merge": True}, {"use_merge": True, "cache_evaluation": True}][seed % 3]
    for _ in range(10):
        ended = killed.process(generator.randrange(2, 45), **options)
        assert ended.returncode in (-9, 0), ended.stderr
    result = killed.finish(**options)
    assert_nothing_lost(killed, 10, result)
    tell(
        "`kill -9` at a random call",
        tries=50,
        outcome="goes on where it was; at most the calls in flight are paid again",
        lost=0,
    )


@pytest.mark.parametrize("first", ["host", "flash"])
def test_a_killed_run_goes_on_under_the_other_loop(tmp_path, first, tell):
    killed = Killed(tmp_path)
    assert killed.process(100, host=first == "host").returncode == -9
    before = GEPAState.load(str(killed.run_dir))
    result = killed.finish(host=first == "flash")
    assert result["candidates"][: len(before.program_candidates)] == before.program_candidates
    assert len(result["candidates"]) > 1
    assert result["calls"] > before.total_num_evals
    seed = Counter(example for _, example, candidate, traces in killed.examples if candidate == SEED and not traces)
    assert set(seed.values()) == {1 + (first == "flash")}  # the host's own loop validates the seed again
    tell(
        "a killed run taken up by the host's own loop, or one of the host's by flash",
        tries=2,
        outcome="goes on from the host's state file",
        lost=0,
    )
