"""What the tests of the executor share."""

import pytest
from local_runs import PATIENCE

from flashevolve_plugins import _event_loop


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A coroutine that takes notice of its end is waited for, however busy the machine is."""
    monkeypatch.setattr(_event_loop, "CLOSE_SECONDS", PATIENCE)
