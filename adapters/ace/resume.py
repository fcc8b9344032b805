"""What a run keeps so that it can be taken up: the turns that are over, the playbook, and what the host was told."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._errors import UsageError

if TYPE_CHECKING:
    from flashevolve_plugins.adapters.ace.host import PlaybookHost, Turn

FILE = "flashevolve_ace.json"
SCHEMA = 1
EVERY = 1.0  # seconds between two writings, at least
SHARE = 20  # and so many times as long as a writing takes


class StateFile:
    """One file in the run's directory, written anew about once a second.

    Args:
        run_dir: the directory; made if it is not there.
        host: the run, as it is about to begin; it takes up what the file holds.

    Raises:
        UsageError: the file belongs to another run, or cannot be read.
    """

    def __init__(self, run_dir: str, host: PlaybookHost) -> None:
        self._path = Path(run_dir) / FILE
        self._fingerprint = _fingerprint(host)
        self._next = 0.0
        #: Numbers of the turns that are over.
        self.done: set[int] = set()
        #: Of these, how many gave nothing.
        self.failed = 0
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            kept = self._path.read_text(encoding="utf-8") if self._path.exists() else None
        except OSError as error:
            raise UsageError(
                f"run_dir={run_dir!r} cannot be used ({error.strerror}): name another directory."
            ) from error
        if kept is not None:
            self._take_up(kept, host)

    def _take_up(self, kept: str, host: PlaybookHost) -> None:
        try:
            state = json.loads(kept)
            schema = state["schema"]
        except (ValueError, TypeError, KeyError) as error:
            raise UsageError(
                f"{str(self._path)!r} cannot be read as a run of ACE: move it away, then run again."
            ) from error
        if schema != SCHEMA:
            raise UsageError(
                f"{str(self._path)!r} has schema {schema}, and this version reads {SCHEMA}: install the version of "
                "flashevolve-plugins that wrote it."
            )
        for what, value in self._fingerprint.items():
            if state["run"].get(what) != value:
                raise UsageError(
                    f"{str(self._path)!r} belongs to a run with another {what}: name another run_dir, or move the file "
                    "away to begin anew."
                )
        self.done, self.failed = set(state["done"]), state["failed"]
        host.load(state["state"])

    def note(self, turn: Turn, host: PlaybookHost, *, told: bool) -> None:
        """A turn is over; ``told`` is false if it gave nothing."""
        self.done.add(turn.number)
        self.failed += not told
        if time.monotonic() >= self._next:
            self.write(host)

    def write(self, host: PlaybookHost) -> None:
        """Write the file whole, or leave the old one."""
        began = time.monotonic()
        state = {
            "schema": SCHEMA,
            "run": self._fingerprint,
            "done": sorted(self.done),
            "failed": self.failed,
            "state": host.dump(),
        }
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(state, ensure_ascii=False), encoding="utf-8", errors="backslashreplace")
        new.replace(self._path)
        took = time.monotonic() - began
        self._next = time.monotonic() + max(EVERY, SHARE * took)


def _fingerprint(host: PlaybookHost) -> dict[str, Any]:
    """What must be the same for a run to be taken up."""
    samples = hashlib.sha256("\n".join(repr(turn.sample) for turn in host.turns).encode("utf-8", "replace"))
    return {"host": host.name, "number of turns": len(host.turns), "samples": samples.hexdigest()[:16]}
