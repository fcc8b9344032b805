"""A thousand requests in flight from one process: how full the slots stay, and what a request costs.

The requests are plain HTTP on a connection each, so that the client is cheap and what is left is ours. Through
``gepa.optimize`` they are made on a thread per slot, and without a host as coroutines on one thread.
"""

from __future__ import annotations

import asyncio
import resource
import threading
import time
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._local import LocalDriver
from flashevolve_plugins._model import Limits, Outcome, Sample, Stage, Terminal
from flashevolve_plugins.benchmarks.cost_figures import Figure
from flashevolve_plugins.benchmarks.cost_pool import ACCEPTED, MINIBATCH, Adapter, optimize
from flashevolve_plugins.benchmarks.cost_stub import Stub
from flashevolve_plugins.hooks import hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashevolve_plugins._bodies import Body
    from flashevolve_plugins._snapshot import Snapshot

SLOTS = 1_000
LATENCY = 5.0  # seconds, mean; the target is set for 10, so this asks for twice as many requests a second
REQUESTS = 8_000  # about, of each run
VALIDATION = 20  # examples
SAMPLES = 10  # of an item without a host


class Asking(Adapter):
    """Whose every example is a request.

    Args:
        stub: the server.
    """

    def __init__(self, stub: Stub) -> None:
        super().__init__(ACCEPTED)
        self._stub = stub

    def evaluate(self, batch: list[Any], candidate: dict[str, str], *, capture_traces: bool = False) -> Any:
        """Ask for every example of a batch, one after the other."""
        for _ in batch:
            self._stub.request()
        return super().evaluate(batch, candidate, capture_traces=capture_traces)


class Offers:
    """A stopper of the host's that ends a run after a number of offers.

    Args:
        count: of offers.
    """

    def __init__(self, count: int) -> None:
        self._left = count

    def __call__(self, state: Any) -> bool:
        """Whether the run is over; asked once per offer."""
        del state
        self._left -= 1
        return self._left < 0


class Threads:
    """A plugin that looks at the number of threads."""

    most = 0

    @hookimpl
    def flashevolve_snapshot(self, snapshot: Snapshot) -> None:
        """Look."""
        del snapshot
        self.most = max(self.most, threading.active_count())


def on_threads(stub: Stub, slots: int, requests: int) -> tuple[Snapshot, int]:
    """Requests through ``gepa.optimize``, each on a thread of its own.

    Args:
        stub: the server.
        slots: requests in flight.
        requests: how many in all, about.

    Returns:
        The last snapshot, and the most threads seen.
    """
    threads, offers = Threads(), Offers(int(requests / (2 * MINIBATCH + ACCEPTED * VALIDATION)))
    last = optimize(
        Asking(stub), slots=slots, clock="local", validation=VALIDATION, stop_callbacks=[offers], plugins=[threads]
    )
    return last, threads.most


def as_coroutines(stub: Stub, slots: int, requests: int) -> tuple[Snapshot, int]:
    """Requests without a host, each a coroutine on the event-loop thread.

    Args:
        stub: the server.
        slots: requests in flight.
        requests: how many in all, about.

    Returns:
        The last snapshot, and the threads at the end.
    """

    async def ask() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", stub.port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        body = await reader.readexactly(length)
        writer.close()
        return body

    def item() -> Body:
        yield Stage("rollout", tuple(Sample(ask, "task", asynchronous=True) for _ in range(SAMPLES)))
        return Outcome(Terminal.REJECTED, "not better")

    with LocalDriver(Limits(slots={"task": slots}, stages=("rollout",), entry="task")) as driver:
        driver.offer_from(lambda number: item() if number <= requests / SAMPLES else None)
        while (ended := driver.next_ended()) is not None:
            driver.recorded(ended)
        return driver.snapshot(), threading.active_count()


def _figures(how: str, run: Callable[[Stub, int, int], tuple[Snapshot, int]], *size: Any) -> list[Figure]:
    slots, latency, requests = size
    with Stub(latency) as stub:
        started, cpu = time.monotonic(), time.process_time()
        last, threads = run(stub, slots, requests)
        cpu = time.process_time() - cpu
        served = stub.in_flight(*(started + moment for moment in last.window))
    asked = last.samples["rollout"] + last.samples.get("gate", 0) + last.samples.get("validate", 0)
    name = f"{slots:,} requests in flight {how}, mean latency {latency:g} s, {asked:,} requests"
    return [
        Figure(f"{name}: busy share", last.window_busy["task"], at_least=0.9),
        Figure(f"{name}: busy share as the server saw it", served / slots, at_least=0.9),
        Figure(f"{name}: processor time per request, the client's included", 1e3 * cpu / asked, "ms"),
        Figure(f"{name}: threads", threads),
    ]


def measure(slots: int = SLOTS, latency: float = LATENCY, requests: int = REQUESTS) -> list[Figure]:
    """Busy share and processor time, on threads and as coroutines.

    Args:
        slots: requests in flight.
        latency: of the server, mean seconds.
        requests: of each run, about.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each request is a file descriptor
    return [
        *_figures("on threads, through gepa", on_threads, slots, latency, requests),
        *_figures("as coroutines", as_coroutines, slots, latency, requests),
    ]
