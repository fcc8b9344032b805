"""ace-playbook, which imports as ``ace`` like two other packages. The environment ``ace`` has it."""

import random
import uuid
from importlib.util import find_spec

import pytest

if find_spec("ace") is None or find_spec("ace.playbook") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def same_ids(monkeypatch):
    """Call it before each of two runs: both draw the same ids."""

    def begin(seed=0):
        drawn = random.Random(seed)
        monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=drawn.getrandbits(128)))

    return begin
