"""Failing servers and real threads: abandoned calls, cancelled coroutines, what close leaves behind, stalls."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from local_runs import PATIENCE, make_limits, make_stage, our_threads, run_host

from flashevolve_plugins import BackendError, _governor, _local
from flashevolve_plugins._calls import MOST_TIMEOUTS
from flashevolve_plugins._event_loop import THREAD_NAME
from flashevolve_plugins._inline import InlineDriver
from flashevolve_plugins._local import LocalDriver
from flashevolve_plugins._model import Outcome, Patience, Terminal
from flashevolve_plugins._stall import SILENT, Stall

if TYPE_CHECKING:
    from flashevolve_plugins._bodies import Body


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_governor, "FIRST_DELAY", 0.01)


DEADLINE = 1000.0  # seconds; who wants it to pass turns the clock


class Turned(LocalDriver):
    """Its clock can be turned on, and then the driver looks at it."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead

    def turn(self) -> None:
        self.ahead += DEADLINE
        self.wake()


def turned(slots: int, max_outage: float = 1e9) -> Turned:
    return Turned(make_limits(slots), patience=Patience(max_outage=max_outage, sample_timeout=DEADLINE))


def one_stage(*calls: Any, asynchronous: bool = False) -> Any:
    def body(_: int) -> Body:
        results = yield make_stage(*calls, asynchronous=asynchronous)
        return Outcome(Terminal.REJECTED, payload=results)

    return body


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_sample_is_tried_again_until_its_server_is_back(asynchronous: bool) -> None:
    calls: Counter[str] = Counter()

    def call() -> str:
        calls["tries"] += 1
        if calls["tries"] < 4:
            raise ConnectionResetError("reset")
        return "answer"

    async def later() -> str:
        await asyncio.sleep(0)
        return call()

    driver = LocalDriver(make_limits(1))
    with driver:
        item = driver.host_item()
        assert item.run(make_stage(later if asynchronous else call, asynchronous=asynchronous)) == ["answer"]
    assert calls["tries"] == 4
    assert driver.snapshot().retries == 3
    assert driver.scheduler.ledger.spent == 1


def test_in_lockstep_nothing_is_tried_again() -> None:
    calls: list[int] = []

    def call() -> None:
        calls.append(1)
        raise ConnectionResetError("reset")

    with InlineDriver(make_limits(1)) as driver, pytest.raises(ConnectionResetError):
        driver.host_item().run(make_stage(call))
    assert len(calls) == 1


def test_a_thread_past_its_deadline_is_abandoned_and_its_late_result_ignored() -> None:
    release, calls = threading.Event(), Counter[str]()

    def call() -> str:
        calls["tries"] += 1
        if calls["tries"] == 1:
            driver.turn()
            assert release.wait(PATIENCE)
            return "late"
        return "in time"

    driver = turned(2)
    with driver:
        item = driver.host_item()
        assert item.run(make_stage(call)) == ["in time"]
        assert (driver.snapshot().abandoned, driver.scheduler.slots) == (1, {"task": 1})
        release.set()
        while driver.snapshot().abandoned:  # the late result comes about now; it must not count as another one's
            assert item.run(make_stage(threading.get_ident)) != ["late"]
        assert driver.scheduler.slots == {"task": 2}
        together = threading.Barrier(2)
        item.run(make_stage(*[lambda: together.wait(PATIENCE)] * 2))  # both slots are of use again
    assert calls["tries"] == 2
    assert driver.abandoned == 0


def test_a_call_that_never_returns_is_counted_when_the_run_is_over() -> None:
    release = threading.Event()
    driver = turned(2)
    calls: Counter[str] = Counter()

    def call() -> None:
        calls["tries"] += 1
        if calls["tries"] == 1:
            driver.turn()
            release.wait(PATIENCE)

    try:
        with driver:
            driver.host_item().run(make_stage(call))
        assert driver.abandoned == driver.snapshot().abandoned == 1
    finally:
        release.set()
        for thread in our_threads():
            thread.join(PATIENCE)


def test_when_every_slot_is_taken_by_calls_that_never_return_the_run_ends() -> None:
    release = threading.Event()
    driver = LocalDriver(make_limits(2), patience=Patience(max_outage=0.3, sample_timeout=0.05))
    try:
        with driver, pytest.raises(BackendError, match="the last one with no answer within 0.05 s"):
            driver.host_item().run(make_stage(*[lambda: release.wait(PATIENCE)] * 4))
        assert driver.snapshot().abandoned == 2
    finally:
        release.set()
        for thread in our_threads():
            thread.join(PATIENCE)


def test_a_coroutine_past_its_deadline_is_really_cancelled() -> None:
    cancelled: list[int] = []

    async def endless() -> None:
        try:
            driver.turn()
            await asyncio.Event().wait()
        finally:
            cancelled.append(1)

    driver = turned(1)
    with driver:
        (record,) = run_host(
            driver, lambda number: one_stage(endless, asynchronous=True)(number) if number < 2 else None
        )
    assert len(cancelled) == MOST_TIMEOUTS
    assert record.terminal is Terminal.FAILED
    assert record.reason.startswith("rollout never got an answer (no answer within 1000 s")
    assert record.spent == 0
    assert driver.abandoned == 0


def test_a_pending_retry_does_not_outlive_the_driver() -> None:
    started = threading.Event()

    def call() -> None:
        started.set()
        raise ConnectionResetError("reset")

    driver = LocalDriver(make_limits(1))
    with driver:
        driver.offer_from(lambda number: one_stage(call)(number) if number < 2 else None)
        while driver._calls.timers.next is None:  # a wait may end before the call does
            driver._step()
        assert started.is_set()
    assert driver._calls.timers.next is None
    assert our_threads() == []


BLOCKED = """
import threading, time
from flashevolve_plugins import _event_loop
from flashevolve_plugins._local import LocalDriver
from flashevolve_plugins._model import Limits, Outcome, Sample, Stage, Terminal

_event_loop.CLOSE_SECONDS = 0.1
started = threading.Event()

async def blocks():
    started.set()
    time.sleep(600)

def body(_):
    yield Stage("rollout", (Sample(blocks, "task", asynchronous=True),))

driver = LocalDriver(Limits(slots={"task": 1}, stages=("rollout",), entry="task"))
with driver:
    driver.offer_from(lambda number: body(number) if number < 2 else None)
    started.wait()
print(driver.abandoned, driver.snapshot().abandoned)
"""


def test_a_coroutine_that_blocks_does_not_keep_the_process_from_ending() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED], capture_output=True, text=True, timeout=2 * PATIENCE, check=False
    )
    assert (done.stdout.split(), done.returncode) == (["1", "1"], 0), done.stderr


def test_coroutines_that_take_notice_are_gone_when_the_driver_is_closed() -> None:
    started, counts = threading.Event(), Counter[str]()

    async def endless() -> None:
        counts["started"] += 1
        try:
            if counts["started"] == 3:
                started.set()
            await asyncio.Event().wait()
        finally:
            counts["cancelled"] += 1

    driver = LocalDriver(make_limits(3))
    with driver:
        driver.offer_from(lambda number: one_stage(*[endless] * 3, asynchronous=True)(number) if number < 2 else None)
        assert started.wait(PATIENCE)
    assert counts["cancelled"] == 3
    assert driver.abandoned == 0
    assert our_threads(THREAD_NAME) == []


def test_a_run_in_which_nothing_ends_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    class Calls:
        def running(self) -> tuple[int, float]:
            return 3, 10.0

    stall, calls = Stall(0.0), Calls()
    stall.ended(50.0)
    with caplog.at_level(logging.WARNING, "flashevolve_plugins"):
        stall.check(49.0 + SILENT, calls)  # type: ignore[arg-type]
        assert caplog.messages == []
        for now in (50.0 + SILENT, 51.0 + SILENT):
            stall.check(now, calls)  # type: ignore[arg-type]
    (message,) = caplog.messages
    assert message.startswith("No call has ended for 300 s: 3 are under way, the oldest for 340 s; Flash(")


def test_a_stalled_run_is_looked_at_while_it_waits(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    release = threading.Event()
    monkeypatch.setattr("flashevolve_plugins._stall.SILENT", 0.0)
    monkeypatch.setattr(_local, "SNAPSHOT_EVERY", 0.01)

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith("No call has ended"):
                release.set()

    logger, handler = logging.getLogger("flashevolve_plugins"), Handler()
    logger.addHandler(handler)
    try:
        with LocalDriver(make_limits(1)) as driver:
            assert driver.host_item().run(make_stage(lambda: release.wait(PATIENCE))) == [True]
    finally:
        logger.removeHandler(handler)
