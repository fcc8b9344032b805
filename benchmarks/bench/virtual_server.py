"""A simulated server on a virtual clock, and the driver whose samples are requests to it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flashevolve_plugins import Flash
from flashevolve_plugins._driver import Driver
from flashevolve_plugins._errors import FlashEvolveError
from flashevolve_plugins.benchmarks.bench.observer import Gauge
from flashevolve_plugins.benchmarks.server.latency import TokenClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from flashevolve_plugins._calls import End
    from flashevolve_plugins._model import Limits, Sample
    from flashevolve_plugins._policies import Policies
    from flashevolve_plugins._pool import Pool
    from flashevolve_plugins.benchmarks.server.latency import LatencyModel


@dataclass(frozen=True)
class Request:
    """One request.

    Args:
        prompt: tokens.
        output: tokens.
        slowness: factor on its work.
    """

    prompt: int
    output: int
    slowness: float = 1.0


@dataclass(frozen=True)
class Crew:
    """Threads that share jobs; each takes the next job when it is done with one.

    Args:
        threads: how many, 1 or more.
        jobs: each is requests that follow one another.
    """

    threads: int
    jobs: Sequence[Sequence[Request]]


class VirtualServer:
    """Answers in virtual time, at the speed that the number of running requests leaves.

    Args:
        model: the speeds; the same token clock as the simulated server's decides.
    """

    def __init__(self, model: LatencyModel) -> None:
        self.now = 0.0
        self.tokens = 0
        self.work = 0.0
        self.model = model
        self._clock = TokenClock(model)
        self._answered: dict[int, Callable[[], None]] = {}
        self.gauge = Gauge(lambda: self.now)

    def send(self, request: Request, answered: Callable[[], None]) -> None:
        """Send a request; ``answered`` is called at the moment at which it is answered."""
        key = self._clock.submit(self.now, request.prompt, request.output, slowness=request.slowness)
        self._answered[key] = answered
        self.gauge.change(1)
        self.tokens += request.prompt + request.output
        self.work += request.slowness * (self.model.prefill(request.prompt) + request.output)

    def lost(self, slots: int, begin: float, end: float) -> float:
        """Seconds of a time beyond those that the work done in it takes with ``slots`` requests running."""
        full = self.model.tokens_per_second(slots)
        return self.gauge.integral(lambda running: 1 - self.model.tokens_per_second(running) / full, begin, end)

    def step(self) -> None:
        """Let time pass until a request is answered.

        Raises:
            FlashEvolveError: none is under way.
        """
        due = self._clock.next_time()
        if due is None:
            raise FlashEvolveError("No request is under way in virtual time, and the run is not over.")
        for progress in self._clock.advance(due):
            self.now = max(self.now, progress.time)
            self.gauge.change(-1)
            self._answered.pop(progress.key)()


class Started:
    """A sample under way: its crews at work."""

    def __init__(self, server: VirtualServer, crews: Sequence[Crew], done: Callable[[], None]) -> None:
        self._server = server
        self._done = done
        starts = [iter(crew.jobs) for crew in crews]
        threads = [jobs for jobs, crew in zip(starts, crews, strict=True) for _ in crew.jobs[: crew.threads]]
        self._threads = len(threads)
        for jobs in threads:
            self._go_on(iter(()), jobs)
        if not threads:
            done()

    def _go_on(self, job: Iterator[Request], jobs: Iterator[Sequence[Request]]) -> None:
        """One thread sends its job's next request, or takes the next job."""
        request = next(job, None)
        while request is None:
            following = next(jobs, None)
            if following is None:
                self._threads -= 1
                if not self._threads:
                    self._done()
                return
            job = iter(following)
            request = next(job, None)
        self._server.send(request, lambda: self._go_on(job, jobs))


class ServerDriver(Driver):
    """Runs samples in virtual time, on the caller's thread.

    What a sample asks of the server, its crews, stands where other drivers read its ``seconds``.

    Args:
        server: whom the samples ask.
        limits: see :class:`Driver`, as everything below.
        policies: who decides.
        pool: the pool.
        spent: metric calls already spent.
    """

    def __init__(
        self, server: VirtualServer, limits: Limits, policies: Policies, *, pool: Pool, spent: int = 0
    ) -> None:
        self._server = server
        super().__init__(limits, policies, pool=pool, spent=spent)

    def _prepare(self) -> None:
        self._done: deque[tuple[int, int, Sample, float]] = deque()

    def now(self) -> float:
        """Virtual seconds."""
        return self._server.now

    def _start(self, item: int, index: int, sample: Sample) -> None:
        crews: Any = () if sample.seconds is None else sample.seconds()
        started = (item, index, sample, self._server.now)
        Started(self._server, crews, lambda: self._done.append(started))

    def _wait(self) -> End | None:
        while not self._done:
            if self._server.now >= self.due():
                return None
            self._server.step()
        item, index, sample, began = self._done.popleft()
        seconds = self._server.now - began
        try:
            return item, index, sample.call(), None, seconds
        except Exception as error:  # noqa: BLE001 - told to the Scheduler as the local driver does
            return item, index, None, error, seconds

    def close(self) -> None:
        """Nothing is held."""


@dataclass(eq=False)
class VirtualFlash(Flash):
    """A ``Flash`` whose runs take place on a virtual server.

    Args:
        server: the server.
    """

    server: VirtualServer | None = None

    def open_driver(self, limits: Limits, *, pool: Pool, spent: int = 0, speculate: bool = False) -> Driver:
        """A driver for one run, with fresh policies."""
        assert self.server is not None  # noqa: S101 - given where this is made
        return ServerDriver(self.server, limits, self.open_hooks(speculate=speculate), pool=pool, spent=spent)
