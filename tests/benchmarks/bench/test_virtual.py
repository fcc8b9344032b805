"""Virtual time: a server that slows down under load, hosts that batch as they do, and runs that can be trusted."""

from __future__ import annotations

import math
import statistics

import pytest

from flashevolve_plugins._errors import FlashEvolveError
from flashevolve_plugins.benchmarks.bench.cells import Cell, RunKey
from flashevolve_plugins.benchmarks.bench.virtual import LandscapeAdapter, run_virtual
from flashevolve_plugins.benchmarks.bench.virtual_server import Crew, Request, Started, VirtualServer
from flashevolve_plugins.benchmarks.server.latency import LatencyModel

SMALL = Cell(slots=4, val=10, calls=80, train=20)
FIXED = LatencyModel(base_token_time=1.0, half_batch=1e12, prefill_ratio=0.0)


def took(crews, model=FIXED):
    """Seconds until every crew is done."""
    server, done = VirtualServer(model), []
    Started(server, crews, lambda: done.append(server.now))
    while not done:
        server.step()
    return done[0]


def jobs(*tokens):
    return [[Request(0, each)] for each in tokens]


def test_a_thread_takes_the_next_job_when_it_is_done():
    assert took([Crew(2, jobs(3, 1, 1, 2))]) == pytest.approx(4)  # 3 and then nothing; 1, 1 and 2
    assert took([Crew(1, jobs(3, 1, 2))]) == pytest.approx(6)
    assert took([Crew(9, jobs(3, 1, 2))]) == pytest.approx(3)


def test_a_sample_is_done_with_its_slowest_crew():
    assert took([Crew(1, jobs(1, 1)), Crew(1, jobs(5))]) == pytest.approx(5)
    assert took([]) == 0.0


def test_requests_of_a_job_follow_one_another():
    assert took([Crew(4, [[Request(0, 2), Request(0, 3)], [Request(0, 4)]])]) == pytest.approx(5)


def test_a_token_takes_longer_under_load():
    loaded = LatencyModel(base_token_time=1.0, half_batch=1.0, prefill_ratio=0.0)
    assert took([Crew(1, jobs(1))], loaded) == pytest.approx(2)
    assert took([Crew(3, jobs(1, 1, 1))], loaded) == pytest.approx(4)
    assert took([Crew(2, jobs(1, 2))], loaded) == pytest.approx(3 + 2)  # both for one token at 3, then one at 2


def test_a_full_server_lets_requests_wait():
    one = LatencyModel(base_token_time=1.0, half_batch=1e12, max_num_seqs=1, prefill_ratio=0.0)
    assert took([Crew(3, jobs(1, 2, 3))], one) == pytest.approx(6)


def test_an_idle_server_says_so():
    with pytest.raises(FlashEvolveError, match="No request is under way"):
        VirtualServer(FIXED).step()


def crews(host, stage, *call, threads=4):
    adapter = LandscapeAdapter(Cell(slots=threads), host, 0)
    return [(crew.threads, [len(job) for job in crew.jobs]) for crew in adapter.flashevolve_seconds(stage, *call)]


def test_dspy_splits_its_threads_between_candidates_and_gepa_pools_them():
    candidate = {"part_1": "Answer."}
    items = [(candidate, ["a", "b", "c"]), (candidate, ["d", "e", "f"]), (candidate, ["g"])]
    assert crews("dspy", "gate", items) == [(2, [1, 1, 1]), (1, [1, 1, 1]), (1, [1])]
    assert crews("gepa", "gate", items) == [(4, [1] * 7)]


def test_dspy_with_more_candidates_than_threads_takes_one_after_the_other():
    items = [({"part_1": "Answer."}, ["a", "b", "c"])] * 5
    assert crews("dspy", "gate", items, threads=2) == [(2, [3] * 5)]


def test_dspy_reflects_one_by_one_and_gepa_ten_at_once():
    assert crews("dspy", "propose", [object()] * 16, threads=32) == [(1, [1] * 16)]
    assert crews("gepa", "propose", [object()] * 16, threads=32) == [(10, [1] * 16)]
    assert crews("gepa", "propose", [object()] * 16, threads=4) == [(4, [1] * 16)]


def test_a_validation_takes_every_thread():
    assert crews("dspy", "validate", ["a", "b"], {"part_1": "Answer."}) == [(4, [1, 1])]


@pytest.mark.parametrize("rival", ["sequential", "independent-4/best", "gepa:pxn-2x2", "full", "guarded:1", "full/2"])
def test_a_run_repeats_itself_and_adds_up(rival):
    run = run_virtual(RunKey("virtual", SMALL, rival, 3))
    assert run == run_virtual(RunKey("virtual", SMALL, rival, 3))
    first, last = run.curve[0], run.curve[-1]
    assert first.score == pytest.approx(0.25)
    assert run.sweeps == run.accepted + 1 == len(run.curve)
    assert first.calls >= SMALL.val
    assert (last.seconds, last.calls) <= (run.seconds, run.metric_calls)
    assert run.requests > run.metric_calls  # reflections are requests too
    assert sum(run.stages.values()) == pytest.approx(1)
    assert 0 < run.busy <= 1.5


def test_an_example_is_long_or_short_in_every_validation_where_the_profile_says_so():
    def lengths(profile, seed=0):
        adapter = LandscapeAdapter(Cell(profile=profile), "dspy", seed)
        questions = [f"question {number}" for number in range(300)]
        (crew,) = adapter.flashevolve_seconds("validate", questions, {"part_1": "Answer."})
        (again,) = adapter.flashevolve_seconds("validate", questions, {"part_1": "Answer otherwise."})
        return [[math.log(request.output) for (request,) in each.jobs] for each in (crew, again)]

    assert statistics.correlation(*lengths("h100-examples")) > 0.35
    assert statistics.correlation(lengths("h100-examples")[0], lengths("h100-examples", seed=1)[0]) < 0.2
    assert abs(statistics.correlation(*lengths("h100"))) < 0.2


@pytest.mark.parametrize("rival", ["full", "guarded"])
def test_flash_keeps_the_budget(rival):
    assert run_virtual(RunKey("virtual", SMALL, rival, 0)).metric_calls <= SMALL.calls


def test_full_slots_are_faster_than_one_step_after_the_other():
    cell = Cell(slots=8, val=30, calls=400)
    sequential, full = (run_virtual(RunKey("virtual", cell, rival, 0)) for rival in ("sequential", "full"))
    assert sequential.seconds > 2 * full.seconds
    assert sequential.most_in_flight == 8
    assert sequential.busy < 0.6
    assert full.window_busy > 0.8


def test_one_slot_gains_nothing():
    cell = Cell(slots=1, val=10, calls=100)
    sequential, full = (run_virtual(RunKey("virtual", cell, rival, 0)) for rival in ("sequential", "full"))
    per_call = [run.seconds / run.metric_calls for run in (sequential, full)]
    assert per_call[1] == pytest.approx(per_call[0], rel=0.25)


def test_a_program_of_three_predictors_asks_three_times():
    run = run_virtual(RunKey("virtual", Cell(landscape="components", slots=4, val=10, calls=120), "sequential", 1))
    assert run.requests > 3 * run.metric_calls
    assert run.curve[0].score == pytest.approx(0.25)


def test_a_synchronous_host_does_in_virtual_time_what_it_does_by_itself(monkeypatch):
    import gepa

    calls, optimize = [], gepa.optimize

    def noted(**options):
        calls.append((options, optimize(**options)))
        return calls[-1][1]

    monkeypatch.setattr(gepa, "optimize", noted)
    run_virtual(RunKey("virtual", SMALL, "independent-4", 5))
    ((options, here),) = calls
    fresh = {"adapter": LandscapeAdapter(SMALL, "dspy", 5), "callbacks": [], "executor": None}
    there = optimize(**(options | fresh))
    assert len(there.candidates) > 2
    assert here.candidates == there.candidates
    assert here.val_aggregate_scores == there.val_aggregate_scores
    assert here.total_metric_calls == there.total_metric_calls
