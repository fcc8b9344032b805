"""What the tests of the benchmarks share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from flashevolve_plugins.benchmarks import Landscape
from flashevolve_plugins.benchmarks.server import LatencyModel, ServerSettings, SimulatedServer

if TYPE_CHECKING:
    from collections.abc import Iterator

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no request for a price list


@pytest.fixture(scope="session")
def eager() -> Landscape:
    """Return a landscape whose reflections always learn something that is true."""
    return Landscape(seed=3, missed=0.0, wrong_name=0.0)


@pytest.fixture(scope="session")
def server(eager: Landscape) -> Iterator[SimulatedServer]:
    """Run a server that answers at once."""
    with SimulatedServer(ServerSettings(landscape=eager, latency=LatencyModel(time_scale=0))) as running:
        yield running
