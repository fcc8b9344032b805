"""The executor alone, in virtual time: items that do nothing, so that every microsecond is ours."""

from __future__ import annotations

import cProfile
import random
import time
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING

from flashevolve_plugins._model import Limits, Outcome, PoolEntry, Sample, Stage, Terminal
from flashevolve_plugins._virtual import VirtualDriver
from flashevolve_plugins.benchmarks.cost_figures import Figure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flashevolve_plugins._bodies import Body

STAGES = ("rollout", "propose", "gate", "validate")
MINIBATCH = 3
ACCEPTED = 0.25  # of the items
MEAN_SECONDS = 7.0  # of a request: 700 tokens at 100 a second
SPREAD = 0.8  # standard deviation of the logarithm of a request's seconds
SIZES = (100, 1_000, 5_000, 20_000)  # items of the curve
MANY_SLOTS = 10_000
RUN_SLOTS = 256
RUN_MINUTES = 180


@dataclass(frozen=True)
class Cost:
    """What one run took.

    Args:
        samples: how many ended.
        cpu_seconds: processor time.
        seconds: virtual time.
    """

    samples: int
    cpu_seconds: float
    seconds: float

    @property
    def per_sample(self) -> float:
        """Microseconds of processor time."""
        return 1e6 * self.cpu_seconds / self.samples


def run(items: float, slots: int, *, validation: int, until: float = float("inf"), seed: int = 0) -> Cost:
    """Run items that do nothing.

    Args:
        items: how many at most.
        slots: of the task resource and of the reflection resource.
        validation: examples of a validation.
        until: virtual seconds after which none is offered.
        seed: of durations and of what is accepted.
    """
    rng = random.Random(seed)
    drawn = [MEAN_SECONDS * rng.lognormvariate(-SPREAD * SPREAD / 2, SPREAD) for _ in range(10_007)]
    accepted = cycle([rng.random() < ACCEPTED for _ in range(1_009)])
    limits = Limits(
        slots={"task": slots, "reflection": slots},
        stages=STAGES,
        entry="task",
        budget=10**9,
        offer_cost=2 * MINIBATCH + validation,
    )
    driver = VirtualDriver(limits)
    seconds = cycle(drawn).__next__

    def source(number: int) -> Body | None:
        return _body(seconds, validation if next(accepted) else 0) if number <= items and driver.now() < until else None

    before = time.process_time()
    driver.offer_from(source)
    while (ended := driver.next_ended()) is not None:
        committed = ended.record.terminal is Terminal.COMMITTED
        driver.recorded(ended, [PoolEntry(driver.pool.version + 1, None, 0.0, item=ended.number)] if committed else ())
    cpu = time.process_time() - before
    return Cost(sum(driver.snapshot().samples.values()), cpu, driver.now())


def _body(seconds: Callable[[], float], validation: int) -> Body:
    def stage(name: str, examples: int, then: int, resource: str = "task", cost: int = 1) -> Stage:
        sample = partial(Sample, int, resource, cost=cost, seconds=seconds)
        return Stage(name, tuple(sample() for _ in range(examples)), then=then, commits=name == "validate")

    yield stage("rollout", MINIBATCH, MINIBATCH + validation)
    yield stage("propose", 1, MINIBATCH + validation, "reflection", 0)
    yield stage("gate", MINIBATCH, validation)
    if not validation:
        return Outcome(Terminal.REJECTED, "not better")
    yield stage("validate", validation, 0)
    return Outcome(Terminal.COMMITTED)


def _calls(items: int, slots: int) -> float:
    profile = cProfile.Profile()
    cost = profile.runcall(run, items, slots, validation=20)
    return sum(each.callcount for each in profile.getstats()) / cost.samples


def measure(sizes: Sequence[int] = SIZES, slots: int = MANY_SLOTS, minutes: float = RUN_MINUTES) -> list[Figure]:
    """The curve over the number of items, and a long run.

    Args:
        sizes: at least three numbers of items, smallest first; function calls are counted at two in the middle.
        slots: of the curve.
        minutes: virtual, of the long run.
    """
    figures = []
    for items in sizes:
        tries = [run(items, slots, validation=20) for _ in range(min(10, max(1, 3_000 // items)))]
        cost = min(each.per_sample for each in tries)
        figures.append(Figure(f"virtual time, {slots:,} slots, {items:,} items: processor time per sample", cost, "us"))
    few, many = _calls(sizes[1], slots), _calls(sizes[-2], slots)
    figures.append(Figure(f"the same, {sizes[1]:,} items: function calls per sample", few))
    figures.append(Figure(f"the same, {sizes[-2]:,} items: function calls per sample", many, at_most=1.1 * few))
    long = run(float("inf"), RUN_SLOTS, validation=100, until=60 * minutes)
    name = f"virtual time, {minutes:g} minutes at {RUN_SLOTS} slots, {long.samples:,} samples: processor time"
    figures.append(Figure(name, long.cpu_seconds, "s", at_most=10.0))
    return figures
