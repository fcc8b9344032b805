"""The law of failing servers, in virtual time: tried again, held back, given up, and never scored or charged."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from virtual_items import Watching, ends_of, make_limits, run_host

from flashevolve_plugins import BackendError
from flashevolve_plugins._calls import MOST_TIMEOUTS, MOST_TRIES
from flashevolve_plugins._given_up import MOST_IN_A_ROW
from flashevolve_plugins._governor import FIRST_OUTAGE
from flashevolve_plugins._model import Discarded, Limits, Outcome, Patience, Sample, Stage, Terminal
from flashevolve_plugins._virtual import VirtualDriver

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashevolve_plugins._bodies import Body


class Server:
    """Answers, or raises what ``fault`` gives for (now, name of the sample, its tries so far). Sees every start."""

    def __init__(self, fault: Callable[[float, str, int], BaseException | None], seconds: float = 1.0) -> None:
        self.fault, self.seconds = fault, seconds
        self.starts: list[tuple[float, str]] = []
        self.ends: list[tuple[float, str, bool]] = []
        self.tries: Counter[str] = Counter()
        self.running = self.most = 0
        self.driver: VirtualDriver | None = None

    def sample(self, name: str, resource: str = "task", cost: int = 1, seconds: float | None = None) -> Sample:
        def begin() -> float:
            assert self.driver is not None
            self.starts.append((self.driver.now(), name))
            self.tries[name] += 1
            self.running += 1
            self.most = max(self.most, self.running)
            return self.seconds if seconds is None else seconds

        def end() -> str:
            assert self.driver is not None
            self.running -= 1
            error = self.fault(self.driver.now(), name, self.tries[name])
            self.ends.append((self.driver.now(), name, error is None))
            if error is not None:
                raise error
            return name

        return Sample(end, resource, cost=cost, seconds=begin)


def item(server: Server, number: int, samples: int = 3, accept: bool = True) -> Body:
    results = yield Stage("rollout", tuple(server.sample(f"{number}.{each}") for each in range(samples)))
    assert results == [f"{number}.{each}" for each in range(samples)]
    return Outcome(Terminal.COMMITTED if accept else Terminal.REJECTED, payload=results)


def run(
    server: Server,
    items: int = 6,
    slots: int = 4,
    patience: Patience | None = None,
    body: Callable[[int], Body] | None = None,
    limits: Limits | None = None,
) -> tuple[Watching, VirtualDriver, list[Any], BackendError | None]:
    policies, records, error = Watching(), [], None
    driver = server.driver = VirtualDriver(limits or make_limits(slots), policies, patience=patience)
    make = body or (lambda number: item(server, number))
    try:
        with driver:
            records = run_host(driver, lambda number: make(number) if number <= items else None)
    except BackendError as raised:
        error = raised
    return policies, driver, records, error


def down(first: float, last: float) -> Callable[[float, str, int], BaseException | None]:
    return lambda now, *_: ConnectionResetError("reset") if first <= now < last else None


@pytest.mark.parametrize("outage", [(2.5, 9.0), (0.0, 30.0), (3.0, 40.0)])
def test_a_server_that_comes_back_costs_nothing_but_time(outage: tuple[float, float]) -> None:
    server = Server(down(*outage))
    _, driver, records, error = run(server)
    assert error is None
    assert ends_of(records) == dict.fromkeys(range(1, 7), "committed")
    assert driver.scheduler.ledger.spent == 18  # each sample once
    assert Counter(name for _, name, good in server.ends if good) == dict.fromkeys(server.tries, 1)
    last = driver.snapshot()
    assert last.retries == len(server.starts) - 18 == last.failures["connection"] > 3
    assert outage[1] - outage[0] - 1 <= last.outage_seconds <= outage[1] - outage[0] + 21
    assert (last.outage, last.outage_reason) == (0.0, "")


@pytest.mark.parametrize("slots", [1, 3, 16])
@pytest.mark.parametrize("seconds", [0.0, 0.3, 4.0])
@pytest.mark.parametrize("max_outage", [5.0, 45.0])
def test_a_server_that_stays_away_ends_the_run_within_the_outage_allowed(
    slots: int, seconds: float, max_outage: float
) -> None:
    server = Server(lambda now, *_: ConnectionResetError("gone for good") if now > 20 else None, seconds)
    if seconds == 0.0:
        server.fault = lambda *_: ConnectionResetError("gone for good")
    policies, driver, _, error = run(server, items=600, slots=slots, patience=Patience(max_outage))
    assert error is not None
    pattern = r"(\d+) task calls failed in (\d+) s and none succeeded, the last one with ConnectionResetError: gone for"
    count, lasted = map(int, re.match(pattern, str(error)).groups())  # type: ignore[union-attr]
    began = next(now for now, _, good in server.ends if not good)
    assert count == sum(not good for *_, good in server.ends) >= 3
    assert lasted == round(driver.now() - began)
    least = 3 * seconds + 0.5 + 1.0 if slots == 1 else 0.0  # until there are three failures
    assert max_outage <= driver.now() - began <= max(max_outage, least) + 0.001
    assert str(error).endswith("with a run_dir (dspy: log_dir) the state is kept: run again with the same one.")
    assert driver.scheduler.ledger.spent == sum(good for *_, good in server.ends)  # what failed is not charged
    assert {each.number for each in policies.records} == set(range(1, len(policies.records) + 1))  # no item is lost
    assert {each.terminal for each in policies.records} <= {Terminal.COMMITTED, Terminal.CANCELLED}


def test_where_nobody_ever_listened_the_run_ends_sooner() -> None:
    server = Server(lambda *_: ConnectionRefusedError("refused"), 0.0)
    _, driver, _, error = run(server)
    assert error is not None
    assert FIRST_OUTAGE <= driver.now() <= 1.5 * FIRST_OUTAGE
    later = Server(lambda now, *_: ConnectionRefusedError("refused") if now > 1.5 else None)
    _, driver, _, error = run(later, items=40)
    assert error is not None
    assert driver.now() >= 45


def test_tries_come_further_and_further_apart_and_not_all_at_once() -> None:
    server = Server(down(0.0, 30.0), 0.0)
    run(server, items=1, slots=3)
    gaps = []
    for name in ("1.0", "1.1", "1.2"):
        starts = [now for now, each in server.starts if each == name]
        gaps.append([after - before for before, after in pairwise(starts)])
    for one in gaps:
        assert all(0.5 <= gap / min(0.5 * 2**place, 45 / 4) <= 1 for place, gap in enumerate(one))
    assert len({gap for one in gaps for gap in one}) == sum(map(len, gaps))  # jitter


@pytest.mark.parametrize("seed", range(5))
def test_a_retry_after_holds_back_every_start_on_its_resource_and_on_no_other(seed: int) -> None:
    """Two resources: one is told to wait."""
    said: list[float] = []
    told = SimpleNamespace(headers={"retry-after": "7"})

    def limited(now: float, name: str, tries: int) -> BaseException | None:
        if name.startswith("task") and tries == 1 and int(name.split(".")[1]) % 5 == seed and len(said) < 3:
            said.append(now)
            error = type("RateLimitError", (Exception,), {})("slow down")
            error.response = told
            return error
        return None

    server = Server(limited)

    def others(number: int) -> list[Sample]:
        return [server.sample(f"other.{number}.{each}", "other") for each in range(6)]

    def body(number: int) -> Body:
        yield Stage("rollout", (server.sample(f"task.{number}"), *others(number)))
        return Outcome(Terminal.REJECTED, "not better")

    limits = Limits(slots={"task": 3, "other": 3}, stages=("rollout",), entry="task")
    _, driver, records, error = run(server, items=30, body=body, limits=limits)
    assert error is None
    assert set(ends_of(records).values()) == {"rejected"}
    assert len(said) == 3
    for moment in said:
        assert not [name for now, name in server.starts if name.startswith("task") and moment < now < moment + 7]
    other = [now for now, name in server.starts if name.startswith("other")]
    assert any(said[0] < now < said[0] + 7 for now in other)
    assert driver.snapshot().failures == {"rate limit": 3}


def test_a_server_that_asks_for_longer_than_an_outage_may_last_ends_the_run() -> None:
    def limited(*_: Any) -> BaseException:
        error = type("RateLimitError", (Exception,), {})("come back tomorrow")
        error.response = SimpleNamespace(headers={"retry-after": "86400"})
        return error

    server = Server(limited)
    _, driver, _, error = run(server)
    assert error is not None
    assert "come back tomorrow" in str(error)
    assert driver.now() <= 47
    assert len(server.starts) == 4


def poison(*names: str) -> Callable[[float, str, int], BaseException | None]:
    return lambda _, name, __: ConnectionResetError("again") if name in names else None


def test_a_sample_that_fails_while_others_succeed_ends_its_item_uncharged_and_the_run_goes_on() -> None:
    server = Server(poison("2.1"))
    thrown: list[Discarded] = []

    def body(number: int) -> Body:
        try:
            return (yield from item(server, number))
        except Discarded as why:
            thrown.append(why)
            return Outcome(why.terminal, why.reason, "kept")

    _, driver, records, error = run(server, items=80, body=body)
    assert error is None
    assert server.tries["2.1"] == MOST_TRIES
    ends = ends_of(records)
    assert ends.pop(2) == "failed"
    assert set(ends.values()) == {"committed"}
    (record,) = [each for each in records if each.number == 2]
    assert record.reason == "rollout never got an answer (ConnectionResetError: again)"
    assert isinstance(record.error, ConnectionResetError)
    assert record.spent == 2
    assert [(why.terminal, why.stage) for why in thrown] == [(Terminal.FAILED, "rollout")]
    assert driver.scheduler.ledger.spent == 80 * 3 - 1
    assert driver.scheduler.ledger.reserved == 0


def test_ten_items_in_a_row_that_end_so_end_the_run() -> None:
    def fault(_: float, name: str, __: int) -> BaseException | None:
        return ConnectionResetError("again") if name.endswith(".1") else None

    server, limits = Server(fault), make_limits(8, max_items=4)
    _, _, records, error = run(server, items=400, body=lambda number: item(server, number, samples=200), limits=limits)
    assert error is not None
    assert str(error).startswith(f"{MOST_IN_A_ROW} proposals in a row never got an answer, the last one with Conn")
    assert {each.terminal for each in records} <= {Terminal.FAILED}


def test_nine_in_a_row_and_one_that_is_rejected_do_not() -> None:
    def body(number: int) -> Body:
        yield Stage("rollout", tuple(server.sample(f"{number}.{each}") for each in range(80)))
        return Outcome(Terminal.REJECTED, "not better")

    def fault(_: float, name: str, __: int) -> BaseException | None:
        number, part = map(int, name.split("."))
        return ConnectionResetError("again") if part == 1 and number % 10 else None

    server = Server(fault)
    limits = Limits(slots={"task": 2}, stages=("rollout",), entry="task", max_items=1)
    _, _, records, error = run(server, items=40, body=body, limits=limits)
    assert error is None
    assert Counter(ends_of(records).values()) == {"failed": 36, "rejected": 4}


def test_a_run_at_its_end_gives_up_the_last_sample_instead_of_its_result() -> None:
    server = Server(poison("6.1"))
    _, driver, records, error = run(server, items=6)
    assert error is None
    assert ends_of(records) == {**dict.fromkeys(range(1, 6), "committed"), 6: "failed"}
    assert driver.now() <= 60


def test_slow_calls_beside_a_sample_that_fails_are_no_outage() -> None:
    """Only one of the four fails, the others just take their time."""
    server = Server(poison("1.0"))

    def body(number: int) -> Body:
        yield Stage("rollout", (server.sample(f"{number}.0", seconds=0.1 if number == 1 else 200.0),))
        return Outcome(Terminal.COMMITTED)

    _, _, records, error = run(server, items=30, body=body)
    assert error is None
    ends = ends_of(records)
    assert ends.pop(1) == "failed"
    assert set(ends.values()) == {"committed"}


def test_an_outage_right_after_a_success_costs_no_item_however_often_it_is_tried() -> None:
    """One of four fails, the others succeed after that, and then the server is away for 40 seconds."""

    def fault(now: float, name: str, tries: int) -> BaseException | None:
        away = 1.5 < now < 41.5 or (name == "1.0" and now < 41.5)
        return ConnectionResetError("reset") if away else None

    server = Server(fault)

    def body(number: int) -> Body:
        slow = {"1.0": 0.5}
        names = [f"{number}.{each}" for each in range(4)]
        yield Stage("rollout", tuple(server.sample(name, seconds=slow.get(name)) for name in names))
        return Outcome(Terminal.COMMITTED)

    _, _, records, error = run(server, items=4, body=body)
    assert error is None
    assert set(ends_of(records).values()) == {"committed"}


def test_a_failure_of_the_program_is_not_tried_again_and_is_charged() -> None:
    server = Server(lambda _, name, __: ValueError("no score") if name == "1.1" else None)
    _, driver, records, _ = run(server, items=2)
    assert server.tries["1.1"] == 1
    assert ends_of(records) == {1: "failed", 2: "committed"}
    assert driver.scheduler.ledger.spent == 6


def test_what_a_sample_catches_is_its_result_unless_a_server_is_to_blame() -> None:
    faults = {1: ConnectionResetError("reset"), 2: ValueError("no dataset")}
    server = Server(lambda _, __, tries: faults.get(tries))
    results: list[Any] = []

    def body(_: int) -> Body:
        plain = server.sample("1.0")
        results.extend((yield Stage("rollout", (Sample(plain.call, "task", seconds=plain.seconds, catches=True),))))
        return Outcome(Terminal.COMMITTED)

    _, _, records, _ = run(server, items=1, body=body)
    assert ends_of(records) == {1: "committed"}
    assert results == [faults[2]]
    assert server.tries["1.0"] == 2


def test_a_sample_that_is_given_up_has_no_result_whatever_it_catches() -> None:
    server = Server(poison("2.1"))

    def body(number: int) -> Body:
        plain = [server.sample(f"{number}.{each}") for each in range(3)]
        yield Stage("rollout", tuple(Sample(each.call, "task", seconds=each.seconds, catches=True) for each in plain))
        return Outcome(Terminal.COMMITTED)

    _, _, records, _ = run(server, items=80, body=body)
    assert Counter(ends_of(records).values()) == {"committed": 79, "failed": 1}


def test_what_was_cancelled_is_not_tried_again_while_the_rest_ends() -> None:
    server = Server(poison("1.0"))

    def body(number: int) -> Body:
        yield Stage("rollout", (server.sample(f"{number}.0", seconds=0.1 if number == 1 else 100.0),))
        return Outcome(Terminal.COMMITTED)

    driver = server.driver = VirtualDriver(make_limits(2), Watching())
    with driver:
        driver.offer_from(lambda number: body(number) if number <= 2 else None)
        driver._step()
        assert server.tries["1.0"] == 1
        driver.stop("Ctrl-C", cancel=True)
        ended = []
        while (one := driver.next_ended()) is not None:
            ended.append((one.number, one.outcome.terminal, driver.now()))
            driver.recorded(one)
    assert ended == [(1, Terminal.CANCELLED, 0.1), (2, Terminal.CANCELLED, 100.0)]
    assert server.tries["1.0"] == 1


def test_a_cancel_forgets_what_waits_for_its_next_try() -> None:
    server = Server(down(0.0, 1e9))
    policies = Watching()
    driver = server.driver = VirtualDriver(make_limits(4), policies)
    with driver:
        driver.offer_from(lambda number: item(server, number) if number <= 3 else None)
        for _ in range(8):
            driver._step()
        before = len(server.starts)
        driver.stop("Ctrl-C", cancel=True)
        while (ended := driver.next_ended()) is not None:
            driver.recorded(ended)
    assert len(server.starts) == before
    assert {each.terminal for each in policies.records} == {Terminal.CANCELLED}
    assert (driver.scheduler.ledger.spent, driver.scheduler.ledger.reserved) == (0, 0)


def test_the_failed_seed_ends_the_run_in_one_sentence() -> None:
    server = Server(poison("seed.1"), 0.2)
    driver = server.driver = VirtualDriver(make_limits(2), Watching())
    samples = tuple(server.sample(f"seed.{each}") for each in range(400))
    with driver, pytest.raises(BackendError, match=r"^A call of validate never got an answer \(ConnectionReset.*kept"):
        driver.host_item().run(Stage("validate", samples))
    assert server.tries["seed.1"] == MOST_TRIES


# -- deadlines -------------------------------------------------------------------------------------------------------


def hanging(server: Server, number: int, hung: set[int], seconds: float) -> Body:
    slow = seconds if number in hung else None
    yield Stage("rollout", (server.sample(f"{number}.0", seconds=slow),))
    return Outcome(Terminal.REJECTED, "not better")


def test_a_call_past_its_deadline_is_tried_again_in_another_slot_and_its_slot_is_gone_until_it_returns() -> None:
    server = Server(lambda *_: None, 3.0)  # so that nothing ends between the deadline and the second try
    first = [50.0]  # the first call alone hangs

    def body(number: int) -> Body:
        plain = server.sample(f"{number}.0")

        def begin() -> float:
            assert plain.seconds is not None
            seconds = plain.seconds()
            return first.pop() if number == 1 and first else seconds

        yield Stage("rollout", (Sample(plain.call, "task", cost=1, seconds=begin),))
        return Outcome(Terminal.REJECTED, "not better")

    slots: list[tuple[float, int, int]] = []

    class Looking(Watching):
        def snapshot(self, snapshot: Any) -> None:
            slots.append((snapshot.seconds, snapshot.slots["task"], snapshot.abandoned))

    policies = Looking()
    driver = server.driver = VirtualDriver(make_limits(3), policies, patience=Patience(sample_timeout=10.0))
    with driver:
        records = run_host(driver, lambda number: body(number) if number <= 200 else None)
    assert set(ends_of(records).values()) == {"rejected"}
    first, second = [now for now, name in server.starts if name == "1.0"]
    assert first + 10 < second < first + 13  # as soon as another sample has left its slot
    assert driver.scheduler.ledger.spent == 200
    assert {(left, gone) for now, left, gone in slots if now < 10} == {(3, 0)}
    assert {(left, gone) for now, left, gone in slots if 13 < now < 50} == {(2, 1)}
    assert {(left, gone) for now, left, gone in slots if now > 54} == {(3, 0)}
    assert server.most <= 3  # the hanging one counted: never more at once than there are slots
    assert driver.snapshot().failures == {"timeout": 1}


def test_a_sample_that_always_passes_its_deadline_is_given_up_after_three_tries() -> None:
    server = Server(lambda *_: None)
    patience = Patience(sample_timeout=10.0)
    _, _, records, error = run(
        server, items=300, slots=6, patience=patience, body=lambda number: hanging(server, number, {4}, 1e6)
    )
    assert error is None
    assert server.tries["4.0"] == MOST_TIMEOUTS
    ends = ends_of(records)
    assert ends.pop(4) == "failed"
    assert set(ends.values()) == {"rejected"}


@pytest.mark.parametrize("slots", [1, 4])
def test_a_run_whose_every_call_hangs_ends(slots: int) -> None:
    server = Server(lambda *_: None, 1e6)
    _, driver, _, error = run(server, slots=slots, patience=Patience(sample_timeout=10.0))
    assert error is not None
    assert "no answer within 10 s" in str(error)
    assert driver.now() <= 10 + 45 + 0.001
    assert len(server.starts) == slots  # no slot was free for a second try
    assert driver.snapshot().abandoned == slots


def test_a_single_slot_never_runs_two_calls_at_once() -> None:
    """As an adapter needs it that may be called by one thread only."""
    server = Server(lambda *_: None)
    patience = Patience(max_outage=100.0, sample_timeout=10.0)
    waits = {1: 30.0}
    _, _, records, error = run(
        server, items=3, slots=1, patience=patience, body=lambda number: hanging(server, number, set(waits), 30.0)
    )
    assert error is None
    starts = [now for now, _ in server.starts]
    assert all(after >= before + 30.0 for before, after in pairwise(starts[:3]))
    assert ends_of(records)[1] == "failed"
