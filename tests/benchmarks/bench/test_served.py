"""Runs through a server that answers at once: every host, measured in the same way."""

from __future__ import annotations

import asyncio
import gc

import pytest

from flashevolve_plugins import UsageError
from flashevolve_plugins.benchmarks.bench.cells import Cell, RunKey
from flashevolve_plugins.benchmarks.bench.served import Endpoint, run_served
from flashevolve_plugins.benchmarks.presets import PRESETS
from flashevolve_plugins.benchmarks.server import LatencyModel, ServerSettings, SimulatedServer

pytestmark = pytest.mark.filterwarnings("ignore")  # the hosts' own

SMALL = Cell(slots=4, val=6, calls=40, train=12)


@pytest.fixture(scope="module")
def endpoint():
    settings = ServerSettings(PRESETS["additive"].landscape(0), LatencyModel(time_scale=0))
    with SimulatedServer(settings) as server:
        yield Endpoint(server.base_url)


@pytest.fixture(autouse=True)
def leftovers():
    """Collect what the hosts leave open where their warnings are ignored."""
    yield
    asyncio.set_event_loop(None)
    gc.collect()


@pytest.mark.parametrize("rival", ["sequential", "independent-2/best", "gepa:pxn-2x2", "full"])
def test_a_run_is_measured_alike_whoever_makes_it(rival, endpoint):
    run = run_served(RunKey("server", SMALL, rival, 0), endpoint)
    assert run.curve[0].score == pytest.approx(0.25)
    assert run.sweeps == run.accepted + 1 == len(run.curve)
    assert run.curve[0].calls == SMALL.val
    assert run.requests >= run.metric_calls + run.proposals > run.metric_calls >= 30
    assert 0 < run.most_in_flight <= 2 * SMALL.slots
    assert run.tokens > 100 * run.metric_calls
    assert run.cpu_seconds > 0
    assert run.peak_mb > 10
    assert sum(run.stages.values()) == pytest.approx(1)
    assert {"validate", "rollout", "gate", "propose"} <= set(run.stages)
    assert (run.window_busy is not None) == (rival == "full")


def test_three_predictors_are_asked_and_told_apart(endpoint):
    del endpoint  # of another landscape: here only the number of requests counts
    settings = ServerSettings(PRESETS["components"].landscape(0), LatencyModel(time_scale=0))
    with SimulatedServer(settings) as server:
        run = run_served(
            RunKey("server", Cell("components", slots=4, val=6, calls=40, train=12), "sequential", 0),
            Endpoint(server.base_url),
        )
    assert run.requests > 3 * run.metric_calls
    assert run.curve[0].score == pytest.approx(0.25)


@pytest.mark.parametrize("rival", ["gepa:pxn-2x2", "full"])
def test_hosts_come_back_when_a_server_has_refused_them(rival):
    latency = LatencyModel(base_token_time=1e-4)  # long enough for four to be there at once on a slow machine
    settings = ServerSettings(PRESETS["additive"].landscape(0), latency, max_requests=3, retry_after=0.05)
    with SimulatedServer(settings) as server:
        run = run_served(RunKey("server", SMALL, rival, 0), Endpoint(server.base_url))
        figures = server.metrics()
    assert figures["simulated:requests_refused_total"] > 0
    assert figures["vllm:request_success_total"] == run.requests + 1  # none was given up; one to warm up
    assert run.curve[0].score == pytest.approx(0.25)


def test_gepas_own_adapter_refuses_a_program_of_several_components(endpoint):
    with pytest.raises(UsageError, match="has one component, this landscape more"):
        run_served(RunKey("server", Cell("components", val=6, calls=40), "gepa:sequential", 0), endpoint)


def test_a_server_without_figures_leaves_the_tokens_unknown():
    assert Endpoint("http://127.0.0.1:9/v1").tokens() is None
