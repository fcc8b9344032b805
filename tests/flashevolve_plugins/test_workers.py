"""Workers: how many items may be at work in a stage, in virtual time."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from virtual_items import Watching, make_limits, make_stage, one_second, run_host, several
from worker_runs import Controlling, LookingDriver, pipeline, two_resources

from flashevolve_plugins import PluginError, UsageError
from flashevolve_plugins import _events as ev
from flashevolve_plugins._model import Outcome, Terminal
from flashevolve_plugins._policies import Workers
from flashevolve_plugins._scheduler import Scheduler

if TYPE_CHECKING:
    from flashevolve_plugins._bodies import Body
    from flashevolve_plugins._snapshot import Snapshot


def only(**most: int | None) -> Controlling:
    return Controlling(lambda _: Workers(most))


def two_stages(number: int) -> Body:
    """A rollout of a second; a validation of one second, one second and as many as 4 times its number."""
    yield make_stage("rollout", 1, one_second)
    seconds = iter((1.0, 1.0, 4.0 * number))
    yield make_stage("validate", 3, lambda: next(seconds))
    return Outcome(Terminal.COMMITTED)


def test_a_worker_has_one_item_until_the_last_of_its_samples_has_ended() -> None:
    driver = LookingDriver(make_limits(4), only(validate=1))
    records = run_host(driver, several(3, two_stages))
    starts = {
        item: [moment for moment, each, _, stage in driver.trace if (each, stage) == (item, "validate")]
        for item in (1, 2, 3)
    }
    # The first validates from 1 to 5, the second from 5 to 13, the third from 13 to 25: samples of one side by side.
    assert starts == {1: [1, 1, 1], 2: [5, 5, 5], 3: [13, 13, 13]}
    assert [record.ended for record in records] == [5, 13, 25]


def test_who_waits_for_a_worker_keeps_no_slot_from_other_stages() -> None:
    driver = LookingDriver(make_limits(4), only(validate=1))
    run_host(driver, several(3, two_stages))
    rollouts = [moment for moment, _, _, stage in driver.trace if stage == "rollout"]
    assert rollouts == [0, 0, 0]
    free = LookingDriver(make_limits(4))
    run_host(free, several(3, two_stages))
    assert free.now() < driver.now()


def test_an_item_at_work_gets_its_slots_while_older_items_wait_for_a_worker() -> None:
    def body(number: int) -> Body:
        yield make_stage("rollout", 1, lambda: {1: 3.0, 2: 1.0}.get(number, 9.0))
        yield make_stage("validate", 6, one_second)
        return Outcome(Terminal.COMMITTED)

    driver = LookingDriver(make_limits(2), only(validate=1))
    run_host(driver, several(2, body))
    # The second validates from 1 on, in one slot until the first's rollout is over at 3, in both after that.
    assert [moment for moment, item, _, stage in driver.trace if (item, stage) == (2, "validate")] == [1, 2, 3, 3, 4, 4]
    assert next(moment for moment, item, _, stage in driver.trace if (item, stage) == (1, "validate")) == 5


def test_an_item_is_offered_when_a_worker_could_take_it() -> None:
    offered: list[float] = []

    def source(number: int) -> Body | None:
        offered.append(driver.now())
        return two_stages(number) if number < 4 else None

    driver = LookingDriver(make_limits(8), only(rollout=1))
    run_host(driver, source)
    assert offered == [0, 1, 2, 3]


@pytest.mark.parametrize("seed", range(6))
def test_no_stage_has_more_items_at_work_than_workers(seed: int) -> None:
    rng = random.Random(seed)
    allowed: dict[str, int] = {}  # by stage: its workers, or more, where they have just become fewer

    def decide(_: Snapshot) -> Workers:
        caps = {stage: rng.randint(1, 3) for stage in ("rollout", "propose", "gate", "validate")}
        allowed.update({stage: max(cap, allowed.get(stage, 0)) for stage, cap in caps.items()})
        return Workers(caps)

    def look(run: LookingDriver) -> None:
        now = run.snapshot()
        assert all(now.at_work[stage] <= cap for stage, cap in allowed.items())
        allowed.update({stage: max(cap, now.at_work[stage]) for stage, cap in now.workers.items() if cap is not None})

    driver = LookingDriver(two_resources(12), Controlling(decide, max_staleness=2))
    driver.looks.append(look)
    records = run_host(driver, several(60, pipeline(rng)))
    assert len(records) == 60


@pytest.mark.parametrize("seed", range(6))
def test_a_stage_with_work_and_a_free_slot_has_somebody_at_work(seed: int) -> None:
    rng = random.Random(seed)

    def look(run: LookingDriver) -> None:
        now = run.snapshot()
        for stage, samples in now.waiting.items():
            resource = "reflection" if stage == "propose" else "task"
            if samples and now.busy[resource] < now.slots[resource]:
                assert now.at_work[stage] >= min(1, now.workers[stage] or 1)

    decide = lambda _: Workers({stage: rng.randint(1, 2) for stage in ("rollout", "propose", "gate", "validate")})  # noqa: E731
    driver = LookingDriver(two_resources(6, 3), Controlling(decide))
    driver.looks.append(look)
    run_host(driver, several(120, pipeline(rng)))
    assert driver.scheduler.done


def test_without_control_nobody_is_asked_and_every_sample_starts_as_with_workers_beyond_number() -> None:
    def run(policies: Watching | None, seed: int) -> list[tuple[float, int, int, str]]:
        rng = random.Random(seed)
        driver = LookingDriver(two_resources(rng.choice((2, 8, 32)), budget=1_500, offer_cost=16), policies)
        run_host(driver, pipeline(rng))
        assert set(driver.snapshot().workers.values()) == ({None} if policies is None else {None, 1_000})
        return driver.trace

    many = {"rollout": 1_000, "propose": 1_000, "gate": 1_000, "validate": 1_000}
    for seed in range(8):
        asked = Controlling(lambda _: Workers(many))
        assert run(None, seed) == run(asked, seed)
        assert len(asked.moments) > 3


def test_control_is_asked_at_the_start_and_once_per_period() -> None:
    policy = Controlling(lambda _: None)
    policy.control_period = 25.0
    rng = random.Random(3)
    driver = LookingDriver(two_resources(), policy)
    assert policy.moments == [0]
    run_host(driver, several(100, pipeline(rng)))
    assert 0.7 * driver.now() / 25 < len(policy.moments) <= driver.now() / 25 + 1
    assert all(later - earlier >= 25 for earlier, later in zip(policy.moments, policy.moments[1:], strict=False))


def test_control_that_raises_stops_the_run_and_every_item_has_its_record() -> None:
    def decide(snapshot: Snapshot) -> Workers:
        if snapshot.seconds > 30:
            raise PluginError("mine", "flashevolve_control", "the run", ZeroDivisionError("an odd one"))
        return Workers({})

    policy, rng = Controlling(decide), random.Random(1)
    offered: list[int] = []

    def source(number: int) -> Body:
        offered.append(number)
        return pipeline(rng)(number)

    with pytest.raises(PluginError, match="flashevolve_control"), LookingDriver(two_resources(), policy) as driver:
        run_host(driver, source)
    assert sorted(record.number for record in policy.records) == offered
    assert {record.terminal for record in policy.records} >= {Terminal.COMMITTED, Terminal.CANCELLED}


@pytest.mark.parametrize(
    ("most", "problem"),
    [
        ({"rolout": 1}, "this run has no stage 'rolout': its stages are rollout, propose, gate, queue, judge, merge, "),
        ({"rollout": 0}, "the workers of 'rollout' must be a whole number of at least 1, or None for any number"),
        ({"rollout": True}, "the workers of 'rollout' must be"),
        ({"rollout": 1.5}, "the workers of 'rollout' must be"),
        (7, "no mapping of stage name to workers"),
    ],
)
def test_workers_that_cannot_be_are_refused_before_anything_runs(most: object, problem: str) -> None:
    with pytest.raises(PluginError, match="flashevolve_control") as refused:
        LookingDriver(make_limits(1), Controlling(lambda _: Workers(most)))  # type: ignore[arg-type]
    assert problem in str(refused.value)


def test_the_scheduler_leaves_no_stage_without_a_worker() -> None:
    scheduler = Scheduler(make_limits(1))
    with pytest.raises(UsageError, match="Stage 'rollout' needs a worker"):
        scheduler.handle(ev.WorkersChanged({"gate": 1, "rollout": 0}))
    with pytest.raises(UsageError, match="There is no stage 'rolout': the stages are rollout, "):
        scheduler.handle(ev.WorkersChanged({"rolout": 1}))
    assert scheduler.workforce.caps == {}


def test_a_stage_that_gets_a_cap_lets_those_go_on_that_are_at_work_in_it() -> None:
    driver = LookingDriver(make_limits(2))

    def body(number: int) -> Body:
        yield make_stage("rollout", 4, one_second)
        return Outcome(Terminal.REJECTED, "not better")

    def look(run: LookingDriver) -> None:
        if run.now() == 1:
            run.looks.clear()
            run.tell(ev.WorkersChanged({"rollout": 1}))

    driver.looks.append(look)
    records = run_host(driver, several(3, body))
    assert [(record.number, record.ended) for record in records] == [(1, 2), (2, 4), (3, 6)]
