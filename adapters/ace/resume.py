"""What a run keeps so that it can be taken up: the turns that are over, the playbook, and what the host was told."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._errors import UsageError
from flashevolve_plugins._whole_file import plain, write_whole

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flashevolve_plugins.adapters.ace.host import PlaybookHost, Turn

logger = logging.getLogger("flashevolve_plugins")

FILE = "flashevolve_ace.json"
SCHEMA = 1
OTHER = {
    "host": "another host",
    "turns": "another number of samples",
    "samples": "other samples",
    "options": "other options",
}
EVERY = 1.0  # seconds between two writings, at least
ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of an object that does not say what it is
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
        self._reported = False
        #: Numbers of the turns that are over.
        self.done: set[int] = set()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            kept = self._path.read_text(encoding="utf-8") if self._path.exists() else None
        except OSError as error:
            raise UsageError(
                f"run_dir={run_dir!r} cannot be used ({error.strerror}): name another directory."
            ) from error
        if kept is not None:
            self._take_up(kept, host)
        try:
            self._write(host)
        except OSError as error:
            raise UsageError(f"run_dir={run_dir!r} cannot be written ({error.strerror}): name another one.") from error

    def _take_up(self, kept: str, host: PlaybookHost) -> None:
        try:
            state = json.loads(kept)
            schema = state["schema"]
            if schema == SCHEMA:
                run, done, kept_state = dict(state["run"]), state["done"], dict(state["state"])
        except (ValueError, TypeError, KeyError) as error:
            raise UsageError(
                f"{str(self._path)!r} cannot be read as a run of ACE: move it away, then run again."
            ) from error
        if schema != SCHEMA:
            raise UsageError(
                f"{str(self._path)!r} has schema {schema}, and this version reads {SCHEMA}: install the version of "
                "flashevolve-plugins that wrote it."
            )
        differing = [what for what, value in self._fingerprint.items() if run.get(what) != value]
        if differing:
            raise UsageError(
                f"{str(self._path)!r} belongs to a run with {OTHER[differing[0]]}: name another directory, or move the "
                "file away to begin anew."
            )
        self.done = set(done)
        host.load(kept_state)
        logger.warning("Taking up %s: %s of %s samples are over.", self._path, len(self.done), len(host.turns))

    def note(self, turns: Iterable[Turn], host: PlaybookHost) -> None:
        """These are over."""
        self.done.update(turn.number for turn in turns)
        if time.monotonic() >= self._next:
            self.write(host)

    def write(self, host: PlaybookHost) -> None:
        """Write the file whole, or leave the old one. What cannot be written is told once, and the run goes on."""
        try:
            self._write(host)
        except (OSError, TypeError, ValueError) as error:
            if not self._reported:
                self._reported = True
                logger.warning(
                    "The run cannot be kept in %s (%s: %s). It goes on; this is said once.",
                    self._path,
                    type(error).__name__,
                    error,
                )

    def _write(self, host: PlaybookHost) -> None:
        began = time.monotonic()
        state = {"schema": SCHEMA, "run": self._fingerprint, "done": sorted(self.done), "state": host.dump()}
        try:
            text = json.dumps(state, ensure_ascii=False, default=plain)
            write_whole(self._path, text.encode("utf-8", "backslashreplace"))
        finally:
            self._next = time.monotonic() + max(EVERY, SHARE * (time.monotonic() - began))


def _fingerprint(host: PlaybookHost) -> dict[str, Any]:
    """What must be the same for a run to be taken up."""
    samples = "\n".join(repr(turn.sample) for turn in host.turns)
    return {
        "host": host.name,
        "turns": len(host.turns),
        "samples": _digest(ADDRESS.sub("", samples)),
        "options": _digest(repr(sorted(host.options.items()))),
    }


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
