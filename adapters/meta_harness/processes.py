"""Processes that a slot's work starts: a group of their own, which dies with that work, down to the last grandchild."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import uuid
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typing_extensions import Self

MARK = "FLASHEVOLVE_SCOPE"  # in the environment of every process of a scope
ROUNDS = 20  # of looking for processes that were started while others were killed
POSIX = os.name == "posix"

_scope: ContextVar[Scope | None] = ContextVar("flashevolve_scope", default=None)


class Scope:
    """One piece of work in a slot: what it starts ends with it.

    Args:
        prefix: goes before every command, a container's or a sandbox's.
        family: the run's scopes, for an end from outside.
    """

    def __init__(self, prefix: Sequence[str] = (), family: Family | None = None) -> None:
        self.prefix = tuple(prefix)
        self.mark = uuid.uuid4().hex
        self._family = family
        self._processes: list[subprocess.Popen[Any]] = []
        self._lock = threading.Lock()
        self._over = False

    def __enter__(self) -> Self:
        """Processes that this thread starts belong to the scope."""
        self._token = _scope.set(self)
        if self._family is not None:
            self._family.add(self)
        return self

    def __exit__(self, *exc: object) -> None:
        """End them all."""
        _scope.reset(self._token)
        if self._family is not None:
            self._family.remove(self)
        self.kill()

    def take(self, process: subprocess.Popen[Any]) -> None:
        """A process was started. If the scope is over, it ends at once."""
        with self._lock:
            self._processes.append(process)
            over = self._over
        if over:
            self.kill()

    def kill(self) -> None:
        """End every process of the scope, those included that have left its group."""
        with self._lock:
            self._over = True
            processes = list(self._processes)
        if not processes:
            return
        for process in processes:
            signal_group(process, _kill_signal())
        for _ in range(ROUNDS):
            if not _kill_marked(self.mark):
                return


class Family:
    """The scopes of one run that are open."""

    def __init__(self) -> None:
        self._scopes: set[Scope] = set()
        self._lock = threading.Lock()
        self._over = False

    def add(self, scope: Scope) -> None:
        """A scope begins."""
        with self._lock:
            self._scopes.add(scope)
            over = self._over
        if over:
            scope.kill()  # which ends at once what it starts

    def remove(self, scope: Scope) -> None:
        """A scope has ended."""
        with self._lock:
            self._scopes.discard(scope)

    def kill(self) -> None:
        """The run is over, and so is everything that it started."""
        with self._lock:
            self._over = True
            scopes = list(self._scopes)
        for scope in scopes:
            scope.kill()


def signal_group(process: subprocess.Popen[Any], number: int) -> None:
    """Send a signal to a process that has not been waited for, and to its group."""
    if process.returncode is None:  # else its number may be another's by now
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)


def _kill_signal() -> int:
    return signal.SIGKILL if POSIX else signal.SIGTERM


def _kill_marked(mark: str) -> int:
    """End the processes of this user that carry a mark, where the system shows them. How many there were."""
    wanted = f"{MARK}={mark}".encode()
    found = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
                found += 1
    return found


@contextmanager
def interrupts_later() -> Iterator[None]:
    """Hold back Ctrl-C and SIGTERM while the block runs: what it writes belongs together."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, Any]] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    held = {number: handler for number, handler in before.items() if callable(handler)}
    for number in held:
        signal.signal(number, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
    for sent, frame in came[:1]:
        held[signal.Signals(sent)](sent, frame)


class _Process(subprocess.Popen):  # type: ignore[type-arg]
    """A process that belongs to the scope of the thread that starts it, if it has one."""

    def __init__(self, args: Any, *more: Any, **options: Any) -> None:
        scope = self._flashevolve_scope = _scope.get()
        if scope is not None:
            options["env"] = {**(os.environ if options.get("env") is None else options["env"]), MARK: scope.mark}
            options["start_new_session"] = True
            if scope.prefix:
                args = [*scope.prefix, *_plain(args, options)]
        super().__init__(args, *more, **options)
        if scope is not None:
            scope.take(self)

    def send_signal(self, sig: int) -> None:
        """Reach the whole group: what a host ends after its timeout has children."""
        if self._flashevolve_scope is None:
            super().send_signal(sig)
        else:
            self.poll()
            signal_group(self, sig)


def _plain(args: Any, options: dict[str, Any]) -> list[Any]:
    """A command as a list that needs no shell around it."""
    if options.pop("shell", False):
        return ["/bin/sh", "-c", *([args] if isinstance(args, (str, bytes)) else args)]
    return [args] if isinstance(args, (str, bytes, os.PathLike)) else list(args)


_users = [0]
_users_lock = threading.Lock()
_Original = subprocess.Popen


@contextmanager
def scoped_processes() -> Iterator[Family]:
    """While the block runs, what a scope's thread starts with ``subprocess`` belongs to that scope.

    Nothing changes for other threads. On a system without process groups nothing changes at all.
    """
    family = Family()
    with _users_lock:
        _users[0] += 1
        if POSIX:
            subprocess.Popen = _Process  # type: ignore[misc]
    try:
        yield family
    finally:
        family.kill()
        with _users_lock:
            _users[0] -= 1
            if not _users[0]:
                subprocess.Popen = _Original  # type: ignore[misc]
