"""Control policies: how many items may be at work in each stage (paper, section on adaptive workflow control)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from math import inf
from statistics import median
from typing import TYPE_CHECKING, TypeAlias

from flashevolve_plugins._errors import UnknownNameError, UsageError
from flashevolve_plugins._policies import Workers
from flashevolve_plugins.hooks.specs import hookimpl
from flashevolve_plugins.hooks.staleness import require_count

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flashevolve_plugins._snapshot import Snapshot

PULL, ADAPTIVE, FIXED = "pull", "adaptive", "fixed"
PERIOD = 10.0  # seconds: some calls of a model
STARVED, OVERPRODUCING = 0.5, 2.0  # times the median production rate: one worker more, one fewer
AVERAGED = 10  # periods that a production rate is averaged over
REST = 10  # periods between two changes once the counts have settled

#: One number for every stage, or stage name to number.
PerStage: TypeAlias = "int | Mapping[str, int]"


class ControlPolicy(ABC):
    """Decides how many items may be at work in each stage.

    Called by the driver, on the thread that called the host, before the run's first sample and then once per
    :attr:`period`. Keep state in ``self``: hand a fresh one to each run.
    """

    #: Seconds of the driver's clock from one call to the next at least.
    period: float = PERIOD

    @abstractmethod
    def decide(self, snapshot: Snapshot) -> Workers | None:
        """Say how many workers each stage has from now on, or ``None`` for as many as before.

        Args:
            snapshot: the statistics now: ``workers``, ``at_work`` and ``finished`` by stage, and what waits.
        """

    @hookimpl
    def flashevolve_control(self, snapshot: Snapshot) -> Workers | None:
        """Answer the hook with :meth:`decide`."""
        return self.decide(snapshot)


class Fixed(ControlPolicy):
    """As many workers as you say, for as long as the run goes on.

    Args:
        workers: stage name to its workers, at least 1; the other stages may have any number.

    Raises:
        UsageError: no stage, or a number that cannot work.
    """

    period = inf

    def __init__(self, **workers: int) -> None:
        if not workers:
            raise UsageError("Fixed() has no workers: name at least one stage, as in Fixed(propose=16, validate=8).")
        self.workers = {stage: require_count("Fixed", stage, value, 1) for stage, value in workers.items()}

    def decide(self, snapshot: Snapshot) -> Workers:
        """The same numbers."""
        _require_stages("Fixed", self.workers, snapshot)
        return Workers(self.workers)


class Adaptive(ControlPolicy):
    """The paper's rate rule: below half the median production rate a stage gets one worker more, above twice one fewer.

    The rule by itself does not come to rest: the rates of a pipeline are those of its narrowest stage times the share
    of items that come so far, whatever the workers. Added are therefore:

    - rates are averaged over the last 10 periods, since a validation may take longer than one;
    - a worker more only where all are at work and something waits, a worker fewer only where something waits in
      another stage: elsewhere the number makes no difference, and would run to its bound;
    - the counts settle when a stage turns back, or nothing has changed for 10 periods. From then on one count changes
      at a time, that of the stage furthest from the median, and 10 periods lie between two changes.

    Every stage begins with half of ``most``.

    Args:
        period: seconds between two decisions.
        least: workers that a stage keeps, at least 1; for every stage, or by stage name.
        most: workers that a stage may have, for every stage, or by stage name. Default: the slots on which items begin.

    Raises:
        UsageError: an option that cannot work.
    """

    def __init__(self, period: float = PERIOD, least: PerStage = 1, most: PerStage | None = None) -> None:
        self.period = _require_seconds(period)
        self.least = _require_bound("least", least)
        self.most = most if most is None else _require_bound("most", most)
        named = [*(least if isinstance(least, Mapping) else ()), *(most if isinstance(most, Mapping) else ())]
        self._named = dict.fromkeys(named, 1)
        for stage in self._named or ("every stage",):
            if most is not None and _bound(self.least, stage, 1) > _bound(self.most, stage, inf):
                raise UsageError(f"Adaptive(least={least!r}, most={most!r}): least must not be above most for {stage}.")
        self._begin({}, 1)

    def _begin(self, stages: Iterable[str], slots: int) -> None:
        self._bounds = {}
        for stage in stages:
            least = int(_bound(self.least, stage, 1))
            self._bounds[stage] = (least, max(least, int(_bound(self.most, stage, slots))))
        self._workers = {stage: max(least, (most + 1) // 2) for stage, (least, most) in self._bounds.items()}
        self._seen: deque[tuple[float, Mapping[str, int]]] = deque(maxlen=AVERAGED + 1)
        self._ways: dict[str, int] = {}  # stage -> the way of its last change
        self._still = 0  # periods since the last change
        self._settled = False

    def decide(self, snapshot: Snapshot) -> Workers:
        """The rule on the rates of the last periods."""
        if not any(snapshot.finished.values()) or self._workers.keys() != snapshot.workers.keys():  # a run begins
            _require_stages("Adaptive", self._named, snapshot)
            self._begin(snapshot.workers, max(1, snapshot.slots.get(snapshot.entry, 1)))
        self._seen.append((snapshot.seconds, snapshot.finished))
        self._still += 1
        rates = self._rates(snapshot)
        ways = {stage: way for stage, way in wishes(rates).items() if self._counts(stage, way, snapshot)}
        self._change(ways, rates)
        return Workers(dict(self._workers))

    def _rates(self, snapshot: Snapshot) -> dict[str, float]:
        """Items per second that passed each stage, of the stages that the run makes use of."""
        (start, before), (end, after) = self._seen[0], self._seen[-1]
        if end <= start:
            return {}
        at_work, waiting = snapshot.at_work, snapshot.waiting
        used = [stage for stage, passed in after.items() if passed or at_work[stage] or waiting[stage]]
        return {stage: (after[stage] - before[stage]) / (end - start) for stage in used}

    def _counts(self, stage: str, way: int, snapshot: Snapshot) -> bool:
        """Whether a worker more or fewer is within the bounds and makes a difference."""
        least, most = self._bounds[stage]
        workers, waiting = self._workers[stage], snapshot.waiting
        if way > 0:
            return workers < most and snapshot.at_work[stage] >= workers and waiting[stage] > 0
        return workers > least and any(samples for other, samples in waiting.items() if other != stage)

    def _change(self, ways: Mapping[str, int], rates: Mapping[str, float]) -> None:
        """Take the steps that are wanted; once the counts have settled, one of them, and seldom."""
        turns = any(self._ways.get(stage, way) != way for stage, way in ways.items())
        self._settled = self._settled or turns or self._still > REST
        if not ways or (self._settled and self._still < REST):
            return
        if self._settled:
            middle = median(rates.values())
            furthest = max(ways, key=lambda stage: max(rates[stage], middle) / max(min(rates[stage], middle), 1e-9))
            ways = {furthest: ways[furthest]}
        for stage, way in ways.items():
            self._workers[stage] += way
        self._ways.update(ways)
        self._still = 0


def wishes(rates: Mapping[str, float]) -> dict[str, int]:
    """The paper's rule by itself: stage name to 1, one worker more, or -1, one fewer; the others are as they should be.

    Args:
        rates: stage name to the items per second that it produces.
    """
    middle = median(rates.values()) if rates else 0.0
    if middle == 0.0:  # nothing to compare with
        return {}
    more = {stage: 1 for stage, rate in rates.items() if rate < STARVED * middle}
    return more | {stage: -1 for stage, rate in rates.items() if rate > OVERPRODUCING * middle}


def control_policy(control: object) -> ControlPolicy | None:
    """The policy that ``Flash(control=...)`` stands for; ``None`` where every stage may have any number of workers.

    Raises:
        UsageError: it stands for none.
        UnknownNameError: a name that is not there.
    """
    if isinstance(control, ControlPolicy):
        return control
    if isinstance(control, type):
        raise UsageError(f"control={control.__name__} is a class: write control={control.__name__}(...).")
    if not isinstance(control, str):
        raise UsageError(f'control={control!r:.100} must be "pull", "adaptive", Fixed(...) or another ControlPolicy.')
    if control == FIXED:
        raise UsageError(
            'control="fixed" does not say how many workers: write control=Fixed(propose=16, validate=8), with Fixed '
            "from flashevolve_plugins.hooks and the stages of your run."
        )
    if control not in (PULL, ADAPTIVE):
        raise UnknownNameError("control", control, (PULL, ADAPTIVE, FIXED))
    return Adaptive() if control == ADAPTIVE else None


def _require_stages(policy: str, named: Mapping[str, int], snapshot: Snapshot) -> None:
    for stage in named:
        if stage not in snapshot.workers:
            raise UsageError(
                f"{policy} names the stage {stage!r}, which this run does not have: its stages are "
                f"{', '.join(snapshot.workers)}."
            )


def _require_seconds(period: object) -> float:
    if isinstance(period, bool) or not isinstance(period, (int, float)) or not 0 < period < inf:
        raise UsageError(f"Adaptive(period={period!r}) must be a number of seconds above 0.")
    return float(period)


def _require_bound(option: str, value: PerStage) -> PerStage:
    if not isinstance(value, Mapping):
        return require_count("Adaptive", option, value, 1)
    return {stage: require_count("Adaptive", f"{option}[{stage!r}]", each, 1) for stage, each in value.items()}


def _bound(bound: PerStage | None, stage: str, default: float) -> float:
    return default if bound is None else bound.get(stage, default) if isinstance(bound, Mapping) else bound
