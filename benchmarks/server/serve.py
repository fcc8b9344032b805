"""Run the application under uvicorn until it is told to stop."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import uvicorn

from flashevolve_plugins.benchmarks.server.app import build_app

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from flashevolve_plugins.benchmarks.server.settings import ServerSettings

__all__ = ["serve"]

_KEEP_ALIVE = 3600  # seconds; a shorter one closes connections that a client's pool is about to use


class _Server(uvicorn.Server):
    """A server that says when it listens, and whose process survives the signal that stops it."""

    def __init__(self, config: uvicorn.Config, base_url: str) -> None:
        super().__init__(config)
        self._base_url = base_url

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then print the base URL."""
        await super().startup(sockets=sockets)
        sys.stdout.write(f"{self._base_url}\n")
        sys.stdout.flush()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGINT and SIGTERM without raising them again afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def serve(settings: ServerSettings, listener: socket.socket, base_url: str, *, stop_with_stdin: bool) -> None:
    """Serve until SIGINT, SIGTERM or, if asked for, the end of standard input.

    Args:
        settings: of the server.
        listener: a listening socket.
        base_url: printed, as one line, once requests are answered.
        stop_with_stdin: whether the end of standard input stops the server.
    """
    config = uvicorn.Config(
        build_app(settings),
        log_level="critical",
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=0,
    )
    server = _Server(config, base_url)
    if stop_with_stdin:
        threading.Thread(target=_stop_at_end, args=(server,), name="simulate-server-stdin", daemon=True).start()
    server.run(sockets=[listener])


def _stop_at_end(server: uvicorn.Server) -> None:
    """Read standard input to its end, unbuffered, so that leaving the process never waits for this thread."""
    while os.read(0, 1024):
        pass
    server.should_exit = True
