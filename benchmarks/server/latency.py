"""How long requests take under continuous batching: a pure model, fed with times by hand."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

__all__ = ["LatencyModel", "OutputLengths", "Progress", "TokenClock"]


@dataclass(frozen=True)
class LatencyModel:
    """The speed of a simulated engine.

    Args:
        base_token_time: seconds per output token of a request that runs alone on an unloaded engine, 0 or more.
        half_batch: number of running requests at which a token takes twice ``base_token_time``, above 0.
        max_num_seqs: most requests that run at once; the others wait in the order they came.
        prefill_ratio: work of one prompt token, in output tokens, 0 or more.
        first_token: seconds before the first token of a request that runs alone, besides its prompt's, 0 or more.
        spread: standard deviation of the logarithm of what makes one request slower or faster than another, 0 or more.
        time_scale: factor on every duration, 0 or more; 0 answers at once.

    Raises:
        ValueError: a parameter is out of its range.
    """

    base_token_time: float = 0.01
    half_batch: float = 128.0
    max_num_seqs: int = 256
    prefill_ratio: float = 0.01
    first_token: float = 0.0
    spread: float = 0.0
    time_scale: float = 1.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("base_token_time", "prefill_ratio", "first_token", "spread", "time_scale"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                msg = f"{name} must be 0 or more, not {value}"
                raise ValueError(msg)
        if not (math.isfinite(self.half_batch) and self.half_batch > 0):
            msg = f"half_batch must be above 0, not {self.half_batch}"
            raise ValueError(msg)
        if self.max_num_seqs < 1:
            msg = f"max_num_seqs must be 1 or more, not {self.max_num_seqs}"
            raise ValueError(msg)

    def token_time(self, running: int) -> float:
        """Return the seconds one output token takes while ``running`` requests run."""
        return self.base_token_time * (1 + running / self.half_batch) * self.time_scale

    def tokens_per_second(self, requests: int) -> float:
        """Return the output tokens that all running requests together make in a second when so many were sent."""
        running = min(requests, self.max_num_seqs)
        return running / self.token_time(running)

    def draw_slowness(self, source: random.Random) -> float:
        """Return a factor on one request's work; its median is 1."""
        return math.exp(self.spread * source.gauss(0, 1)) if self.spread else 1.0

    def prefill(self, prompt_tokens: int) -> float:
        """Return the work before the first token, in output tokens."""
        waiting = self.first_token / self.base_token_time if self.base_token_time else 0.0
        return waiting + prompt_tokens * self.prefill_ratio


@dataclass(frozen=True)
class OutputLengths:
    """Output lengths in tokens: lognormal, cut at a maximum, with a given mean after the cut.

    Args:
        mean: mean length after the cut.
        sigma: standard deviation of the logarithm, 0 or more.
        maximum: longest output.
        share: of the variance of the logarithm, 0 to 1, that belongs to the example, alike whenever it is answered; the
            rest is drawn for each answer.

    Raises:
        ValueError: the mean is not within 1 and the maximum, sigma is negative, or the share is none.
    """

    mean: float = 699.0
    sigma: float = 1.0
    maximum: int = 6000
    share: float = 0.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 0 <= self.share <= 1:
            msg = f"the share must lie within 0 and 1: {self}"
            raise ValueError(msg)
        if not (1 <= self.mean <= self.maximum and 0 <= self.sigma < math.inf):
            msg = f"the mean must lie within 1 and the maximum, and sigma be 0 or more: {self}"
            raise ValueError(msg)

    def median(self) -> float:
        """Return the median of the uncut distribution at which the cut one has the wanted mean."""
        low, high = math.log(self.mean), math.log(self.mean)
        low -= self.sigma**2
        while self._cut_mean(high) < self.mean * (1 - 1e-12) and high < math.log(self.maximum) + 8 * self.sigma:
            high += 0.5
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if self._cut_mean(middle) < self.mean else (low, middle)
        return math.exp(high)

    def draw(self, source: random.Random, median: float, example: float | None = None) -> int:
        """Return one length, 1 or more.

        Args:
            source: of what is drawn for each answer.
            median: what ``median()`` returned.
            example: the example's own part, a normal number with mean 0 and deviation 1; ``None`` for no example.
        """
        deviation = source.gauss(0, 1)
        if self.share and example is not None:
            deviation = math.sqrt(1 - self.share) * deviation + math.sqrt(self.share) * example
        length = median * math.exp(self.sigma * deviation)
        return max(1, min(self.maximum, round(length)))

    def _cut_mean(self, mu: float) -> float:
        """Return the mean of min(X, maximum) for a lognormal X with location ``mu``."""
        cut = math.log(self.maximum)
        if self.sigma == 0:
            return math.exp(min(mu, cut))
        below = NormalDist().cdf((cut - mu - self.sigma**2) / self.sigma)
        above = 1 - NormalDist().cdf((cut - mu) / self.sigma)
        return math.exp(mu + self.sigma**2 / 2) * below + self.maximum * above


@dataclass(frozen=True)
class Progress:
    """A request has reached a mark.

    Args:
        key: the number ``TokenClock.submit`` returned.
        mark: 1 for the first mark.
        finished: whether this was the last mark.
        time: when it was reached, in seconds on the caller's clock.
    """

    key: int
    mark: int
    finished: bool
    time: float


@dataclass
class _Request:
    """Work of one request, in output tokens; ``start`` is the clock's work when it was admitted."""

    prefill: float
    output: float
    marks: int
    start: float = 0.0

    def point(self, mark: int) -> float:
        """Return the clock's work at which ``mark`` is reached."""
        return self.start + self.prefill + self.output * mark / self.marks


class TokenClock:
    """Exact times of all requests, at logarithmic cost per request and without polling.

    All running requests advance at the same rate, so one counter of work per request serves all of them: a
    request admitted at counter value w ends at w plus its own work, and only the rate of the counter depends
    on how many run.

    Args:
        model: the speeds.
        now: the caller's clock, in seconds, here and below; a time before the last one counts as the last one.
    """

    def __init__(self, model: LatencyModel, now: float = 0.0) -> None:
        """Start with nothing running."""
        self.model = model
        self.slot_seconds = 0.0
        self._time = now
        self._work = 0.0
        self._keys = 0
        self._running: dict[int, _Request] = {}
        self._waiting: OrderedDict[int, _Request] = OrderedDict()
        self._marks: list[tuple[float, int, int]] = []
        self._reached: list[Progress] = []

    @property
    def running(self) -> int:
        """Requests that hold a slot."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot."""
        return len(self._waiting)

    def submit(self, now: float, prompt_tokens: int, output_tokens: int, marks: int = 1, slowness: float = 1.0) -> int:
        """Add a request and return its key.

        Args:
            now: seconds.
            prompt_tokens: 0 or more.
            output_tokens: 1 or more.
            marks: at how many equal parts of the output ``advance`` reports progress; the last is the end.
            slowness: factor on the request's work, as ``LatencyModel.draw_slowness`` gives it.
        """
        self._run_to(now)
        self._keys += 1
        prefill = slowness * self.model.prefill(prompt_tokens)
        self._waiting[self._keys] = _Request(prefill, slowness * output_tokens, marks)
        self._admit()
        return self._keys

    def abort(self, now: float, key: int) -> bool:
        """Remove a request and free its slot at once; return whether it was still there."""
        self._run_to(now)
        if self._waiting.pop(key, None) is not None:
            return True
        if self._running.pop(key, None) is None:
            return False
        self._admit()
        return True

    def advance(self, now: float) -> list[Progress]:
        """Move to ``now`` and return what was reached since the last call, in order of time."""
        self._run_to(now)
        reached, self._reached = self._reached, []
        return reached

    def next_time(self) -> float | None:
        """Return when the next mark is reached if nothing is submitted or aborted before; None when idle."""
        if self._reached:
            return self._time
        while self._marks and self._marks[0][1] not in self._running:
            heapq.heappop(self._marks)
        if not self._marks:
            return None
        left = max(0.0, self._marks[0][0] - self._work)
        return self._time + left * self.model.token_time(len(self._running))

    def _run_to(self, now: float) -> None:
        """Pass every mark up to ``now`` at its exact time, then the rest of the time."""
        reached, self._reached = self._reached, []
        while (due := self.next_time()) is not None and due <= max(now, self._time):
            self._pass_time(due)
            self._work, key, mark = heapq.heappop(self._marks)
            request = self._running[key]
            finished = mark == request.marks
            reached.append(Progress(key, mark, finished, due))
            if finished:
                del self._running[key]
                self._admit()
            else:
                heapq.heappush(self._marks, (request.point(mark + 1), key, mark + 1))
        self._reached = reached
        rate = self.model.token_time(len(self._running))
        if self._running and rate > 0 and now > self._time:
            self._work += (now - self._time) / rate
        self._pass_time(now)

    def _pass_time(self, now: float) -> None:
        """Let the wall clock, but not the work, move on to ``now``."""
        if now > self._time:
            self.slot_seconds += len(self._running) * (now - self._time)
            self._time = now

    def _admit(self) -> None:
        """Give free slots to those who wait, in the order they came."""
        while self._waiting and len(self._running) < self.model.max_num_seqs:
            key, request = self._waiting.popitem(last=False)
            request.start = self._work
            self._running[key] = request
            heapq.heappush(self._marks, (request.point(1), key, 1))
