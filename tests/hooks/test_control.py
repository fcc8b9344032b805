"""Control policies: what they are made from, and the laws they keep, in virtual time."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from virtual_items import STAGES, make_limits, run_host, several
from worker_runs import LookingDriver, pipeline, two_resources

from flashevolve_plugins import Flash, PluginError, UnknownNameError, UsageError
from flashevolve_plugins._pool import Pool
from flashevolve_plugins._virtual import VirtualDriver
from flashevolve_plugins.hooks import Adaptive, ControlPolicy, Fixed, Full, Snapshot, Workers, hookimpl
from flashevolve_plugins.hooks.control import wishes
from flashevolve_plugins.hooks.manager import RunHooks
from flashevolve_plugins.testing import check_policy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flashevolve_plugins._model import Limits

PIPELINE = ("rollout", "propose", "gate", "validate")
REST = 10  # periods

# -- what they are made from ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (Fixed, r"Fixed\(\) has no workers: name at least one stage, as in Fixed\(propose=16, validate=8\)"),
        (lambda: Fixed(propose=0), r"Fixed\(propose=0\) must be a whole number of at least 1"),
        (lambda: Fixed(propose=True), r"Fixed\(propose=True\) must be a whole number of at least 1"),
        (lambda: Fixed(validate="8"), r"Fixed\(validate='8'\) must be a whole number of at least 1"),
        (lambda: Adaptive(period=0), r"Adaptive\(period=0\) must be a number of seconds above 0"),
        (lambda: Adaptive(period=float("inf")), r"Adaptive\(period=inf\) must be a number of seconds above 0"),
        (lambda: Adaptive(period="10"), r"Adaptive\(period='10'\) must be a number of seconds above 0"),
        (lambda: Adaptive(least=0), r"Adaptive\(least=0\) must be a whole number of at least 1"),
        (lambda: Adaptive(most={"gate": 0}), r"Adaptive\(most\['gate'\]=0\) must be a whole number of at least 1"),
        (lambda: Adaptive(least=5, most=4), "least=5, most=4.*: least must not be above most for every stage"),
        (lambda: Adaptive(least={"gate": 5}, most=4), "least must not be above most for gate"),
        (lambda: Flash(control="fixed"), r'control="fixed" does not say how many.*control=Fixed\(propose=16, vali'),
        (lambda: Flash(control="adaptve"), "Unknown control 'adaptve': known are 'adaptive', 'fixed', 'pull'"),
        (lambda: Flash(control=Adaptive), r"control=Adaptive is a class: write control=Adaptive\(...\)"),
        (lambda: Flash(control=8), r'control=8 must be "pull", "adaptive", Fixed\(...\) or another ControlPolicy'),
        (lambda: Flash(control="adaptive", lockstep=True), "control does not go with lockstep=True"),
    ],
)
def test_an_option_that_cannot_work_is_refused_in_one_sentence(make: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as refused:
        make()
    assert "\n" not in str(refused.value)


def test_an_unknown_control_is_an_unknown_name() -> None:
    with pytest.raises(UnknownNameError):
        Flash(control="push")


def test_pull_is_the_default_and_asks_nobody() -> None:
    assert Flash().control == "pull"
    assert Flash().open_hooks().control_period is None
    assert Flash(control="adaptive").open_hooks().control_period == 10
    assert Flash(control=Adaptive(period=2.5)).open_hooks().control_period == 2.5


@pytest.mark.parametrize(
    ("control", "named"), [(Fixed(propse=2), "Fixed"), (Adaptive(least={"propse": 2}), "Adaptive")]
)
def test_a_stage_that_the_run_does_not_have_is_told_before_anything_runs(control: ControlPolicy, named: str) -> None:
    sentence = f"{named} names the stage 'propse', which this run does not have: its stages are {', '.join(STAGES)}."
    with pytest.raises(UsageError) as refused:
        Flash(control=control, clock="virtual").open_driver(make_limits(2), pool=Pool())
    assert str(refused.value) == sentence


def test_every_policy_keeps_the_contract() -> None:
    for make in (Adaptive, lambda: Fixed(propose=2, validate=1), lambda: Adaptive(1.0, least=2, most={"gate": 3})):
        check_policy(make, seeds=range(5))


# -- plugins ----------------------------------------------------------------------------------------------------------


class Halves:
    """A third party's."""

    period = 5.0

    def __init__(self, raises_at: float = float("inf")) -> None:
        self.moments: list[float] = []
        self.raises_at = raises_at

    @hookimpl
    def flashevolve_control(self, snapshot: Snapshot) -> Workers | None:
        self.moments.append(snapshot.seconds)
        if snapshot.seconds >= self.raises_at:
            raise ZeroDivisionError("an odd one")
        return Workers({stage: max(1, most // 2) for stage, most in snapshot.workers.items() if most})


def test_a_plugin_is_asked_before_the_run_s_control_policy_and_with_its_own_period() -> None:
    plugin = Halves()
    driver = LookingDriver(two_resources(), RunHooks(Full(), [plugin], Fixed(gate=3)))
    assert driver.snapshot().workers == dict.fromkeys(STAGES)
    run_host(driver, several(30, pipeline(random.Random(1))))
    assert len(plugin.moments) > 5
    assert all(later - earlier >= 5 for earlier, later in pairwise(plugin.moments))


@pytest.mark.parametrize("period", [0, "1", True])
def test_a_period_that_is_none_is_refused_with_the_plugin(period: object) -> None:
    plugin = Halves()
    plugin.period = period  # type: ignore[assignment]
    with pytest.raises(UsageError, match=r"Plugin 'Halves#1' has period=.*: it must be a number of seconds above 0"):
        RunHooks(Full(), [plugin])


def test_a_plugin_that_raises_is_named_and_stops_the_run() -> None:
    hooks = RunHooks(Full(), [Halves(raises_at=20)])
    with (
        pytest.raises(PluginError, match=r"'Halves#1' raised in flashevolve_control for the run: Zero.*an odd one"),
        VirtualDriver(two_resources(), hooks) as driver,
    ):
        run_host(driver, pipeline(random.Random(1)))


def test_a_mistake_of_a_plugin_is_no_mistake_of_the_user() -> None:
    class Mistaken:
        @hookimpl
        def flashevolve_control(self) -> Workers:
            raise UsageError("mine")

    with pytest.raises(PluginError, match="Mistaken#2.*UsageError: mine"):
        VirtualDriver(two_resources(), RunHooks(Full(), [Mistaken()], Fixed(gate=1)))


# -- the rule ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        ({}, {}),
        ({"a": 0.0, "b": 0.0, "c": 5.0}, {}),
        ({"a": 4.0, "b": 4.0, "c": 2.0, "d": 8.0}, {}),
        ({"a": 4.0, "b": 4.0, "c": 1.9, "d": 8.1}, {"c": 1, "d": -1}),
    ],
)
def test_below_half_the_median_one_more_and_above_twice_one_fewer(
    rates: Mapping[str, float], said: Mapping[str, int]
) -> None:
    assert wishes(rates) == said


def after(
    seconds: float, finished: Mapping[str, int], waiting: Mapping[str, int], workers: Mapping[str, int | None]
) -> Snapshot:
    """All workers are at work."""
    at_work = {stage: most or 0 for stage, most in workers.items()}
    return Snapshot(seconds, {"task": 8}, {}, "task", waiting, {}, workers, at_work, finished)


def asked(
    policy: Adaptive, passed: Mapping[str, int], waiting: Mapping[str, int], periods: int
) -> list[dict[str, Any]]:
    """Ask about a load that stays as it is: what passes each stage in a period, and what waits there."""
    workers: dict[str, Any] = dict.fromkeys(passed)
    said = []
    for period in range(periods):
        finished = {stage: period * count for stage, count in passed.items()}
        workers = dict(policy.decide(after(10.0 * period, finished, waiting, workers)).most)
        said.append(workers)
    return said


def test_it_begins_with_half_the_slots_and_goes_on_as_the_rule_says() -> None:
    waiting = {"a": 0, "b": 0, "c": 9, "d": 0}
    first, *_, last = asked(Adaptive(), {"a": 8, "b": 8, "c": 2, "d": 20}, waiting, 30)
    assert first == {"a": 4, "b": 4, "c": 4, "d": 4}
    assert last == {"a": 4, "b": 4, "c": 8, "d": 1}
    *_, last = asked(Adaptive(least=2, most={"c": 6}), {"a": 8, "b": 8, "c": 2, "d": 20}, waiting, 30)
    assert last == {"a": 4, "b": 4, "c": 6, "d": 2}


def test_nothing_changes_where_a_worker_more_or_fewer_would_change_nothing() -> None:
    passed = {"a": 8, "b": 8, "c": 2, "d": 20}
    nothing = asked(Adaptive(), passed, dict.fromkeys(passed, 0), 30)
    assert nothing == [nothing[0]] * 30
    only_itself = asked(Adaptive(), {"a": 8, "b": 8, "d": 20}, {"a": 0, "b": 0, "d": 7}, 30)
    assert only_itself == [only_itself[0]] * 30


def test_a_stage_that_turns_back_does_so_when_it_has_rested_and_step_by_step() -> None:
    policy, workers, said = Adaptive(), dict[str, Any](dict.fromkeys("abc")), []
    passed = dict.fromkeys("abc", 0)
    for period in range(40):
        load = {"a": 8, "b": 8, "c": 1 if period < 4 else 300}  # starved at first, then far too fast
        snapshot = after(10.0 * period, passed, {"a": 5, "b": 0, "c": 5}, workers)
        workers = dict(policy.decide(snapshot).most)
        said.append(workers["c"])
        passed = {stage: count + load[stage] for stage, count in passed.items()}
    changes = [period for period, (before, now) in enumerate(pairwise(said), start=1) if before != now]
    assert (said[0], max(said), said[-1]) == (4, 8, 5)
    assert changes == [1, 2, 3, 4, 14, 24, 34]


def test_an_object_begins_anew_with_each_run() -> None:
    policy, load = Adaptive(), ({"a": 8, "b": 8, "c": 2}, {"a": 0, "b": 0, "c": 9}, 12)
    assert asked(policy, *load) == asked(policy, *load)


# -- laws, whatever happens -------------------------------------------------------------------------------------------


def wild(policy: Adaptive, seed: int, periods: int = 400) -> list[dict[str, int]]:
    """The workers over time where rates and queues are anything; a load for some periods, then another one."""
    rng = random.Random(seed)
    finished = dict.fromkeys(PIPELINE, 0)
    workers: dict[str, Any] = dict.fromkeys(PIPELINE)
    said = []
    for period in range(periods):
        if period % 40 == 0:
            load = {stage: rng.choice((0, 1, 3, 9)) for stage in PIPELINE}
        finished = {stage: count + rng.randint(0, 2 * load[stage]) for stage, count in finished.items()}
        waiting = {stage: rng.choice((0, 5)) for stage in PIPELINE}
        workers = dict(policy.decide(after(10.0 * period, finished, waiting, workers)).most)
        said.append(workers)
    return said


@pytest.mark.parametrize("seed", range(10))
def test_bounds_always_hold_and_no_stage_is_left_without_a_worker(seed: int) -> None:
    for workers in wild(Adaptive(), seed):
        assert all(1 <= count <= 8 for count in workers.values())
    bounds = {"gate": (2, 3), "validate": (4, 4)}
    least, most = ({stage: pair[index] for stage, pair in bounds.items()} for index in (0, 1))
    for workers in wild(Adaptive(least=least, most=most), seed):
        assert all(low <= workers[stage] <= high for stage, (low, high) in bounds.items())
        assert all(1 <= count <= 8 for count in workers.values())


def settled(said: list[dict[str, int]]) -> list[int]:
    """The periods of the changes since the counts came to rest: a stage turned back, or nothing changed for long."""
    ways: dict[str, int] = {}
    changes = [0]
    for period, (before, now) in enumerate(pairwise(said), start=1):
        moved = {stage: now[stage] - before[stage] for stage in now if now[stage] != before[stage]}
        assert all(abs(way) == 1 for way in moved.values()), "one worker at a time"
        if not moved:
            continue
        changes.append(period)
        if any(ways.get(stage, way) != way for stage, way in moved.items()) or changes[-1] - changes[-2] > REST:
            break
        ways.update(moved)
    start = changes[-1]
    return [period for period, (before, now) in enumerate(pairwise(said), start=1) if period >= start and before != now]


@pytest.mark.parametrize("seed", range(10))
def test_settled_counts_change_at_most_once_in_ten_periods_whatever_the_load(seed: int) -> None:
    said = wild(Adaptive(), seed)
    changes = settled(said)
    assert len(changes) > 3
    assert min(later - earlier for earlier, later in pairwise(changes)) >= REST
    for period in changes[1:]:
        assert sum(said[period][stage] != said[period - 1][stage] for stage in PIPELINE) == 1


# -- laws, in virtual time --------------------------------------------------------------------------------------------


class Noting(Adaptive):
    """Notes what it says."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.said: list[dict[str, int]] = []

    def decide(self, snapshot: Snapshot) -> Workers:
        workers = super().decide(snapshot)
        self.said.append({stage: most for stage, most in workers.most.items() if most})
        return workers


def run(policy: ControlPolicy, seed: int, limits: Limits, minutes: float, **load: Any) -> LookingDriver:
    body = pipeline(random.Random(seed), **load)
    driver = LookingDriver(limits, RunHooks(Full(), (), policy))
    run_host(driver, lambda number: body(number) if driver.now() < 60 * minutes else None)
    return driver


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_after_the_load_settles_counts_change_at_most_once_in_ten_periods(seed: int) -> None:
    policy = Noting()
    load = {"share": 0.9, "seconds": {"validate": 10.0}, "validation": 20}  # validations longer than some periods
    run(policy, seed, two_resources(8), 30, **load)
    changes = [period for period, pair in enumerate(pairwise(policy.said)) if pair[0] != pair[1]]
    late = [period for period in changes if period > len(policy.said) / 3]
    assert len(policy.said) > 150
    assert len(late) > 1
    assert min(later - earlier for earlier, later in pairwise(late)) >= REST


def test_the_rule_by_itself_does_not_come_to_rest() -> None:
    class Bare(ControlPolicy):
        """The paper's rule on the rates of the last period."""

        def __init__(self) -> None:
            self.workers = dict.fromkeys(PIPELINE, 4)
            self.passed = dict.fromkeys(PIPELINE, 0)
            self.said: list[dict[str, int]] = []

        def decide(self, snapshot: Snapshot) -> Workers:
            rates = {stage: float(snapshot.finished[stage] - self.passed[stage]) for stage in PIPELINE}
            self.passed = {stage: snapshot.finished[stage] for stage in PIPELINE}
            for stage, way in wishes(rates).items():
                self.workers[stage] = min(max(self.workers[stage] + way, 1), 8)
            self.said.append(dict(self.workers))
            return Workers(dict(self.workers))

    policy = Bare()
    run(policy, 0, two_resources(8), 30, share=0.9, validation=20)
    late = policy.said[len(policy.said) // 3 :]
    assert sum(before != now for before, now in pairwise(late)) > 2 * len(late) / REST


@pytest.mark.parametrize("slots", [4, 16])
@pytest.mark.parametrize("policy", [Adaptive(2.0, most=3), Adaptive(least=2, most=3), Fixed(rollout=1, validate=1)])
def test_a_stage_with_work_always_has_a_worker(policy: ControlPolicy, slots: int) -> None:
    seen = set()

    def look(run: LookingDriver) -> None:
        now = run.snapshot()
        for stage, samples in now.waiting.items():
            resource = "reflection" if stage == "propose" else "task"
            most = now.workers[stage]
            assert most is None or most >= 1
            if samples and now.busy[resource] < now.slots[resource]:
                assert now.at_work[stage] >= 1
                seen.add(stage)

    driver = LookingDriver(two_resources(slots), RunHooks(Full(), (), policy))
    driver.looks.append(look)
    run_host(driver, several(200, pipeline(random.Random(5))))
    assert seen
    assert driver.scheduler.done


def test_workers_over_time_are_in_the_snapshots_that_observers_get() -> None:
    seen: list[Snapshot] = []

    class Watcher:
        @hookimpl
        def flashevolve_snapshot(self, snapshot: Snapshot) -> None:
            seen.append(snapshot)

    policy = Noting(most=6)
    driver = VirtualDriver(two_resources(), RunHooks(Full(), [Watcher()], policy))
    body = pipeline(random.Random(2), 0.9, {"propose": 20.0})
    run_host(driver, lambda number: body(number) if driver.now() < 600 else None)
    told = [{stage: most for stage, most in each.workers.items() if most} for each in seen]
    assert {tuple(each.items()) for each in told} == {tuple(each.items()) for each in policy.said}
    assert len({tuple(each.items()) for each in told}) > 2
    assert max(each.at_work["propose"] for each in seen) > 1
