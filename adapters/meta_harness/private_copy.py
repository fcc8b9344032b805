"""A proposer's private copy of an example, and what a session leaves in it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._whole_file import UNFINISHED, write_whole
from flashevolve_plugins.adapters.meta_harness.texts import tidy_output

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LEFT_OUT = (".venv", ".git", "logs", "jobs", "results", "__pycache__", "*.pyc", UNFINISHED)
OWN = ".flashevolve"  # the folder beside a host's files for what is not committed yet
AGENTS = "agents"


@dataclass
class PrivateCopy:
    """An example's folder with the state of one moment, for one proposer.

    Args:
        root: the folder that holds it, and nothing else.
        example: the example's folder in it.
        logs: the run's logs in it.
        before: the agents' files as they were.
    """

    root: Path
    example: Path
    logs: Path
    before: Mapping[str, bytes] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def put_log(self, name: str, data: bytes) -> None:
        """Write a file beside the run's logs whole, if the session is not over."""
        with self._lock:
            if self.logs.is_dir():
                write_whole(self.logs / name, data)

    def pending(self) -> list[dict[str, Any]]:
        """The candidates that the session names.

        Raises:
            ValueError: it names them in a way that cannot be read.
        """
        path = self.logs / "pending_eval.json"
        if not path.is_file():
            return []
        said = json.loads(path.read_text(encoding="utf-8"))
        candidates = said.get("candidates") if isinstance(said, dict) else None
        if not isinstance(candidates, list) or not all(isinstance(each, dict) for each in candidates):
            raise ValueError("pending_eval.json holds no list of candidates")
        return candidates

    def changed(self) -> dict[str, bytes]:
        """The agents' files that the session has written, by their paths under ``agents``."""
        after = files_of(self.example / AGENTS)
        return {name: data for name, data in after.items() if self.before.get(name) != data}

    def keep_sessions(self, target: Path) -> None:
        """Put the logs of the session beside the others', bounded and without secrets."""
        for session in sorted((self.logs / "claude_sessions").glob("*")):
            for path in session.rglob("*"):
                if path.is_file() and not path.is_symlink():
                    tidy_output(path)
            place, number = target / session.name, 1
            while place.exists():
                number += 1
                place = target / f"{session.name}_{number}"
            with suppress(OSError):
                shutil.copytree(session, place, symlinks=True)

    def remove(self) -> None:
        """The session is over."""
        with self._lock:
            shutil.rmtree(self.root, ignore_errors=True)


def make_copy(example: Path, logs: Path, jobs: Path | None) -> PrivateCopy:
    """Copy an example with what is committed.

    Args:
        example: the example's folder.
        logs: the run's logs; what of them is not committed stays out.
        jobs: the folder with the trials of the candidates, if the example has one: they are many and large, so the
            copy links to them.
    """
    root = Path(tempfile.mkdtemp(prefix="flashevolve-"))
    copied = root / example.name
    _copy_what_is_there(example, copied, *LEFT_OUT)
    place = copied / logs.relative_to(example)
    _copy_what_is_there(logs, place, OWN, "claude_sessions", "pending_eval.json", "flashevolve*", UNFINISHED)
    if jobs is not None and jobs.is_dir():
        trials = copied / jobs.relative_to(example)
        trials.mkdir(parents=True, exist_ok=True)
        for each in jobs.iterdir():
            if each.name != OWN:
                (trials / each.name).symlink_to(each)
    return PrivateCopy(root, copied, place, files_of(copied / AGENTS))


def _copy_what_is_there(source: Path, target: Path, *left_out: str) -> None:
    """Copy a folder in which others write meanwhile: what is gone before it was copied is no error.

    Raises:
        shutil.Error: something could not be copied that is still there.
    """
    try:
        shutil.copytree(source, target, ignore=shutil.ignore_patterns(*left_out), symlinks=True)
    except shutil.Error as error:
        if any(os.path.lexists(each) for each, *_ in error.args[0]):
            raise


def files_of(folder: Path, without: Sequence[str] = ()) -> dict[str, bytes]:
    """Every file below a folder but compiled ones, by its path in it. Links are not followed.

    Args:
        folder: the folder.
        without: names of folders that are left out.
    """
    found = {}
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__" and name not in without]
        for name in names:
            path = Path(parent) / name
            if path.is_file() and not path.is_symlink() and path.suffix != ".pyc":
                found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return found
