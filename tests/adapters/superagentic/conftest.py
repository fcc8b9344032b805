"""superagentic-metaharness. The environment ``metaharness`` has it."""

from importlib.util import find_spec

import pytest

if find_spec("metaharness") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def _plain_bootstrap(monkeypatch):
    """The host looks for twenty tools and asks git before each proposal; these tests need neither."""
    from metaharness import bootstrap

    monkeypatch.setattr(bootstrap, "_detect_tools", lambda names: {})
    monkeypatch.setattr(bootstrap, "which", lambda name: None)
