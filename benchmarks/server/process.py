"""A simulated server in a process of its own, for tests, demos and benchmarks."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import tempfile
from typing import IO, TYPE_CHECKING
from urllib.parse import urlsplit

from flashevolve_plugins.benchmarks.server.command import arguments
from flashevolve_plugins.benchmarks.server.metrics import parse_metrics
from flashevolve_plugins.benchmarks.server.settings import ServerSettings

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["ServerStartError", "SimulatedServer"]

_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv.pop(1))
from flashevolve_plugins.benchmarks.server.command import main
raise SystemExit(main(sys.argv[1:]))
"""
_PATIENCE = 10.0  # seconds, for a server that was told to stop and for an answer to ``metrics``


class ServerStartError(RuntimeError):
    """The server's process ended before it listened; the text says why."""


class SimulatedServer:
    """A context manager around ``flashevolve simulate-server`` in a child process.

    It listens when the context is entered. It ends with the context, and by itself when this process ends.

    Args:
        settings: what to serve; the defaults if None.
        port: on 127.0.0.1; 0 takes a free one.
    """

    def __init__(self, settings: ServerSettings | None = None, *, port: int = 0) -> None:
        """Start nothing yet."""
        self.settings = settings or ServerSettings()
        self._port = port
        self._child: subprocess.Popen[str] | None = None
        self._complaints: IO[str] | None = None
        self._base_url = ""

    def __enter__(self) -> Self:
        """Start the process and wait until it listens.

        Raises:
            ServerStartError: it ended instead.
        """
        path = json.dumps([str(entry) for entry in sys.path])
        command = [sys.executable, "-c", _PROGRAM, path, *arguments(self.settings, self._port), "--stop-with-stdin"]
        self._complaints = tempfile.TemporaryFile("w+")
        self._child = child = subprocess.Popen(  # noqa: S603 - our own program
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._complaints, text=True
        )
        line = child.stdout.readline() if child.stdout else ""
        if not line:
            child.communicate()
            self._complaints.seek(0)
            reason = self._complaints.read().strip()
            self.close()
            raise ServerStartError(reason or "The simulated server ended before it listened.")
        self._base_url = line.strip()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process."""
        self.close()

    @property
    def base_url(self) -> str:
        """The OpenAI base URL, ``http://127.0.0.1:PORT/v1``; empty before the context is entered."""
        return self._base_url

    @property
    def pid(self) -> int | None:
        """The id of the server's process while it runs."""
        return self._child.pid if self._child else None

    def metrics(self) -> dict[str, float]:
        """Return the numbers of ``GET /metrics``: by bare name (summed over labels) and by full series text.

        Raises:
            OSError: the server doesn't answer.
        """
        address = urlsplit(self._base_url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=_PATIENCE)
        try:
            connection.request("GET", "/metrics")
            return parse_metrics(connection.getresponse().read().decode())
        finally:
            connection.close()

    def kill(self) -> None:
        """Let the process die at once, as with ``kill -9``; does nothing if it has."""
        if self._child is not None:
            self._child.kill()
        self.close()

    def restart(self) -> None:
        """Serve again where it served before, after :meth:`kill` or :meth:`close`.

        Raises:
            ServerStartError: the process ended before it listened.
        """
        self._port = urlsplit(self._base_url).port or 0
        self.__enter__()

    def close(self) -> None:
        """End the process and wait for it; a second call does nothing."""
        child, self._child = self._child, None
        complaints, self._complaints = self._complaints, None
        if child is not None:
            child.terminate()
            try:
                child.communicate(timeout=_PATIENCE)
            except subprocess.TimeoutExpired:
                child.kill()
                child.communicate()
        if complaints is not None:
            complaints.close()
