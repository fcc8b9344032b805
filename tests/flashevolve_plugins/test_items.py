"""What a driver does with an item: its body and its staleness. In virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from virtual_items import Watching, make_limits, make_stage, one_second, run_host, several

from flashevolve_plugins import PluginError
from flashevolve_plugins._model import (
    Discarded,
    ItemView,
    Outcome,
    PoolEntry,
    Sample,
    Stage,
    Terminal,
    Verdict,
)
from flashevolve_plugins._policies import Judgement
from flashevolve_plugins._pool import Pool
from flashevolve_plugins._virtual import VirtualDriver

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from flashevolve_plugins._bodies import Body

# -- what a stage gives to its body ---------------------------------------------------------------------------------


def test_results_come_in_sample_order_however_the_samples_end() -> None:
    durations = iter((3.0, 1.0, 2.0))
    got: list[Any] = []

    def body(_: int) -> Body:
        got.append((yield make_stage("rollout", 3, lambda: next(durations))))
        return Outcome(Terminal.SKIPPED, "perfect minibatch")

    (record,) = run_host(VirtualDriver(make_limits(3)), several(1, body))
    assert got == [[0, 1, 2]]
    assert record.terminal is Terminal.SKIPPED


def test_what_a_sample_really_spent_is_what_counts() -> None:
    def body(_: int) -> Body:
        yield Stage("rollout", (Sample(lambda: 2, "task", cost=5, spent=lambda result: result),))
        return Outcome(Terminal.REJECTED, "not better")

    driver = VirtualDriver(make_limits(1, budget=20, offer_cost=5))
    records = run_host(driver, lambda _: body(0))
    # 8 items spend 2 of the 5 they reserve; a ninth would reserve 5 of the 4 that are left.
    assert [record.spent for record in records] == [2] * 8
    assert driver.finish().spent == 16


def test_a_sample_that_raises_is_thrown_into_its_body_and_its_stage_does_not_go_on() -> None:
    calls: list[str] = []
    caught: list[BaseException] = []

    def fail() -> None:
        calls.append("first")
        raise ValueError("bad example")

    def body(_: int) -> Body:
        try:
            yield Stage(
                "rollout", tuple(Sample(call, "task", cost=1) for call in (fail, lambda: calls.append("second")))
            )
        except ValueError as error:
            caught.append(error)
        yield Stage("gate", (Sample(lambda: calls.append("gate"), "task"),))
        return Outcome(Terminal.REJECTED, "not better")

    (record,) = run_host(VirtualDriver(make_limits(1)), several(1, body))
    assert calls == ["first", "gate"]
    assert [str(error) for error in caught] == ["bad example"]
    assert (record.terminal, record.error, record.spent) == (Terminal.REJECTED, None, 1)


def test_a_body_that_does_not_catch_what_its_sample_raised_fails_with_it() -> None:
    error = ValueError("bad example")

    def fail() -> None:
        raise error

    def body(number: int) -> Body:
        yield Stage("rollout", (Sample(fail if number == 1 else one_second, "task"),))
        return Outcome(Terminal.REJECTED, "not better")

    first, second = run_host(VirtualDriver(make_limits(1)), several(2, body))
    assert (first.terminal, first.reason, first.error) == (Terminal.FAILED, "ValueError: bad example", error)
    assert second.terminal is Terminal.REJECTED


def test_a_body_without_a_stage_ends_its_item_and_the_run_goes_on() -> None:
    def over(number: int) -> Body:
        if number == 1:
            raise RuntimeError("no batch")
        if number == 2:
            return Outcome(Terminal.SKIPPED, "empty proposal", payload="kept")
        if number == 3:
            return "not an outcome"  # type: ignore[return-value]
        yield make_stage("rollout", 1, one_second)
        return Outcome(Terminal.REJECTED, "not better")

    watching = Watching()
    raised, skipped, wrong, rejected = run_host(VirtualDriver(make_limits(1), watching), several(4, over))
    assert (raised.terminal, raised.reason) == (Terminal.FAILED, "RuntimeError: no batch")
    assert (skipped.terminal, skipped.reason) == (Terminal.SKIPPED, "empty proposal")
    assert (wrong.terminal, wrong.reason) == (Terminal.FAILED, "An item's body must return an Outcome, not str.")
    assert isinstance(wrong.error, TypeError)
    assert rejected.terminal is Terminal.REJECTED
    assert {number for event, number, _ in watching.seen if event != "ended"} == {4}
    assert [number for event, number, _ in watching.seen if event == "ended"] == [1, 2, 3, 4]


def test_an_empty_stage_is_passed_with_no_results() -> None:
    def body(_: int) -> Body:
        assert (yield Stage("rollout", ())) == []
        assert (yield make_stage("gate", 1, one_second)) == [0]
        return Outcome(Terminal.REJECTED, "not better")

    driver = VirtualDriver(make_limits(1))
    (record,) = run_host(driver, several(1, body))
    assert (record.terminal, record.error) == (Terminal.REJECTED, None)
    assert driver.now() == 1


# -- staleness ------------------------------------------------------------------------------------------------------


def _racing(driver_end: list[float]) -> Callable[[int], Body | None]:
    """Item ``i`` proposes for ``i`` seconds, and all are born at version 0."""

    def body(number: int) -> Body:
        yield make_stage("rollout", 1, lambda: float(number))
        scores = yield make_stage("validate", 1, lambda: 0.25)
        driver_end.append(number)
        return Outcome(Terminal.COMMITTED, payload=scores)

    return several(5, body)


def test_a_guarded_policy_discards_what_grew_too_stale_before_its_validation() -> None:
    watching = Watching(max_staleness=2)
    driver = VirtualDriver(make_limits(5), watching)
    finished: list[float] = []
    records = run_host(driver, _racing(finished))
    assert [(r.number, r.terminal, r.staleness) for r in records] == [
        (1, Terminal.COMMITTED, 0),
        (2, Terminal.COMMITTED, 1),
        (3, Terminal.COMMITTED, 2),
        (4, Terminal.DISCARDED, 3),
        (5, Terminal.DISCARDED, 3),
    ]
    assert finished == [1, 2, 3]
    assert {r.reason for r in records} == {"", "3 entries too old"}
    assert [(view.number, view.staleness, view.stage) for view in watching.judged] == [
        (2, 1, "validate"),
        (3, 2, "validate"),
        (4, 3, "validate"),
        (5, 3, "validate"),
    ]
    assert [entry.item for entry in driver.pool.entries] == [1, 2, 3]
    assert driver.finish().staleness == {0: 1, 1: 1, 2: 1}


def test_a_discarded_body_may_tell_its_host_more_than_that() -> None:
    signals: list[Discarded] = []

    def body(number: int) -> Body:
        yield make_stage("rollout", 1, lambda: float(number))
        try:
            yield make_stage("validate", 1, lambda: 0.25)
        except Discarded as signal:
            signals.append(signal)
            return Outcome(signal.terminal, payload=f"item {number} was on its way")
        return Outcome(Terminal.COMMITTED)

    driver = VirtualDriver(make_limits(2), Watching(max_staleness=0))
    driver.offer_from(several(2, body))
    first = driver.next_ended()
    assert first is not None
    driver.recorded(first, [PoolEntry(1, "better", 1.0, item=1)])
    second = driver.next_ended()
    assert second is not None
    assert second.outcome == Outcome(Terminal.DISCARDED, "1 entries too old", "item 2 was on its way")
    assert second.record.error is None
    (signal,) = signals
    assert (signal.terminal, signal.reason, signal.stage) == (Terminal.DISCARDED, "1 entries too old", "validate")


@pytest.mark.parametrize("manner", ["yields", "raises", "returns nothing"])
def test_a_body_that_misbehaves_after_its_discard_is_still_recorded_as_discarded(manner: str) -> None:
    def body(number: int) -> Body:
        yield make_stage("rollout", 1, lambda: float(number))
        try:
            yield make_stage("validate", 1, lambda: 0.25)
        except Discarded:
            if manner == "yields":
                yield make_stage("validate", 1, one_second)
            if manner == "raises":
                raise RuntimeError("in the way out") from None
        return Outcome(Terminal.COMMITTED)

    watching = Watching(max_staleness=0)
    driver = VirtualDriver(make_limits(2), watching)
    records = run_host(driver, several(2, body))
    assert [record.terminal for record in records] == [Terminal.COMMITTED, Terminal.DISCARDED]
    assert watching.records == records
    assert driver.now() == 2
    assert isinstance(records[1].error, RuntimeError if manner == "raises" else type(None))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("manner", ["yields for ever", "raises when closed"])
def test_a_body_that_cannot_be_closed_is_still_recorded(manner: str) -> None:
    def stubborn() -> Generator[Stage, list[Any], Outcome]:
        while True:
            try:
                yield make_stage("validate", 1, one_second)
            except GeneratorExit:
                if manner == "raises when closed":
                    raise RuntimeError("in the way out") from None
            except Discarded:
                pass

    def body(number: int) -> Body:
        yield make_stage("rollout", 1, lambda: float(number))
        if number == 2:
            return (yield from stubborn())
        yield make_stage("validate", 1, lambda: 0.25)
        return Outcome(Terminal.COMMITTED)

    watching = Watching(max_staleness=0)
    records = run_host(VirtualDriver(make_limits(2), watching), several(2, body))
    assert [record.terminal for record in records] == [Terminal.COMMITTED, Terminal.DISCARDED]
    assert watching.records == records
    assert isinstance(records[1].error, RuntimeError)


def test_a_policy_that_raises_fails_its_item_and_the_run_goes_on() -> None:
    class Broken(Watching):
        def judge_stale(self, item: ItemView, pool: Pool) -> Judgement:
            if item.number == 2:
                raise PluginError("acme", "flashevolve_judge_stale", "item 2", ZeroDivisionError("division by zero"))
            return super().judge_stale(item, pool)

    watching = Broken()
    records = run_host(VirtualDriver(make_limits(5), watching), _racing([]))
    assert [(record.number, record.terminal) for record in records] == [
        (1, Terminal.COMMITTED),
        (2, Terminal.FAILED),
        (3, Terminal.COMMITTED),
        (4, Terminal.COMMITTED),
        (5, Terminal.COMMITTED),
    ]
    failed = records[1]
    assert isinstance(failed.error, PluginError)
    assert failed.reason == str(failed.error)
    assert all(part in failed.reason for part in ("acme", "flashevolve_judge_stale", "item 2", "ZeroDivisionError"))


def test_a_patched_item_is_anchored_to_the_version_of_now() -> None:
    class Patching(Watching):
        def judge_stale(self, item: ItemView, pool: Pool) -> Judgement:
            super().judge_stale(item, pool)
            return Judgement(Verdict.PATCH, "reads the history")

    def body(number: int) -> Body:
        yield make_stage("rollout", 1, lambda: float(number))
        yield make_stage("gate", 1, lambda: 1.5)
        yield make_stage("validate", 1, lambda: 0.25)
        return Outcome(Terminal.COMMITTED)

    watching = Patching()
    records = run_host(VirtualDriver(make_limits(2), watching), several(2, body))
    # 1: rollout 0-1, gate 1-2.5, validate 2.5-2.75. 2: rollout 0-2, gate 2-3.5, judged at 3.5, one entry old.
    assert [(view.number, view.staleness, view.stage) for view in watching.judged] == [(2, 1, "validate")]
    assert [(r.number, r.terminal, r.version, r.staleness) for r in records] == [
        (1, Terminal.COMMITTED, 0, 0),
        (2, Terminal.COMMITTED, 0, 0),
    ]
    assert "patch@1" in records[1].story


def test_a_policy_hears_of_a_pool_entry_before_it_judges_against_it() -> None:
    known: list[int] = []

    class Learning(Watching):
        def judge_stale(self, item: ItemView, pool: Pool) -> Judgement:
            known.append(pool.version - sum(event == "pool" for event, *_ in self.seen))
            return super().judge_stale(item, pool)

    # Two slots for five items, so that somebody waits for a slot when an artifact enters the pool.
    run_host(VirtualDriver(make_limits(2), Learning()), _racing([]))
    assert set(known) == {0}
