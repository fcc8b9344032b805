"""Judgements that need work first, and patches, as the driver carries them out. In virtual time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from virtual_items import (
    Watching,
    cancel_after,
    ends_of,
    gained,
    make_limits,
    make_stage,
    one_second,
    rejected_item,
    run_host,
    several,
)

from flashevolve_plugins import PluginError
from flashevolve_plugins import _events as ev
from flashevolve_plugins._decisions import JUDGE, MOST_WORK, Reflector
from flashevolve_plugins._model import (
    Evidence,
    ItemView,
    Limits,
    Outcome,
    Patch,
    PoolEntry,
    Terminal,
    Verdict,
)
from flashevolve_plugins._policies import Ask, Judgement, Work
from flashevolve_plugins._scheduler import Scheduler
from flashevolve_plugins._virtual import VirtualDriver

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashevolve_plugins._bodies import Body
    from flashevolve_plugins._model import ItemRecord
    from flashevolve_plugins._pool import Pool


class Reading(Watching):
    """Asks the host's model about stale items, and says what ``said`` makes of the answer."""

    def __init__(self, call: Callable[[Ask | None], Any], said: Callable[[Any], Judgement]) -> None:
        super().__init__()
        self._call, self._said = call, said

    def judge_stale(self, item: ItemView, pool: Pool) -> Judgement | Work:  # type: ignore[override]
        self.judged.append(item)
        if item.answer is None:
            return Work(self._call)
        return self._said(item.answer)


def _ask(ask: Ask | None) -> str:
    assert ask is not None
    return ask("is it good?")


def _stale(number: int, *, known: bool = True) -> Body:
    """Stale once the first one is committed; a patch passes a gate of one second."""
    yield make_stage("rollout", 1, lambda: float(number))
    artifact = f"artifact {number}"
    while True:
        evidence: Evidence | None = gained(artifact) if known else None
        try:
            yield replace(make_stage("validate", 1, lambda: 0.25), evidence=evidence)
            return Outcome(Terminal.COMMITTED, payload=artifact)
        except Patch as patch:
            artifact = patch.artifact
            assert (yield make_stage("gate", 2, one_second)) == [0, 1]


def _run_read(policy: Reading, *, items: int = 2, known: bool = True) -> tuple[VirtualDriver, list[ItemRecord]]:
    driver = VirtualDriver(make_limits(3), policy)
    driver.decisions.reflector = Reflector("task", lambda prompt: f"{prompt} yes", seconds=lambda: 2.0)
    return driver, run_host(driver, several(items, lambda number: _stale(number, known=known)))


def test_work_runs_in_a_slot_and_its_policy_is_asked_again_with_the_answer() -> None:
    policy = Reading(_ask, lambda answer: Judgement(Verdict.ACCEPT, answer))
    driver, records = _run_read(policy)
    # 1 is committed at 1.25; 2 is judged at 2, read until 4 and validated until 4.25.
    assert [(record.number, record.terminal, record.ended) for record in records] == [
        (1, Terminal.COMMITTED, 1.25),
        (2, Terminal.COMMITTED, 4.25),
    ]
    assert [view.answer for view in policy.judged] == [None, "is it good? yes"]
    assert [(check.verdict, check.reason) for check in records[1].checks] == [(Verdict.ACCEPT, "is it good? yes")]
    assert driver.finish().samples[JUDGE] == 1
    assert ends_of(policy.records) == {1: "committed", 2: "committed"}, "a job leaves no record"
    assert {number for _, number, _ in policy.seen} == {1, 2}, "and nobody hears of it"


def test_other_samples_run_while_a_judgement_waits_for_its_work() -> None:
    policy = Reading(_ask, lambda answer: Judgement(Verdict.DISCARD, answer))
    _, records = _run_read(policy, items=3)
    assert [(record.number, record.terminal, record.ended) for record in records] == [
        (1, Terminal.COMMITTED, 1.25),
        (2, Terminal.DISCARDED, 4.0),
        (3, Terminal.DISCARDED, 5.0),
    ]
    assert records[1].reason == "is it good? yes"


def test_what_work_raises_is_its_answer() -> None:
    error = LookupError("nobody there")

    def fail(ask: Ask | None) -> Any:
        raise error

    policy = Reading(fail, lambda answer: Judgement(Verdict.DISCARD, f"not read: {answer}"))
    _, records = _run_read(policy)
    assert policy.judged[1].answer is error
    assert (records[1].terminal, records[1].reason, records[1].error) == (
        Terminal.DISCARDED,
        "not read: nobody there",
        None,
    )


def test_work_whose_server_fails_now_and_then_is_done_again_before_the_policy_hears_of_it() -> None:
    tries: list[int] = []

    def fail_twice(ask: Ask | None) -> Any:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionResetError("reset")
        return "read"

    policy = Reading(fail_twice, lambda answer: Judgement(Verdict.DISCARD, answer))
    _, records = _run_read(policy)
    assert len(tries) == 3
    assert records[1].reason == "read"


def test_an_entry_that_comes_while_the_work_runs_asks_for_another_judgement() -> None:
    policy = Reading(_ask, lambda _: Judgement(Verdict.ACCEPT))

    def body(number: int) -> Body:
        yield make_stage("rollout", 1, lambda: (1.0, 2.0, 1.25)[number - 1])
        yield make_stage("validate", 1, lambda: (0.25, 0.25, 1.5)[number - 1])
        return Outcome(Terminal.COMMITTED)

    driver = VirtualDriver(make_limits(3), policy)
    driver.decisions.reflector = Reflector("task", lambda prompt: f"{prompt} yes", seconds=lambda: 2.0)
    run_host(driver, several(3, body))
    assert [(view.number, view.staleness, view.answer is None) for view in policy.judged if view.number == 2] == [
        (2, 1, True),
        (2, 2, False),
        (2, 2, True),
        (2, 2, False),
    ]


def test_work_that_gives_nothing_fails_its_item_instead_of_being_asked_for_again() -> None:
    given = iter([None, "something, the next time"])
    policy = Reading(lambda _: next(given), lambda answer: Judgement(Verdict.ACCEPT, answer))
    _, records = _run_read(policy)
    failed = records[1]
    assert (failed.terminal, failed.reason) == (Terminal.FAILED, str(failed.error))
    assert isinstance(failed.error, PluginError)
    assert (failed.error.hook, failed.error.about) == ("flashevolve_judge_stale", "item 2")
    assert "its work gave None" in failed.reason
    assert len(policy.judged) == 1


def test_a_policy_that_asks_for_work_for_ever_fails_its_item() -> None:
    calls = []

    class Never(Reading):
        def judge_stale(self, item: ItemView, pool: Pool) -> Judgement | Work:  # type: ignore[override]
            super().judge_stale(item, pool)
            return Work(lambda _: calls.append(1) or "an answer")

    _, records = _run_read(Never(_ask, lambda _: Judgement(Verdict.ACCEPT)))
    assert len(calls) == MOST_WORK
    assert (records[1].terminal, records[1].reason) == (Terminal.FAILED, str(records[1].error))
    assert f"asked for work {MOST_WORK} times" in records[1].reason


def test_work_runs_where_the_limits_do_not_name_its_stage() -> None:
    policy = Reading(_ask, lambda answer: Judgement(Verdict.ACCEPT, answer))
    driver = VirtualDriver(replace(make_limits(3), stages=("rollout", "gate", "validate")), policy)
    driver.decisions.reflector = Reflector("task", lambda prompt: f"{prompt} yes", seconds=lambda: 2.0)
    records = run_host(driver, several(2, _stale))
    assert ends_of(records) == {1: "committed", 2: "committed"}
    assert driver.finish().samples[JUDGE] == 1


def test_a_patched_item_passes_its_gate_again_with_the_new_artifact() -> None:
    policy = Reading(_ask, lambda _: Judgement(Verdict.PATCH, "read and patched", "better"))
    driver, records = _run_read(policy)
    record = records[1]
    assert (record.terminal, record.ended, record.staleness) == (Terminal.COMMITTED, 5.25, 0)
    assert record.evidence == gained("better")
    assert record.story[-4:] == ("patched@1", "gate", "validate", "committed")
    assert [(check.verdict, check.staleness) for check in record.checks] == [(Verdict.PATCH, 1)]
    assert driver.scheduler.ledger.reserved == 0


def test_what_enters_while_a_patch_is_written_is_judged_after_it() -> None:
    said = iter([Judgement(Verdict.PATCH, "read and patched", "better"), Judgement(Verdict.ACCEPT, "read again")])
    policy = Reading(_ask, lambda _: next(said))

    def body(number: int) -> Body:
        if number != 3:
            return (yield from _stale(number))
        yield make_stage("validate", 1, lambda: 2.5)
        return Outcome(Terminal.COMMITTED)

    driver = VirtualDriver(make_limits(3), policy)
    driver.decisions.reflector = Reflector("task", lambda prompt: f"{prompt} yes", seconds=lambda: 2.0)
    records = run_host(driver, several(3, body))
    # 1 enters at 1.25; 2 is judged at 2 and read until 4; 3 enters at 2.5.
    assert [(record.number, record.ended) for record in records[:2]] == [(1, 1.25), (3, 2.5)]
    assert [(view.staleness, view.patches, view.answer is None) for view in policy.judged] == [
        (1, 0, True),
        (2, 0, False),
        (1, 1, True),
        (1, 1, False),
    ]
    assert records[2].story[2:] == ("validate", "patched@1", "gate", "accept@2", "validate", "committed")


def test_a_patch_inside_a_stage_that_has_begun_fails_its_item_and_names_the_policy() -> None:
    class Late(Watching):
        def judge_stale(self, item: ItemView, pool: Pool) -> Judgement:
            super().judge_stale(item, pool)
            return Judgement(Verdict.PATCH, "read", "better")

    def body(number: int) -> Body:
        yield make_stage("rollout", 1, one_second)
        if number == 1:
            yield make_stage("validate", 1, one_second)
            return Outcome(Terminal.COMMITTED)
        yield replace(make_stage("gate", 3, lambda: 1.5), evidence=gained("old"))
        return Outcome(Terminal.REJECTED)

    driver = VirtualDriver(make_limits(2), Late())
    # 1 enters at 2; at 2.5 one sample of the gate of 2 runs, until 3.5, and one waits.
    record = run_host(driver, several(2, body))[1]
    assert (record.terminal, record.reason, record.ended) == (Terminal.FAILED, str(record.error), 3.5)
    assert isinstance(record.error, PluginError)
    assert (record.error.hook, record.error.about) == ("flashevolve_judge_stale", "item 2")
    assert "inside gate, which has begun" in record.reason
    assert driver.scheduler.ledger.reserved == 0


def test_a_patch_that_ends_its_body_ends_its_item() -> None:
    class Ending(Watching):
        def judge_stale(self, item: ItemView, pool: Pool) -> Judgement:
            super().judge_stale(item, pool)
            return Judgement(Verdict.PATCH, "read", "the best itself")

    def body(number: int) -> Body:
        yield make_stage("rollout", 1, lambda: float(number))
        try:
            yield replace(make_stage("validate", 1, lambda: 0.25), evidence=gained("old"))
        except Patch as patch:
            return Outcome(Terminal.SKIPPED, "nothing of it is left", evidence=gained(patch.artifact))
        return Outcome(Terminal.COMMITTED)

    _, record = run_host(VirtualDriver(make_limits(2), Ending()), several(2, body))
    assert (record.terminal, record.reason) == (Terminal.SKIPPED, "nothing of it is left")
    assert record.evidence == gained("the best itself")


def test_a_patch_without_evidence_fails_its_item_and_names_the_policy() -> None:
    policy = Reading(_ask, lambda _: Judgement(Verdict.PATCH, "read and patched", "better"))
    _, records = _run_read(policy, known=False)
    failed = records[1]
    assert (failed.terminal, failed.reason) == (Terminal.FAILED, str(failed.error))
    assert isinstance(failed.error, PluginError)
    assert (failed.error.hook, failed.error.about) == ("flashevolve_judge_stale", "item 2")


def test_a_job_runs_however_little_is_left_of_the_budget() -> None:
    limits = Limits(slots={"task": 1}, stages=("rollout", JUDGE), entry="task", budget=1)
    scheduler = Scheduler(limits, spent=2)  # a host in lockstep went beyond
    job = make_stage(JUDGE, 1, one_second, cost=0)
    assert scheduler.handle(ev.JobStarted(scheduler.next_number(), job)) == [ev.StartSample(1, 0, job)]


def test_leaving_a_driver_inside_the_work_of_a_judgement_records_the_items_alone() -> None:
    policy = Reading(_ask, lambda answer: Judgement(Verdict.ACCEPT, answer))
    with VirtualDriver(make_limits(3), policy) as driver:
        driver.decisions.reflector = Reflector("task", str, seconds=lambda: 9.0)
        driver.offer_from(several(3, lambda number: _stale(number) if number < 3 else rejected_item(number, 5.0)))
        for _ in range(2):  # until second 5
            ended = driver.next_ended()
            assert ended is not None
            driver.recorded(ended, [PoolEntry(1, None, 0.0)] if ended.record.terminal is Terminal.COMMITTED else [])
        assert driver.snapshot().running[JUDGE] == 1
    assert ends_of(policy.records) == {1: "committed", 2: "cancelled", 3: "rejected"}


def test_a_cancel_ends_a_judgement_and_its_work() -> None:
    policy = Reading(_ask, lambda answer: Judgement(Verdict.ACCEPT, answer))

    def body(number: int) -> Body:
        if number < 3:
            return (yield from _stale(number))
        yield make_stage("rollout", 1, lambda: 3.0, resource="local")
        return Outcome(Terminal.REJECTED, "not better")

    limits = make_limits(3)
    driver = VirtualDriver(Limits({"task": 2, "local": 1}, limits.stages, "task"), policy)
    driver.decisions.reflector = Reflector("task", str, seconds=lambda: 5.0)
    driver.offer_from(several(3, body))
    cancel_after(driver, 2)  # at second 4, inside the work for item 2
    assert [(record.number, record.terminal) for record in policy.records] == [
        (1, Terminal.COMMITTED),
        (3, Terminal.REJECTED),
        (2, Terminal.CANCELLED),
    ]
    assert [view.answer for view in policy.judged] == [None]
    last = driver.finish()
    assert (last.items, sum(last.busy.values()), last.samples[JUDGE]) == (0, 0, 1)
