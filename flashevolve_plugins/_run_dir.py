"""A run's directory: who may write in it, and that one run at a time does."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Self

LOCK = "flashevolve.lock"
BEAT_EVERY = 5.0  # seconds
DEAD_AFTER = 60.0  # seconds without a beat from another machine
THREAD_NAME = "flashevolve-lock"


def require_writable(run_dir: str) -> None:
    """Make the directory if it is not there, and write in it once.

    Raises:
        UsageError: that is not possible.
    """
    probe = Path(run_dir) / f".flashevolve-{os.getpid()}-{threading.get_ident()}"
    try:
        probe.parent.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise UsageError(
            f"run_dir={run_dir!r} cannot be written ({error.strerror}): make it writable, make room, or name another."
        ) from error


def require_trusted(run_dir: str, files: Iterable[str]) -> None:
    """Refuse to load what other users could have written: a host's state is a pickle, which runs code as it is loaded.

    Args:
        run_dir: the run's directory.
        files: names of files in it that are going to be loaded, where they exist.

    Raises:
        UsageError: names who may write what.
    """
    if os.name != "posix":
        return
    directory = Path(run_dir)
    present = [directory / name for name in files if (directory / name).exists()]
    for path in (directory, *present) if present else ():
        who = _strangers(path.stat())
        if who:
            raise UsageError(
                f"{str(path)!r} may be written by {who}, and loading a state of theirs would run their code: take "
                f"their right away (chmod go-w), or pass Flash(trust_run_dir=True) if you trust them."
            )


def _strangers(status: os.stat_result) -> str:
    """Who else than this user may write a file; empty if nobody."""
    if status.st_uid not in (os.geteuid(), 0):
        return "another user, who owns it"
    if status.st_mode & stat.S_IWOTH:
        return "every user"
    if status.st_mode & stat.S_IWGRP and status.st_gid not in (0, os.getegid()):
        return "its group"
    if status.st_mode & stat.S_IWGRP and _members(status.st_gid):
        return "other members of its group"
    return ""


def _members(group: int) -> list[str]:
    """Further members of a group; a user's own group has none."""
    import grp  # noqa: PLC0415 - posix alone has it
    import pwd  # noqa: PLC0415

    with suppress(KeyError):
        own = pwd.getpwuid(os.geteuid()).pw_name
        return [name for name in grp.getgrgid(group).gr_mem if name not in (own, "root")]
    return []


class Lock:
    """Held while a run writes in a directory. A file that says who, touched every few seconds.

    What a killed process left behind is taken over: on this machine once its process is gone, from another machine or
    container once it has not been touched for a minute.

    Args:
        run_dir: the directory, which exists.

    Raises:
        UsageError: another run holds it.
    """

    def __init__(self, run_dir: str) -> None:
        self._path = Path(run_dir) / LOCK
        pid = os.getpid()
        self._own = {"host": socket.gethostname(), "space": _space(), "pid": pid, "began": _began(pid)}
        self._over = threading.Event()
        while not self._take():
            holder, age = self._holder()
            if holder is not None and _lives(holder, age, self._own):
                raise UsageError(
                    f"run_dir={run_dir!r} is in use by process {holder.get('pid')} on {holder.get('host')}: wait for "
                    f"it, or name another directory (if that process is no run, delete {LOCK} in it)."
                )
            self._remove_stale(holder)
        self._thread = threading.Thread(target=self._beat, name=THREAD_NAME, daemon=True)
        self._thread.start()

    def _take(self) -> bool:
        """Write the file whole under a name of its own, and give it its name unless that is taken."""
        written = self._path.with_name(f"{LOCK}.{os.getpid()}-{id(self)}")
        try:
            written.write_text(json.dumps(self._own), encoding="utf-8")
            try:
                os.link(written, self._path)
            except FileExistsError:
                return False
            except OSError:  # a file system without links
                with self._path.open("x", encoding="utf-8") as file:
                    file.write(json.dumps(self._own))
        except FileExistsError:
            return False
        finally:
            written.unlink(missing_ok=True)
        return True

    def _holder(self) -> tuple[dict[str, Any] | None, float]:
        """Who holds it, and seconds since it was touched; ``None`` if it is gone or says nothing."""
        try:
            age = time.time() - self._path.stat().st_mtime
        except OSError:
            return None, 0.0
        return _said(self._path), age

    def _remove_stale(self, seen: dict[str, Any] | None) -> None:
        """Only one of several processes that find it stale moves it away; who moved a newer one puts it back."""
        stale = self._path.with_name(f"{LOCK}.stale-{os.getpid()}-{id(self)}")
        with suppress(OSError):
            self._path.rename(stale)
            if _said(stale) != seen:
                os.link(stale, self._path)
            stale.unlink()

    def _beat(self) -> None:
        while not self._over.wait(BEAT_EVERY):
            with suppress(OSError):
                os.utime(self._path)

    def release(self) -> None:
        """Give the directory back."""
        self._over.set()
        self._thread.join()
        holder, _ = self._holder()
        if holder == self._own:
            self._path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        """Held since it was made."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Give the directory back."""
        self.release()


def _said(path: Path) -> dict[str, Any] | None:
    """What a lock says of its holder; ``None`` if nothing."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return held if isinstance(held, dict) else None


def _lives(holder: dict[str, Any], age: float, own: dict[str, Any]) -> bool:
    if any(holder.get(name, own[name]) != own[name] for name in ("host", "space")):  # its number says nothing here
        return age < DEAD_AFTER
    pid = holder.get("pid")
    if not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    began = _began(pid)
    return began is None or holder.get("began") in (began, None)


def _space() -> str | None:
    """Where process numbers count: containers may share their host's name, and each counts from 1."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return None


def _began(pid: int) -> str | None:
    """When a process began, in the system's own ticks: a number that was given again tells another one."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None
