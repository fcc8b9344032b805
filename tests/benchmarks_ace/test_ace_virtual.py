"""ACE in virtual time: the host's own run is what lockstep makes, and asynchrony costs what it costs."""

from __future__ import annotations

from dataclasses import asdict, replace

import ace
import pytest

from flashevolve_plugins import UsageError
from flashevolve_plugins.benchmarks.bench import ace_cells
from flashevolve_plugins.benchmarks.bench.ace_cells import AceCell, AceKey, dump, read
from flashevolve_plugins.benchmarks.bench.ace_tasks import host_task, questions
from flashevolve_plugins.benchmarks.bench.ace_virtual import ReadingFlash, VirtualModel, _repeatable, run_virtual
from flashevolve_plugins.benchmarks.bench.virtual_server import VirtualServer
from flashevolve_plugins.benchmarks.server.profiles import PROFILES
from flashevolve_plugins.benchmarks.server.settings import ServerSettings
from flashevolve_plugins.benchmarks.server.simulator import Simulator

SMALL = AceCell(data="landscape", slots=8, samples=40, val=30, rounds=2)
POLICIES = ("full", "guarded", "reflective", "best-first", "merge", "aggregate")


def run(rival, cell=SMALL, seed=0):
    return run_virtual(AceKey("virtual", cell, rival, seed), questions(cell, None))


def adapted(*, lockstep):
    """Playbook, history and virtual seconds of a run of the host, by itself or in lockstep."""
    asked, landscape = questions(SMALL, None), SMALL.playbook(0)
    server = VirtualServer(PROFILES["h100"].latency)
    model = VirtualModel(Simulator(ServerSettings(playbook=landscape)), server)
    model.waits = not lockstep
    flash = ReadingFlash(lockstep=True, progress=False, server=server, model=model) if lockstep else None
    with _repeatable(0):
        host = ace.ACE(model, ace.ACEConfig(epochs=2, auto_embedder=False), executor=flash)
        result = host.adapt_offline(host_task("train", asked.train, landscape))
    history = [{**asdict(record), "latency_s": 0} for record in result.history]
    return host.playbook.render(), history, server.now


def test_lockstep_is_the_hosts_own_run_in_the_same_virtual_time():
    own, lockstep = adapted(lockstep=False), adapted(lockstep=True)
    assert lockstep[:2] == own[:2]
    assert lockstep[2] == pytest.approx(own[2])
    assert len(own[1]) == 80


@pytest.mark.parametrize("rival", ["sequential", *POLICIES])
def test_a_run_can_be_repeated_and_tells_the_host_of_every_sample(rival, tmp_path):
    record = run(rival)
    assert dump(record) == dump(run(rival))
    assert record.samples == 40
    assert [moment.samples for moment in record.curve] == list(range(41))
    assert 40 * 2 <= record.calls <= 40 * 4
    path = tmp_path / "record.json"
    path.write_text(dump(record), encoding="utf-8")
    assert read(path) == record


def test_full_slots_take_a_fraction_of_the_time():
    own, full = run("sequential"), run("full")
    assert full.rate > 4 * own.rate
    assert full.window_busy > 0.6
    assert own.window_busy is None
    assert own.busy == pytest.approx(1 / 8, abs=0.005)


def test_what_runs_at_once_does_not_see_each_other(monkeypatch):
    few = {"rules": 4, "known": 0.0, "found": 1.0, "half_said": 0.0, "distractors": 0, "chatty": 0.0}
    monkeypatch.setitem(ace_cells.PLAYBOOKS, "plain", few)
    own, full, aggregate = (
        sum(run(rival, replace(SMALL, slots=16), seed).duplicates for seed in range(3))
        for rival in ("sequential", "full", "aggregate")
    )
    assert own == 0.0
    assert full > 0.3
    assert aggregate < full


@pytest.mark.parametrize("rival", ["independent-4", "gepa:sequential", "turbo-gepa"])
def test_rivals_of_other_hosts_are_refused(rival):
    with pytest.raises(UsageError, match="its own loop, and every policy of flash"):
        run(rival)
