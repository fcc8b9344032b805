"""The merge queue and plans, as the driver carries them out. In virtual time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from virtual_items import (
    Queueing,
    Watching,
    cancel_after,
    ends_of,
    gained,
    make_limits,
    make_stage,
    merging,
    one_second,
    queue_stage,
    queued_item,
    rejected_item,
    run_host,
    several,
    write_nothing,
)

from flashevolve_plugins import PluginError
from flashevolve_plugins._model import (
    Discarded,
    ItemView,
    Outcome,
    Patch,
    PoolEntry,
    Terminal,
    Verdict,
)
from flashevolve_plugins._policies import Batch, Judgement, Plan
from flashevolve_plugins._scheduler import LEFT_OVER, MAX_MERGES
from flashevolve_plugins._virtual import VirtualDriver

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flashevolve_plugins._bodies import Body
    from flashevolve_plugins._pool import Pool
    from flashevolve_plugins._snapshot import Snapshot


def _all_at(count: int) -> Callable[[Sequence[ItemView], bool], Batch]:
    """Merges everything once so many wait, or nothing else is left."""

    def take(waiting: Sequence[ItemView], last: bool) -> Batch:
        numbers = tuple(each.number for each in waiting)
        return Batch(numbers, write_nothing) if last or len(numbers) >= count else Batch()

    return take


# -- who waits, and who goes on -------------------------------------------------------------------------------------


def test_an_item_waits_until_it_is_released() -> None:
    def best_of_all(waiting: Sequence[ItemView], last: bool) -> Batch:
        best = max(waiting, key=lambda each: each.evidence.gain if each.evidence else 0.0)
        return Batch((best.number,)) if last else Batch()

    policy = Queueing(best_of_all)
    driver = VirtualDriver(make_limits(12), policy)
    gains = {1: 2.0, 2: 1.0, 3: 3.0}
    records = run_host(driver, several(3, lambda number: queued_item(number, gains[number])))
    assert policy.asked == [
        ((1,), False),
        ((1, 2), False),
        ((1, 2, 3), True),  # the third is validated from second 3 to 4, then the first
        ((1, 2), True),
        ((2,), True),
    ]
    assert [(record.number, record.ended, record.entries) for record in records] == [
        (3, 4, (1,)),
        (1, 5, (2,)),
        (2, 6, (3,)),
    ]
    assert records[1].story == ("offered@0", "rollout", "queue", "released", "validate", "accept@1", "committed")
    assert records[1].evidence == gained("artifact 1", 2.0)
    assert {view.stage for view in policy.waited} == {"queue"}


def test_one_validation_at_a_time_unless_a_plan_says_more() -> None:
    class Wide(Queueing):
        plans = True

        def plan(self, snapshot: Snapshot) -> Plan:
            del snapshot
            return Plan(validations=2)

    def oldest(waiting: Sequence[ItemView], last: bool) -> Batch:
        del last
        return Batch((waiting[0].number,))

    def body(_: int) -> Body:
        yield make_stage("rollout", 1, one_second)
        yield queue_stage("artifact")
        yield make_stage("validate", 4, one_second)
        return Outcome(Terminal.COMMITTED)

    for policy, ends in ((Queueing(oldest), [2, 3, 4, 5]), (Wide(oldest), [2, 2, 3, 3])):
        records = run_host(VirtualDriver(make_limits(40), policy), several(4, body))
        assert [record.ended for record in records] == ends


def test_what_is_merged_ends_with_its_merge() -> None:
    policy = Queueing(_all_at(3))
    driver = VirtualDriver(make_limits(12), policy)
    records = run_host(driver, several(3, queued_item), merging())
    merge, *members = records
    assert policy.asked == [((1,), False), ((1, 2), False), ((1, 2, 3), True)]
    assert (merge.terminal, merge.members, merge.entries) == (Terminal.COMMITTED, (1, 2, 3), (1,))
    assert merge.evidence == gained(f"{merge.number} of (1, 2, 3)")
    assert merge.merged_into is None
    assert [(each.number, each.terminal, each.merged_into) for each in members] == [
        (number, Terminal.MERGED, merge.number) for number in (1, 2, 3)
    ]
    assert {each.reason for each in members} == {f"merged into item {merge.number}"}
    assert members[0].evidence == gained("artifact 1")
    assert driver.finish().ended == {"committed": 1, "merged": 3}


def test_what_a_failed_merge_brings_back_is_told_of_it() -> None:
    def halves(waiting: Sequence[ItemView], last: bool) -> Batch:
        if not last:
            return Batch()
        size = min((each.failed_with[-1] // 2 for each in waiting if each.failed_with), default=4)
        if size == 0:
            return Batch(discard={each.number: "alone at last" for each in waiting})
        return Batch(tuple(each.number for each in waiting[:size]), write_nothing)

    policy = Queueing(halves)
    records = run_host(VirtualDriver(make_limits(12), policy), several(4, queued_item), merging(accept=False))
    merges = [record for record in records if record.members]
    assert [record.members for record in merges] == [(1, 2, 3, 4), (1, 2), (3,)]
    told = {view.number: view.failed_with for view in policy.waited}
    assert told == {1: (4, 2), 2: (4, 2), 3: (4, 1), 4: (4,)}
    assert ends_of([record for record in records if not record.members]) == dict.fromkeys((1, 2, 3, 4), "discarded")
    assert {record.merged_into for record in records} == {None}


def test_a_policy_that_never_learns_ends_all_the_same() -> None:
    policy = Queueing(lambda waiting, _: Batch(tuple(each.number for each in waiting), write_nothing))
    records = run_host(VirtualDriver(make_limits(12), policy), several(2, queued_item), merging(accept=False))
    last = {record.number: (record.terminal, record.reason) for record in records if not record.members}
    assert last == dict.fromkeys((1, 2), (Terminal.DISCARDED, f"{MAX_MERGES} merges with it failed"))
    assert sum(2 in record.members for record in records) == MAX_MERGES


def test_a_merge_over_which_its_host_raises_brings_its_members_back() -> None:
    policy = Queueing(lambda waiting, _: Batch(tuple(each.number for each in waiting), write_nothing))
    driver = VirtualDriver(make_limits(1), policy)
    driver.offer_from(several(1, queued_item), merging())
    ends = []
    while (ended := driver.next_ended()) is not None:
        first = bool(ended.record.members) and not ends
        driver.recorded(ended, error=OSError("disk full") if first else None)
        ends.append(ended.number)
    assert [(record.terminal, record.members, record.merged_into) for record in policy.records] == [
        (Terminal.FAILED, (1,), None),
        (Terminal.COMMITTED, (1,), None),
        (Terminal.MERGED, (), ends[1]),
    ]
    assert policy.waited[-1].failed_with == (1,)


def test_without_a_merger_the_first_member_goes_on_alone() -> None:
    policy = Queueing(_all_at(2))
    records = run_host(VirtualDriver(make_limits(12), policy), several(2, queued_item))
    assert ends_of(records) == {1: "committed", 2: "committed"}
    assert policy.asked == [((1,), False), ((1, 2), True), ((2,), True)]


def test_what_nobody_takes_at_the_last_call_is_discarded() -> None:
    policy = Queueing(lambda _waiting, _last: Batch())
    driver = VirtualDriver(make_limits(12), policy)
    records = run_host(driver, several(2, queued_item))
    assert policy.asked == [((1,), False), ((1, 2), True)]
    assert {(record.terminal, record.reason) for record in records} == {(Terminal.DISCARDED, LEFT_OVER)}
    assert driver.scheduler.done


def test_what_waits_from_its_first_stage_on_has_its_evidence_in_the_record() -> None:
    def body(_: int) -> Body:
        yield queue_stage("artifact")
        return Outcome(Terminal.COMMITTED)

    (record,) = run_host(VirtualDriver(make_limits(1), Queueing(lambda _waiting, _last: Batch())), several(1, body))
    assert (record.terminal, record.evidence) == (Terminal.DISCARDED, gained("artifact"))


def test_as_long_as_nothing_waits_every_item_is_expected_to_need_a_validation() -> None:
    policy = Queueing(_all_at(2))
    driver = VirtualDriver(make_limits(99, budget=21, offer_cost=5), policy)
    driver.offer_from(queued_item)
    # Each reserves 1 and needs 4 later: for a fifth, 5 + 16 are more than the 17 that are left.
    assert driver.snapshot().items == 4
    while not policy.asked:
        driver._step()
    # The first waits and shares its 4, so that a fifth came.
    assert driver.snapshot().items == 5


def test_an_item_that_the_policy_discards_says_why() -> None:
    policy = Queueing(lambda waiting, last: Batch(discard={waiting[0].number: "it aged"}) if last else Batch())
    records = run_host(VirtualDriver(make_limits(12), policy), several(2, queued_item))
    assert {(record.terminal, record.reason) for record in records} == {(Terminal.DISCARDED, "it aged")}


def test_an_item_that_is_patched_after_its_release_may_wait_again() -> None:
    class Patching(Queueing):
        def judge_stale(self, item: ItemView, pool: Pool) -> Judgement:
            super().judge_stale(item, pool)
            return Judgement(Verdict.PATCH, "read", "patched")

    def body(number: int) -> Body:
        yield make_stage("rollout", 1, lambda: float(number))
        artifact = f"artifact {number}"
        while True:
            try:
                yield queue_stage(artifact)
                yield replace(make_stage("validate", 4, one_second), evidence=gained(artifact))
                return Outcome(Terminal.COMMITTED)
            except Patch as patch:
                artifact = patch.artifact
                yield make_stage("gate", 1, one_second)

    policy = Patching(lambda waiting, _: Batch((waiting[0].number,)))
    records = run_host(VirtualDriver(make_limits(12), policy), several(2, body))
    assert ends_of(records) == {1: "committed", 2: "committed"}
    assert [(numbers, view.patches) for (numbers, _), view in zip(policy.asked, policy.waited, strict=True)] == [
        ((1,), 0),
        ((2,), 0),
        ((2,), 1),
    ]
    assert records[1].evidence == gained("patched")


# -- answers that cannot be ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        (Batch((7,)), "item 7 does not wait in the queue"),
        (Batch(discard={7: "who?"}), "item 7 does not wait in the queue"),
        (Batch((1, 1), write_nothing), "names a member twice"),
        (Batch((1, 2)), "several members need a write function"),
        (Batch((1, 2), write_nothing, onto=0), "onto is no version of the pool"),
        (Batch((1, 2), write_nothing, onto=2), "onto is no version of the pool"),
    ],
)
def test_an_answer_that_cannot_be_stops_the_run_and_names_the_hook(batch: Batch, why: str) -> None:
    policy = Queueing(lambda _, last: batch if last else Batch())
    with pytest.raises(PluginError, match=why) as stopped, VirtualDriver(make_limits(12), policy) as driver:
        run_host(driver, several(2, queued_item), merging())
    assert (stopped.value.hook, stopped.value.about) == ("flashevolve_merge_batch", "items 1, 2")
    assert ends_of(policy.records) == {1: "cancelled", 2: "cancelled"}


def test_a_merging_policy_that_raises_stops_the_run_and_every_record_is_written() -> None:
    error = PluginError("acme", "flashevolve_merge_batch", "items 3", ZeroDivisionError("division by zero"))

    def broken(waiting: Sequence[ItemView], last: bool) -> Batch:
        del last
        if waiting[0].number == 3:
            raise error
        return Batch((1, 2), write_nothing) if len(waiting) == 2 else Batch()

    policy = Queueing(broken)

    def run() -> None:
        with VirtualDriver(make_limits(4), policy) as driver:
            run_host(driver, several(5, queued_item), merging(seconds=lambda: 0.1))

    with pytest.raises(PluginError) as stopped:
        run()
    assert stopped.value is error
    merge = next(record for record in policy.records if record.members)
    assert len(policy.records) == 6
    assert ends_of(policy.records) == {merge.number: "committed", 1: "merged", 2: "merged"} | dict.fromkeys(
        (3, 4, 5), "cancelled"
    )


# -- plans ----------------------------------------------------------------------------------------------------------


class Planning(Watching):
    """Says how many items may be under way, one more with each item that ended."""

    plans = True

    def __init__(self, first: int) -> None:
        super().__init__()
        self.most: list[int] = []
        self._first = first

    def plan(self, snapshot: Snapshot) -> Plan | None:
        self.most.append(snapshot.items)
        return Plan(max_items=self._first + snapshot.ended.get("rejected", 0))


@pytest.mark.parametrize(("own", "ends"), [(None, [1, 2, 2, 3, 3, 3]), (2, [1, 2, 2, 3, 3, 4])])
def test_a_plan_limits_the_items_in_flight_and_a_lower_limit_of_the_users_wins(
    own: int | None, ends: list[float]
) -> None:
    policy = Planning(1)
    records = run_host(VirtualDriver(make_limits(9, max_items=own), policy), several(6, rejected_item))
    assert [record.ended for record in records] == ends


def test_what_waits_counts_as_in_flight_and_the_last_call_comes_when_nothing_else_may_be_offered() -> None:
    class Narrow(Queueing):
        plans = True

        def plan(self, snapshot: Snapshot) -> Plan:
            del snapshot
            return Plan(max_items=2)

    policy = Narrow(_all_at(99))
    records = run_host(VirtualDriver(make_limits(12), policy), several(5, queued_item), merging())
    assert [numbers for numbers, last in policy.asked if last] == [(1, 2), (4, 5)]
    assert [record.members for record in records if record.members] == [(1, 2), (4, 5)]


@pytest.mark.parametrize("plan", [Plan(max_items=0), Plan(validations=0)])
def test_a_plan_with_which_nothing_would_run_stops_the_run(plan: Plan) -> None:
    class Idle(Watching):
        plans = True

        def plan(self, snapshot: Snapshot) -> Plan:
            del snapshot
            return plan

    with (
        pytest.raises(PluginError, match="flashevolve_plan") as stopped,
        VirtualDriver(make_limits(1), Idle()) as driver,
    ):
        run_host(driver, several(1, rejected_item))
    assert "at least 1" in str(stopped.value)


# -- a cancel ---------------------------------------------------------------------------------------------------------


def test_a_cancel_ends_a_merge_and_its_members() -> None:
    policy = Queueing(lambda waiting, _: Batch((1, 2), write_nothing) if len(waiting) == 2 else Batch())

    def body(number: int) -> Body:
        if number < 3:
            return (yield from queued_item(number))
        yield make_stage("rollout", 1, lambda: 3.0)
        return Outcome(Terminal.REJECTED, "not better")

    driver = VirtualDriver(make_limits(3), policy)
    driver.offer_from(several(3, body), merging(seconds=lambda: 9.0))
    cancel_after(driver, 1)  # at second 3, inside the merge
    assert [(record.number, record.terminal, record.members, record.merged_into) for record in policy.records] == [
        (3, Terminal.REJECTED, (), None),
        (5, Terminal.CANCELLED, (1, 2), None),
        (1, Terminal.CANCELLED, (), None),
        (2, Terminal.CANCELLED, (), None),
    ]
    assert {record.reason for record in policy.records[1:]} == {"Ctrl-C"}
    last = driver.finish()
    assert (last.items, sum(last.busy.values())) == (0, 0)


def test_a_cancel_keeps_what_a_finished_merge_took_in() -> None:
    driver = VirtualDriver(make_limits(12), policy := Queueing(_all_at(2)))
    driver.offer_from(several(2, queued_item), merging())
    merge = driver.next_ended()
    assert merge is not None
    driver.stop("Ctrl-C", cancel=True)
    driver.recorded(merge, [PoolEntry(1, None, 0.0)])
    cancel_after(driver, 0)
    assert [record.terminal for record in policy.records] == [Terminal.COMMITTED, Terminal.MERGED, Terminal.MERGED]


def test_the_bodies_of_what_waits_learn_how_they_end() -> None:
    signals: list[tuple[int, Terminal, str]] = []

    def body(number: int) -> Body:
        try:
            return (yield from queued_item(number))
        except Discarded as signal:
            signals.append((number, signal.terminal, signal.stage))
            raise

    run_host(VirtualDriver(make_limits(12), Queueing(_all_at(2))), several(2, body), merging())
    assert signals == [(1, Terminal.MERGED, "queue"), (2, Terminal.MERGED, "queue")]
