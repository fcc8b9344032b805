"""A server that does nothing but wait: every request is answered after some seconds, in the form of a chat completion.

It runs as a process of its own, so that its processor time is not the client's, and integrates its requests in flight.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from bisect import bisect_left
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

BACKLOG = 4096  # connections that wait to be accepted
STEP = 0.05  # seconds between two points of the integral
SPREAD = 0.5  # a latency lies between (1 - SPREAD) and (1 + SPREAD) times the mean, each as likely


class Stub:
    """The server's process, for the length of a ``with`` block.

    Args:
        latency: mean seconds of a request.
        answer: the text of every answer.
    """

    def __init__(self, latency: float, answer: str = "an answer") -> None:
        command = [sys.executable, "-m", "flashevolve_plugins.benchmarks.cost_stub", str(latency), answer]
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None  # noqa: S101 - asked for above
        self.port = int(self._process.stdout.readline())

    @property
    def url(self) -> str:
        """What clients call the base URL."""
        return f"http://127.0.0.1:{self.port}/v1"

    def request(self, method: str = "POST") -> Any:
        """Send one request on a connection of its own, and wait for the answer; ``GET`` asks for the integral."""
        connection = HTTPConnection("127.0.0.1", self.port)
        try:
            connection.request(method, "/v1/chat/completions", b"{}" if method == "POST" else None)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def in_flight(self, start: float, end: float) -> float:
        """Mean number of requests in flight between two moments of the monotonic clock."""
        moments, integral = self.request("GET")
        first, last = (min(bisect_left(moments, moment), len(moments) - 1) for moment in (start, end))
        return float((integral[last] - integral[first]) / (moments[last] - moments[first]))

    def __enter__(self) -> Self:
        """The server runs already."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


class _Server:
    def __init__(self, latency: float, answer: str) -> None:
        self._latency = latency
        message = {"role": "assistant", "content": answer}
        self.answer = {
            "id": "stub",
            "object": "chat.completion",
            "created": 0,
            "model": "none",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
        self._rng = random.Random(0)
        self._busy = 0
        self._moments, self._integral = [time.monotonic()], [0.0]
        self._at, self._sum = self._moments[0], 0.0

    def seconds(self) -> float:
        """Of the next request."""
        return self._latency * self._rng.uniform(1 - SPREAD, 1 + SPREAD)

    def change(self, by: int) -> None:
        """So many requests more are in flight."""
        now = time.monotonic()
        self._sum += self._busy * (now - self._at)
        self._at = now
        self._busy += by
        if now >= self._moments[-1] + STEP:
            self._moments.append(now)
            self._integral.append(self._sum)

    def integral(self) -> tuple[list[float], list[float]]:
        """Moments of the monotonic clock, and the requests in flight integrated up to each."""
        self.change(0)
        return self._moments, self._integral


class _Connection(asyncio.Protocol):
    def __init__(self, server: _Server) -> None:
        self._server = server
        self._received = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, blank, body = self._received.partition(b"\r\n\r\n")
        if not blank:
            return
        if head.startswith(b"GET"):
            self._reply(self._server.integral())
            return
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        if len(body) < length:
            return
        self._received = b""
        self._server.change(1)
        asyncio.get_running_loop().call_later(self._server.seconds(), self._answer)

    def _answer(self) -> None:
        self._server.change(-1)
        self._reply(self._server.answer)

    def _reply(self, content: Any) -> None:
        body = json.dumps(content).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)


async def _serve(latency: float, answer: str) -> None:
    loop, state = asyncio.get_running_loop(), _Server(latency, answer)
    server = await loop.create_server(lambda: _Connection(state), "127.0.0.1", 0, backlog=BACKLOG)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)  # until the parent ends


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1]), sys.argv[2]))
