"""Waiting for what other processes do: they set no event here, so it is asked for again and again, with pauses."""

import time
from pathlib import Path

PATIENCE = 60.0


def until(holds, fails=lambda: None):
    """Wait until something holds.

    Args:
        holds: asked until it says so.
        fails: asked as often; what it returns, if anything, is why that will never be.
    """
    end = time.monotonic() + PATIENCE
    while not holds():
        assert not (why := fails()), why
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.01)


def pids_in(folder):
    """The numbers of the processes that wrote them below a folder; a number that is being written is none yet."""
    return [int(text) for path in folder.rglob("*.pid") if (text := path.read_text()).endswith("\n")]


def lives(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def gone(folder, *, least=1):
    """Wait until none of the processes that wrote their numbers lives, of which there are that many at least."""
    pids = pids_in(folder)
    assert len(pids) >= least
    until(lambda: not any(map(lives, pids)))
    return pids
