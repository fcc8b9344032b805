"""What the tests of the bench share."""

from __future__ import annotations

from typing import Any

import pytest

from flashevolve_plugins.benchmarks.bench.cells import Cell
from flashevolve_plugins.benchmarks.bench.record import Point, Record


def made_up(rival: str, seed: int, curve: list[tuple[float, int, float]], **changes: Any) -> Record:
    """Return a record whose run ends with its curve, unless told otherwise."""
    points = [Point(*point) for point in curve]
    values: dict[str, Any] = {
        "clock": "virtual",
        "cell": Cell(slots=2, val=10, calls=100),
        "rival": rival,
        "seed": seed,
        "seconds": points[-1].seconds,
        "metric_calls": points[-1].calls,
        "proposals": 4,
        "accepted": 2,
        "sweeps": 3,
        "requests": 110,
        "tokens": 6000,
        "busy": 0.5,
        "window_busy": None,
        "most_in_flight": 2,
        "best_validation": 0.5,
        "depth": 2,
        "curve": points,
        "stages": {"validate": 0.75, "gate": 0.25},
        "in_flight": [1.0, 1.0],
    }
    return Record(**(values | changes))


@pytest.fixture(scope="session")
def record() -> Any:
    """Return what makes a record."""
    return made_up


@pytest.fixture(scope="session")
def pair() -> list[Record]:
    """Return two seeds of a slow rival, and of one that is four times as fast and reaches its score in one of them."""
    slow = [(0.0, 10, 0.2), (60.0, 50, 0.4), (120.0, 100, 0.6)]
    return [
        made_up("sequential", 0, slow),
        made_up("sequential", 1, slow),
        made_up("full", 0, [(0.0, 10, 0.2), (20.0, 50, 0.6), (30.0, 90, 0.7)], window_busy=0.9, staleness={0: 1, 2: 3}),
        made_up("full", 1, [(0.0, 10, 0.2), (30.0, 90, 0.3)], window_busy=0.7, staleness={1: 1}),
    ]
