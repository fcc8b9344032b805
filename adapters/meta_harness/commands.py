"""Runs one command to its end or its timeout, with what it prints bounded as it comes."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections import deque
from typing import TYPE_CHECKING

from flashevolve_plugins._whole_file import write_whole
from flashevolve_plugins.adapters.meta_harness.processes import signal_group
from flashevolve_plugins.adapters.meta_harness.texts import MOST_OUTPUT, without_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

TIMED_OUT = 124  # as both hosts say it
KILLED = 9
CHUNK = 65_536  # bytes
NOTHING = subprocess.DEVNULL


def run_command(  # noqa: PLR0913 - by name alone
    command: Sequence[str],
    *,
    cwd: Path,
    timeout: float,
    log: Path,
    environment: Mapping[str, str] | None = None,
    most: int = MOST_OUTPUT,
) -> int:
    """Run a command; call it inside a scope, with which everything that it started ends.

    Args:
        command: the command.
        cwd: where it runs.
        timeout: seconds.
        log: the file for what it prints, both ends of it where it is long.
        environment: instead of this process's.
        most: bytes of output that are kept.

    Returns:
        Its exit code; 124 where it timed out, 127 where there is no such command.
    """
    printed = _Ends(most)
    try:
        with subprocess.Popen(  # noqa: S603 - what the host runs
            list(command), cwd=cwd, env=environment, stdin=NOTHING, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            code = _follow(process, printed, time.monotonic() + timeout)
    except OSError as error:
        printed.add(f"{command[0]}: {error.strerror}\n".encode())
        code = 127
    write_whole(log, without_secrets(printed.text()).encode("utf-8", "replace"))
    return code


def _follow(process: subprocess.Popen[bytes], printed: _Ends, deadline: float) -> int:
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            ready = selector.select(min(0.1, max(0.0, deadline - time.monotonic())))
            data = os.read(process.stdout.fileno(), CHUNK) if ready else None
            if data:
                printed.add(data)
            elif data == b"" or process.poll() is not None:  # its children may hold the pipe: nobody waits for them
                break
        try:
            return process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            signal_group(process, KILLED)
            process.wait()
            return TIMED_OUT


class _Ends:
    """The first and the last bytes of what comes.

    Args:
        most: how many are kept, half of them of each end.
    """

    def __init__(self, most: int) -> None:
        self._half = most // 2
        self._first = bytearray()
        self._last: deque[bytes] = deque()
        self._kept = self._left_out = 0

    def add(self, data: bytes) -> None:
        """More has come."""
        room = self._half - len(self._first)
        self._first += data[: max(0, room)]
        rest = data[max(0, room) :]
        if rest:
            self._last.append(rest)
            self._kept += len(rest)
        while self._last and self._kept - len(self._last[0]) >= self._half:
            self._kept -= len(self._last[0])
            self._left_out += len(self._last.popleft())

    def text(self) -> str:
        """Both ends."""
        cut = f"\n[{self._left_out} bytes left out]\n".encode() if self._left_out else b""
        return (bytes(self._first) + cut + b"".join(self._last)).decode("utf-8", "replace")
