"""Ids that are drawn alike in two runs, and no thread left behind."""

import random
import threading
import uuid

import pytest


@pytest.fixture
def same_ids(monkeypatch):
    """Call it before each of two runs: both draw the same ids."""

    def begin(seed=0):
        drawn = random.Random(seed)
        monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=drawn.getrandbits(128)))

    return begin


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before]
    for thread in left:
        thread.join(5)
    assert not [thread.name for thread in left if thread.is_alive()]
