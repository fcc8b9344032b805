"""Runs in virtual time for tests of workers: a pipeline with two resources, and a driver that can be looked at."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from virtual_items import STAGES, Watching, make_stage

from flashevolve_plugins._model import Limits, Outcome, Terminal
from flashevolve_plugins._virtual import VirtualDriver

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flashevolve_plugins._bodies import Body
    from flashevolve_plugins._policies import Policies, Workers
    from flashevolve_plugins._snapshot import Snapshot

VALIDATION = 10


class Controlling(Watching):
    """Says how many workers there are, as often as asked; writes down when that was."""

    control_period: float | None = 10.0

    def __init__(self, decide: Callable[[Snapshot], Workers | None], max_staleness: int | None = None) -> None:
        super().__init__(max_staleness)
        self._decide = decide
        self.moments: list[float] = []

    def control(self, snapshot: Snapshot) -> Workers | None:
        self.moments.append(snapshot.seconds)
        return self._decide(snapshot)


class LookingDriver(VirtualDriver):
    """Writes down which sample starts when; whoever wants may look on before each step."""

    def __init__(self, limits: Limits, policies: Policies | None = None) -> None:
        self.trace: list[tuple[float, int, int, str]] = []
        self.looks: list[Callable[[LookingDriver], None]] = []
        super().__init__(limits, policies)

    def _begin_sample(self, item: int, index: int, stage: Any) -> None:
        self.trace.append((self.now(), item, index, stage.name))
        super()._begin_sample(item, index, stage)

    def _wait(self) -> Any:
        for look in self.looks:
            look(self)
        return super()._wait()


def two_resources(slots: int = 8, reflections: int = 8, **more: Any) -> Limits:
    return Limits(slots={"task": slots, "reflection": reflections}, stages=STAGES, entry="task", **more)


def pipeline(
    rng: random.Random, share: float = 0.4, seconds: Mapping[str, float] | None = None, validation: int = VALIDATION
) -> Callable[[int], Body]:
    """Items of four stages, of which a share is committed; ``seconds`` are the medians of a stage's samples."""

    def draw(stage: str) -> Callable[[], float]:
        median = (seconds or {}).get(stage, 2.0)
        return lambda: median * rng.lognormvariate(0, 0.6)

    def body(_: int) -> Body:
        yield make_stage("rollout", 3, draw("rollout"), then=3 + validation)
        yield make_stage("propose", 1, draw("propose"), cost=0, then=3 + validation, resource="reflection")
        yield make_stage("gate", 3, draw("gate"), then=validation)
        if rng.random() >= share:
            return Outcome(Terminal.REJECTED, "not better")
        yield make_stage("validate", validation, draw("validate"))
        return Outcome(Terminal.COMMITTED)

    return body
