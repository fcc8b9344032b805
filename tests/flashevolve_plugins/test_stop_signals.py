"""Ctrl-C and SIGTERM: whose handlers are in force, what the first and the second do, and that a waiting run wakes."""

import asyncio
import signal
import sys
import threading

import pytest
from local_runs import PATIENCE, make_limits, make_stage, our_threads, run_host

from flashevolve_plugins import Flash, RunStopped, _local
from flashevolve_plugins._local import LocalDriver
from flashevolve_plugins._model import Outcome, Terminal
from flashevolve_plugins._stopping import Stopping

pytestmark = pytest.mark.skipif(
    sys.platform == "win32" or threading.current_thread() is not threading.main_thread(), reason="needs signals"
)
NUMBERS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def pythons_own_handlers():
    """As in a program of which nobody has said anything about signals."""
    before = {number: signal.getsignal(number) for number in NUMBERS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def handlers():
    return tuple(signal.getsignal(number) for number in NUMBERS)


def stopping(**settings):
    return Stopping(Flash(progress=False, **settings), None)


def interrupt(number=signal.SIGINT):
    signal.pthread_kill(threading.main_thread().ident, number)


def test_pythons_own_handlers_are_back_after_the_run():
    before = handlers()
    with stopping():
        assert all(each != other for each, other in zip(handlers(), before, strict=True))
    assert handlers() == before


def test_they_are_back_after_a_run_that_raised():
    before = handlers()
    with pytest.raises(ZeroDivisionError), stopping():
        raise ZeroDivisionError
    assert handlers() == before


def mine(number, frame):
    raise KeyboardInterrupt("mine")


def test_a_handler_of_the_users_own_is_left_alone():
    signal.signal(signal.SIGINT, mine)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with stopping():
        assert handlers() == (mine, signal.SIG_IGN)
        with pytest.raises(KeyboardInterrupt, match="mine"):
            interrupt()
    assert handlers() == (mine, signal.SIG_IGN)


def test_a_handler_that_was_set_during_the_run_stays():
    with stopping():
        signal.signal(signal.SIGINT, mine)
    assert handlers() == (mine, signal.SIG_DFL)


def test_on_another_thread_nothing_is_installed():
    seen, before = [], handlers()

    def run():
        with stopping():
            seen.append(handlers())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [before]


def test_in_lockstep_nothing_is_installed():
    before = handlers()
    with stopping(lockstep=True):
        assert handlers() == before


def test_runs_inside_one_another_leave_the_outer_ones_in_force():
    before = handlers()
    with stopping() as outer:
        ours = handlers()
        with stopping() as inner:
            assert handlers() == ours
            assert not inner.ends_inner()
            interrupt()
            assert outer.ends_inner()
        assert handlers() == ours
    assert handlers() == before


def test_the_handler_of_asyncio_counts_as_pythons_own():
    """It would cancel the task, which nobody sees while the host runs, and lose the result."""

    async def main():
        before = signal.getsignal(signal.SIGINT)
        with stopping():
            assert signal.getsignal(signal.SIGINT) != before
            interrupt()
        assert signal.getsignal(signal.SIGINT) == before
        await asyncio.sleep(0)
        return "not cancelled"

    assert asyncio.run(main()) == "not cancelled"


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
@pytest.mark.parametrize("first", NUMBERS)
def test_the_second_one_raises_at_once(number, kind, first):
    with stopping():
        interrupt(first)
        with pytest.raises(kind) as raised:
            interrupt(number)
    assert kind is KeyboardInterrupt or raised.value.code == 128 + signal.SIGTERM


def ends(driver, stop, hang):
    """The terminals of a run of one item, which hangs."""

    def body(_):
        yield make_stage(hang)
        return Outcome(Terminal.COMMITTED)

    stop.watch(driver)
    return [each.terminal for each in run_host(driver, lambda number: body(number) if number == 1 else None)]


@pytest.fixture
def release():
    """Set when the test is over; then no thread is left."""
    event = threading.Event()
    yield event
    event.set()
    for thread in our_threads():
        thread.join(PATIENCE)


@pytest.mark.parametrize("number", NUMBERS)
def test_one_wakes_a_driver_that_waits(number, monkeypatch):
    monkeypatch.setattr(_local, "SNAPSHOT_EVERY", 1000.0)  # it does not look by itself
    with stopping() as stop, LocalDriver(make_limits(1)) as driver:
        stop.watch(driver)
        interrupt(number)
        assert driver._wait() is None


@pytest.mark.parametrize("number", NUMBERS)
def test_one_ends_a_run_in_which_nothing_ends(number, release):
    def hang():
        interrupt(number)
        release.wait(PATIENCE)

    with stopping(grace=0.0) as stop, LocalDriver(make_limits(1)) as driver:
        assert ends(driver, stop, hang) == [Terminal.CANCELLED]
    assert stop.reason == ("Ctrl-C" if number == signal.SIGINT else "SIGTERM")
    assert driver.abandoned == 1


def test_ctrl_c_ends_the_wait_of_a_stop_that_something_else_asked_for(release):
    started = threading.Event()

    def hang():
        started.set()
        while stop.reason is None:
            release.wait(0.01)
        interrupt()
        release.wait(PATIENCE)

    with stopping(grace=1e6, on_stop="raise") as stop, LocalDriver(make_limits(1)) as driver:
        stop.host_asks = started.is_set
        assert ends(driver, stop, hang) == [Terminal.CANCELLED]
    assert driver.abandoned == 1
    with pytest.raises(RunStopped, match="the host was asked to stop") as stopped:
        stop.require_none(lambda: ({"a": "text"}, 0.5))
    assert stopped.value.best == {"a": "text"}


def test_a_coroutine_is_cancelled_when_the_grace_period_is_over(release):
    cancelled = threading.Event()

    async def wait():
        interrupt()
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def body(_):
        yield make_stage(wait, asynchronous=True)
        return Outcome(Terminal.COMMITTED)

    with stopping(grace=0.1) as stop, LocalDriver(make_limits(1)) as driver:
        stop.watch(driver)
        (record,) = run_host(driver, lambda number: body(number) if number == 1 else None)
        assert record.terminal is Terminal.CANCELLED
    assert cancelled.is_set()
