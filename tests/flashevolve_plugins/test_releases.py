"""Stages that are left before their last sample has ended. In virtual time."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from virtual_items import STAGES, Queueing, Watching, make_limits, merging, queue_stage, run_host, several

from flashevolve_plugins import PluginError
from flashevolve_plugins import _events as ev
from flashevolve_plugins._bodies import Partial
from flashevolve_plugins._model import (
    Discarded,
    ItemView,
    Outcome,
    PoolEntry,
    Progress,
    Sample,
    Stage,
    Terminal,
    Verdict,
)
from flashevolve_plugins._policies import Batch, Judgement, Release
from flashevolve_plugins._virtual import VirtualDriver

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flashevolve_plugins._bodies import Body
    from flashevolve_plugins._pool import Pool


def watched(name: str, seconds: Sequence[float], *, value: int = 0, then: int = 0, **more: Any) -> Stage:
    """A stage whose samples take so many seconds and give ``value`` and their index; policies may watch it."""
    samples = tuple(
        Sample(partial(int, value + index), "task", cost=1, seconds=partial(float, each))
        for index, each in enumerate(seconds)
    )
    validates = name == "validate"
    return Stage(
        name,
        samples,
        then=then,
        commits=validates,
        progress=lambda results: Progress(list(results), range(len(results)), artifact="new", validates=validates),
        **more,
    )


class Releasing(Watching):
    """Answers what ``release`` and ``admit`` say of an item and what is known of its stage."""

    releases = True

    def __init__(
        self,
        release: Callable[[ItemView, Progress], Release | None] = lambda *_: None,
        admit: Callable[[ItemView, Progress], bool] = lambda *_: False,
    ) -> None:
        Watching.__init__(self)
        self._release, self._admit = release, admit

    def release_stage(self, item: ItemView, progress: Progress, pool: Pool) -> Release | None:
        del pool
        return self._release(item, progress)

    def admit_provisional(self, item: ItemView, progress: Progress, pool: Pool) -> bool:
        del pool
        return self._admit(item, progress)


def hand_on_after(count: int) -> Callable[[ItemView, Progress], Release | None]:
    return lambda _, progress: Release(stops=False) if progress.hands_on and len(progress.known) >= count else None


def stop_after(count: int) -> Callable[[ItemView, Progress], Release | None]:
    return lambda _, progress: Release(stops=True, reason="enough") if len(progress.known) >= count else None


# -- handed on ------------------------------------------------------------------------------------------------------


def test_an_item_goes_on_with_part_of_a_stage_and_gets_the_rest_where_it_joins() -> None:
    seen: list[Any] = []

    def body(_: int) -> Body:
        first = yield watched("rollout", [1, 2, 9], value=10, hands_on=True)
        seen.append(list(first))
        second = yield watched("propose", [1, 1, 1], value=20)  # the same indices as what still runs of the first
        seen.append(list(second))
        yield Stage("gate", (), joins=True)
        assert isinstance(first, Partial)
        seen.append(first.whole())
        return Outcome(Terminal.REJECTED, "not better")

    driver = VirtualDriver(make_limits(10, 100), Releasing(hand_on_after(2)))
    (record,) = run_host(driver, several(1, body))
    assert seen == [[10, 11, None], [20, 21, 22], [10, 11, 12]]
    assert record.ended == 9
    assert record.spent == driver.scheduler.ledger.spent == 6
    assert driver.scheduler.ledger.reserved == 0


def test_what_waits_of_a_stage_that_was_handed_on_still_runs() -> None:
    def body(_: int) -> Body:
        first = yield watched("rollout", [1, 1, 1, 1], hands_on=True)
        yield watched("propose", [1])
        yield Stage("gate", (), joins=True)
        assert first.whole() == [0, 1, 2, 3]  # type: ignore[attr-defined]
        return Outcome(Terminal.REJECTED, "not better")

    driver = VirtualDriver(make_limits(1, 100), Releasing(hand_on_after(2)))
    (record,) = run_host(driver, several(1, body))
    assert record.terminal is Terminal.REJECTED
    assert record.ended == 5  # one slot, five samples


def test_a_worker_keeps_a_stage_that_was_handed_on_until_its_last_sample_has_ended() -> None:
    def body(number: int) -> Body:
        yield watched("rollout", [1, 4.0 if number == 1 else 8.0], hands_on=True)
        yield watched("propose", [1])
        return Outcome(Terminal.REJECTED, "not better")

    driver = VirtualDriver(make_limits(10, 100), Releasing(hand_on_after(1)))
    driver.tell(ev.WorkersChanged({"rollout": 1}))
    records = run_host(driver, several(4, body))  # two of these numbers are those of the stages' rests
    # The first proposes from 1 to 2 and ends with its rollout, at 4. The second's rollout takes from 4 to 12.
    assert [record.ended for record in records] == [4, 12]
    last = driver.snapshot()
    assert (last.at_work["rollout"], last.finished["rollout"], last.finished["propose"]) == (0, 2, 2)


def test_what_a_sample_raises_after_its_stage_was_handed_on_is_raised_where_the_item_joins() -> None:
    def fail() -> None:
        raise ValueError("late")

    def body(_: int) -> Body:
        stage = watched("rollout", [1, 2], hands_on=True)
        late = Sample(fail, "task", cost=1, seconds=partial(float, 5))
        first = yield Stage("rollout", (stage.samples[0], late), progress=stage.progress, hands_on=True)
        yield Stage("gate", (), joins=True)
        first.whole()  # type: ignore[attr-defined]
        raise AssertionError("it should have raised")

    (record,) = run_host(VirtualDriver(make_limits(4), Releasing(hand_on_after(1))), several(1, body))
    assert (record.terminal, record.reason, record.ended) == (Terminal.FAILED, "ValueError: late", 5)


# -- stopped --------------------------------------------------------------------------------------------------------


def test_a_stopped_stage_starts_nothing_more_and_its_item_is_rejected_with_the_reason() -> None:
    ends: list[BaseException] = []

    def body(_: int) -> Body:
        try:
            yield watched("validate", [1, 1, 4, 1, 1, 1])
        except Discarded as why:
            ends.append(why)
            raise
        raise AssertionError("it should have been stopped")

    driver = VirtualDriver(make_limits(3, 6), Releasing(stop_after(2)))
    (record,) = run_host(driver, several(1, body))
    assert (record.terminal, record.reason) == (Terminal.REJECTED, "enough")
    assert record.partial == {0: 0, 1: 1}
    assert record.ended == 4  # when what had started has ended
    assert str(ends[0]) == "enough"
    assert driver.scheduler.ledger.spent == 4  # the fourth had started when the first ended
    assert driver.scheduler.ledger.reserved == 0


def test_the_next_validation_need_not_wait_for_what_still_runs_of_a_stopped_one() -> None:
    def body(number: int) -> Body:
        yield queue_stage(f"artifact {number}", validation=3)
        yield watched("validate", [1, 2, 7])
        return Outcome(Terminal.COMMITTED)

    class Stopping(Admitting):
        def release_stage(self, item: ItemView, progress: Progress, pool: Pool) -> Release | None:
            del pool
            return stop_after(2)(item, progress) if item.number == 1 else None

    driver = VirtualDriver(make_limits(9), Stopping(lambda *_: False))
    records = run_host(driver, several(2, body))
    assert {record.number: record.ended for record in records} == {1: 7, 2: 9}


def test_a_releasing_policy_that_raises_fails_its_item_and_no_other() -> None:
    def body(_: int) -> Body:
        yield watched("rollout", [1, 2])
        return Outcome(Terminal.REJECTED, "not better")

    def release(item: ItemView, _: Progress) -> None:
        if item.number == 1:
            raise PluginError("odd", "flashevolve_release_stage", "item 1", ValueError("no"))

    first, second = run_host(VirtualDriver(make_limits(9), Releasing(release)), several(2, body))
    assert first.terminal is Terminal.FAILED
    assert isinstance(first.error, PluginError)
    assert second.terminal is Terminal.REJECTED


def test_only_a_stage_whose_item_can_go_on_with_a_part_is_handed_on() -> None:
    def body(_: int) -> Body:
        yield watched("rollout", [1, 2])
        return Outcome(Terminal.REJECTED, "not better")

    policy = Releasing(lambda *_: Release(stops=False))
    (record,) = run_host(VirtualDriver(make_limits(9), policy), several(1, body))
    assert record.terminal is Terminal.FAILED
    assert "handed on rollout, of which every result is needed: there it can only stop" in record.reason


# -- provisional ----------------------------------------------------------------------------------------------------


class Admitting(Releasing, Queueing):
    """Lets items wait as well; the oldest goes first, and all others are merged."""

    def __init__(self, admit: Callable[[ItemView, Progress], bool]) -> None:
        Releasing.__init__(self, admit=admit)
        self.asked, self.waited = [], []
        self.pools: list[tuple[int, list[int]]] = []

    def merge_batch(self, waiting: Sequence[ItemView], pool: Pool, *, last: bool) -> Batch:
        del last
        self.pools.append((pool.version, list(pool.provisional)))
        return Batch((waiting[0].number,))


def test_the_next_validation_need_not_wait_for_one_whose_artifact_was_admitted() -> None:
    def body(number: int) -> Body:
        yield queue_stage(f"artifact {number}", validation=3)
        yield watched("validate", [1, 2, 7])
        return Outcome(Terminal.COMMITTED)

    policy = Admitting(lambda item, progress: item.number == 1 and len(progress.known) >= 2)
    records = run_host(VirtualDriver(make_limits(9), policy), several(2, body))
    assert policy.pools == [(0, []), (0, [1])]  # the second leaves at second 2
    assert {record.number: record.ended for record in records} == {1: 7, 2: 9}
    assert "provisional" in records[0].story


@pytest.mark.parametrize("confirmed", [True, False])
def test_what_was_made_from_a_provisional_artifact_waits_and_hears_whether_it_was_confirmed(confirmed: bool) -> None:
    told: list[Any] = []

    def body(number: int) -> Body:
        if number == 1:
            yield watched("validate", [1, 2, 7])
            return Outcome(Terminal.COMMITTED)
        yield watched("rollout", [3])
        told.append(dict(driver.pool.provisional))
        yield Stage("gate", (), after=1)
        told.append((driver.now(), driver.pool.version, driver.releases.why_not(1), dict(driver.pool.provisional)))
        return Outcome(Terminal.REJECTED, "not better")

    def admit(_: ItemView, progress: Progress) -> bool:
        known = len(progress.known)
        return known == 2 or (confirmed and known == 3)

    driver = VirtualDriver(make_limits(9), Releasing(admit=admit))
    run_host(driver, several(2, body))
    why = "item 1, which it was made from, had 0.500 on part of the validation and has 1.000 on all of it"
    assert told == [{1: PoolEntry(0, "new", 0.5, (), 1, {0: 0, 1: 1})}, (7, 1, "" if confirmed else why, {})]


def test_what_should_not_have_been_made_from_its_parent_is_judged_before_each_of_its_stages() -> None:
    class Doubting(Releasing):
        def judge_stale(self, item: ItemView, pool: Pool) -> Judgement:
            self.judged.append(item)
            return Judgement(Verdict.DISCARD if item.stage == "validate" else Verdict.ACCEPT, item.unfounded)

    def body(_: int) -> Body:
        yield watched("rollout", [1])
        yield watched("gate", [1, 1], unfounded="its parent fell")
        yield watched("validate", [1], unfounded="its parent fell")
        return Outcome(Terminal.COMMITTED)

    policy = Doubting()
    (record,) = run_host(VirtualDriver(make_limits(1), policy), several(1, body))
    assert [(each.stage, each.staleness, each.unfounded) for each in policy.judged] == [
        ("gate", 0, "its parent fell"),
        ("validate", 0, "its parent fell"),
    ]
    assert (record.terminal, record.reason, record.spent) == (Terminal.DISCARDED, "its parent fell", 3)


def test_a_merge_that_was_never_tried_does_not_count_against_its_members() -> None:
    seen: list[tuple[int, ...]] = []

    class Merging(Admitting):
        def merge_batch(self, waiting: Sequence[ItemView], pool: Pool, *, last: bool) -> Batch:
            del last
            if waiting[0].number == 1:
                return Batch((1,))
            seen.append(waiting[0].failed_with)
            return Batch((2,), write=lambda *_: None) if pool.provisional else Batch((2,))

    def body(number: int) -> Body:
        yield queue_stage(f"artifact {number}", validation=3)
        yield watched("validate", [1, 2, 7])
        return Outcome(Terminal.COMMITTED)

    def merge(_: int, batch: Batch) -> Body:
        del batch
        yield Stage("merge", (), after=1)
        raise Discarded(Terminal.SKIPPED, "not confirmed", "merge")

    def ending(number: int, batch: Batch) -> Body:
        try:
            yield from merge(number, batch)
        except Discarded as why:
            return Outcome(why.terminal, why.reason)
        raise AssertionError("it should have ended")

    policy = Merging(lambda item, progress: item.number == 1 and len(progress.known) == 2)
    records = run_host(VirtualDriver(make_limits(9), policy), several(2, body), ending)
    assert seen == [(), ()]
    assert {record.number: record.terminal for record in records}[2] is Terminal.COMMITTED


# -- laws -----------------------------------------------------------------------------------------------------------


class Accounted(VirtualDriver):
    """Checks the laws whenever a sample starts."""

    def _start(self, item: int, index: int, sample: Sample) -> None:
        scheduler = self.scheduler
        assert all(scheduler.busy[name] <= slots for name, slots in scheduler.slots.items())
        assert scheduler.ledger.spent + scheduler.ledger.reserved <= (scheduler.ledger.limit or 0)
        workers = Counter(each.stage.name for each in scheduler.items.values() if each.running)
        assert all(scheduler.workforce.at_work[name] >= count for name, count in workers.items())
        assert all(scheduler.workforce.at_work[name] <= cap for name, cap in scheduler.workforce.caps.items())
        super()._start(item, index, sample)


@pytest.mark.parametrize("seed", range(150))
def test_whatever_is_left_early_every_item_ends_once_and_no_law_is_broken(seed: int) -> None:
    rng = random.Random(seed)

    def stage(name: str, then: int = 0, **more: Any) -> Stage:
        return watched(name, [rng.choice((0.5, 1, 3, 8)) for _ in range(rng.randint(1, 6))], then=then, **more)

    def body(number: int) -> Body:
        first = yield stage("rollout", 12, hands_on=True)
        yield stage("propose", 6, hands_on=True)
        if isinstance(first, Partial) and rng.random() < 0.8:
            yield Stage("gate", (), then=6, joins=True)
            assert None not in first.whole()
        if number > 1 and rng.random() < 0.5:
            yield Stage("gate", (), then=6, after=rng.randint(1, number - 1))
        yield queue_stage(number, validation=6)
        yield stage("validate")
        return Outcome(Terminal.COMMITTED)

    class Wild(Admitting):
        def release_stage(self, item: ItemView, progress: Progress, pool: Pool) -> Release | None:
            del item, pool
            draw = rng.random()
            if draw < 0.1:
                return Release(stops=True, reason="at random")
            return Release(stops=False) if draw < 0.4 and progress.hands_on else None

        def merge_batch(self, waiting: Sequence[ItemView], pool: Pool, *, last: bool) -> Batch:
            super().merge_batch(waiting, pool, last=last)
            numbers = tuple(each.number for each in waiting[: rng.randint(1, 3)])
            return Batch(numbers, write=lambda *_: None)

    policy = Wild(lambda *_: rng.random() < 0.3)
    driver = Accounted(make_limits(rng.randint(1, 7), rng.randint(20, 150)), policy)
    driver.tell(ev.WorkersChanged({name: rng.randint(1, 3) for name in STAGES if rng.random() < 0.4}))
    run_host(driver, several(8, body), merging(accept=rng.random() < 0.8))
    numbers = [record.number for record in policy.records]
    assert len(set(numbers)) == len(numbers)
    assert driver.scheduler.items == {}
    assert driver.pool.provisional == {}
    assert not any(driver.scheduler.busy.values())
    assert not any(driver.scheduler.backlog.values())
    assert not any(driver.scheduler.workforce.at_work.values())
    assert driver.scheduler.ledger.reserved == 0


def test_a_cancel_ends_items_and_what_runs_on_of_their_stages() -> None:
    def body(_: int) -> Body:
        yield watched("rollout", [1, 6, 6], hands_on=True)
        driver.stop("Ctrl-C", cancel=True)
        yield watched("propose", [1])
        return Outcome(Terminal.REJECTED, "not better")

    driver = VirtualDriver(make_limits(9), Releasing(hand_on_after(1)))
    (record,) = run_host(driver, several(1, body))
    assert record.terminal is Terminal.CANCELLED
    assert driver.scheduler.items == {}
    assert driver.scheduler.busy["task"] == 0
