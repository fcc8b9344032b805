"""How long a resource is left alone after failures of its server, and when it is given up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

    from flashevolve_plugins._failures import Failure

FIRST_DELAY = 0.5  # seconds, before the second try of a sample; doubled for each further one
LONGEST_DELAY = 20.0  # seconds
LEAST_FAILURES = 3  # in a row, and of as many samples if so many are under way, before a resource is given up
FIRST_OUTAGE = 10.0  # seconds, where nobody listens and nobody ever did in this run


@dataclass(eq=False)
class Governor:
    """What the failures of one resource mean for it. Times are seconds of the driver's clock.

    Args:
        resource: its name.
        max_outage: seconds without a success after which it is given up.
        random: for jitter.
        answered: whether anything has succeeded on it before.
    """

    resource: str
    max_outage: float
    random: Random
    answered: bool = False
    #: Before this moment nothing starts: the server has asked for it.
    not_before: float = 0.0
    #: Failures since the last success, the samples that they are of, the first one's moment, and the last one.
    failures: int = 0
    samples: set[tuple[int, int]] = field(default_factory=set)
    began: float | None = None
    last: Failure | None = None
    succeeded: float = float("-inf")
    #: Seconds of the outages that are over.
    over: float = 0.0

    def failed(self, now: float, sample: tuple[int, int], failure: Failure) -> None:
        """A try of a sample failed."""
        self.began = now if self.began is None else self.began
        self.failures += 1
        self.samples.add(sample)
        self.last = failure
        if failure.retry_after is not None:
            self.not_before = max(self.not_before, now + failure.retry_after)

    def success(self, now: float) -> None:
        """A sample has succeeded: whatever failed before is no outage of the server's any more."""
        self.over += self.outage(now)
        self.answered, self.succeeded = True, now
        self.failures, self.began = 0, None
        self.samples.clear()

    def outage(self, now: float) -> float:
        """Seconds since the first failure without a success; 0 where the last call succeeded."""
        return 0.0 if self.began is None else now - self.began

    @property
    def patience(self) -> float:
        """Seconds that an outage may last."""
        never = not self.answered and self.last is not None and self.last.refused
        return min(self.max_outage, FIRST_OUTAGE) if never else self.max_outage

    def hold(self, now: float) -> float:
        """Seconds for which nothing is to start, a little more for some so that not all come back at once."""
        wait = self.not_before - now
        return wait * (1 + self.random.random() / 4) if wait > 0 else 0.0

    def delay(self, now: float, tries: int) -> float:
        """Seconds before the next try of a sample that has failed so often."""
        longest = min(LONGEST_DELAY, max(FIRST_DELAY, self.patience / 4))
        backoff = min(longest, FIRST_DELAY * 2.0 ** min(tries - 1, 16))
        return max(self.hold(now), backoff * (0.5 + self.random.random() / 2))

    def hopeless(self, now: float, *, under_way: int, runs: bool, room: bool) -> bool:
        """Whether to give the resource up.

        Args:
            now: the moment.
            under_way: samples that hold its slots.
            runs: whether any of them runs, and does not wait for its next try.
            room: whether one could start, as far as calls that never returned have left slots.
        """
        if self.began is None or now < self.began + self.patience:
            return False
        if not runs and (self.not_before > now or not room):
            return True
        enough = min(LEAST_FAILURES, under_way)
        return self.failures >= LEAST_FAILURES and len(self.samples) >= enough
