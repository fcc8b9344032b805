"""What stops a run, in virtual time: what is settled, what is ended, and for how long it waits."""

import logging
import re
from pathlib import Path

import pytest
from virtual_items import Watching, ends_of, full_item, make_limits, make_stage, one_second, rejected_item, run_host

from flashevolve_plugins import Flash, RunStopped
from flashevolve_plugins._decisions import Reflector
from flashevolve_plugins._model import Outcome, PoolEntry, Terminal
from flashevolve_plugins._policies import Work
from flashevolve_plugins._stopping import Stopping
from flashevolve_plugins._virtual import VirtualDriver


def flash(**settings):
    return Flash(progress=False, clock="virtual", **settings)


def run(slots, source, *, run_dir=None, drain=True, **settings):
    """A run of items in virtual time that something stops. Gives the driver, the records, and what stopped it."""
    driver = VirtualDriver(make_limits(slots), watching := Watching())
    with Stopping(flash(**settings), run_dir, drain=drain) as stopping, driver:
        stopping.watch(driver)
        run_host(driver, source)
    return driver, watching, stopping


def test_a_deadline_settles_the_validation_under_way_and_ends_everything_else():
    def source(number):  # the validation begins at second 3
        return full_item(one_second, validation=4) if number == 1 else rejected_item(number, seconds=0.75)

    driver, watching, stopping = run(4, source, max_seconds=3.5)
    ends = ends_of(watching.records)
    assert ends.pop(1) == "committed"
    last = [number for number, end in ends.items() if end == "cancelled"]
    assert last == list(range(min(last), max(ends) + 1)), "the others that ran at that time"
    assert driver.now() < 3.5 + 2.0
    assert stopping.reason == "max_seconds=3.5 are over"
    assert driver.scheduler.stop_reason == stopping.reason


def long_item(validation, gate=1.0):
    yield make_stage("gate", 1, lambda: gate)
    scores = yield make_stage("validate", 4, lambda: validation)
    return Outcome(Terminal.COMMITTED, payload=scores)


def one(body):
    return lambda number: body if number == 1 else None


def test_a_validation_goes_on_to_its_end_within_the_grace_period():
    driver, watching, _ = run(2, one(long_item(3.0)), max_seconds=2.0, grace=5.0)  # from second 1 to second 7
    assert ends_of(watching.records) == {1: "committed"}
    assert driver.now() == 7.0
    assert driver.scheduler.ledger.spent == 5


def test_a_validation_that_takes_longer_is_ended_when_the_grace_period_is_over_and_what_was_spent_counts():
    driver, watching, stopping = run(2, one(long_item(3.0)), max_seconds=2.0, grace=4.0)
    (record,) = watching.records
    assert (record.terminal, record.reason) == (Terminal.CANCELLED, stopping.reason)
    assert record.spent == driver.scheduler.ledger.spent == 3  # two of four had ended
    assert driver.scheduler.ledger.reserved == 0
    assert driver.now() == 6.0


def test_what_has_not_begun_its_validation_is_ended_at_once_and_what_runs_of_it_is_waited_for():
    driver, watching, _ = run(2, one(long_item(3.0, gate=5.0)), max_seconds=2.0, grace=4.0)
    (record,) = watching.records
    assert (record.terminal, record.spent) == (Terminal.CANCELLED, 1)
    assert driver.now() == 5.0, "its gate was paid for, and is kept"


def test_without_a_place_to_keep_it_what_runs_is_not_waited_for():
    driver, watching, _ = run(2, one(long_item(3.0, gate=5.0)), max_seconds=2.0, grace=4.0, drain=False)
    (record,) = watching.records
    assert (record.terminal, record.spent) == (Terminal.CANCELLED, 0)
    assert driver.now() == 2.0


def test_what_runs_is_waited_for_no_longer_than_what_is_settled_needs():
    def source(number):
        return {1: long_item(3.0), 2: long_item(1.0, gate=50.0)}.get(number)

    driver, watching, _ = run(4, source, max_seconds=2.0, grace=30.0, drain=False)
    assert ends_of(watching.records) == {1: "committed", 2: "cancelled"}
    assert driver.now() == 7.0


class Asking(Watching):
    """Asks a model about every stale item."""

    def judge_stale(self, item, pool):
        return Work(lambda ask: "never mind")


def test_a_decision_whose_item_is_ended_is_not_waited_for():
    driver = VirtualDriver(make_limits(4), watching := Asking())
    driver.decisions.reflector = Reflector("task", seconds=lambda: 50.0)
    with Stopping(flash(max_seconds=6.0, grace=30.0), None, drain=False) as stopping, driver:
        stopping.watch(driver)
        run_host(driver, {1: long_item(1.0), 2: long_item(1.0, gate=5.0)}.get)
    assert ends_of(watching.records) == {1: "committed", 2: "cancelled"}
    assert driver.now() == 6.0


def test_no_grace_ends_everything_at_the_deadline():
    driver, watching, _ = run(2, one(long_item(3.0)), max_seconds=2.0, grace=0.0)
    assert ends_of(watching.records) == {1: "cancelled"}
    assert driver.now() == 2.0


def test_nothing_is_offered_after_a_stop():
    asked = []

    def source(number):
        asked.append(number)
        return rejected_item(number, seconds=2.0)

    _, watching, _ = run(3, source, max_seconds=3.0)
    assert asked == [1, 2, 3, 4, 5, 6]
    assert list(ends_of(watching.records).values()) == ["rejected"] * 3 + ["cancelled"] * 3


def test_a_run_that_ends_before_its_deadline_is_not_stopped():
    _, watching, stopping = run(2, one(long_item(3.0)), max_seconds=50.0, on_stop="raise")
    assert ends_of(watching.records) == {1: "committed"}
    assert stopping.reason is None
    stopping.require_none(lambda: pytest.fail("nobody asks for the best"))


@pytest.mark.parametrize("name", ["run_dir", "stop_file"])
def test_a_stop_file_stops_the_run_and_is_gone(tmp_path, name):
    path = tmp_path / "flashevolve.stop" if name == "run_dir" else tmp_path / "enough"
    settings = {"run_dir": str(tmp_path)} if name == "run_dir" else {"stop_file": str(path)}

    def source(number):
        if number == 5:
            path.touch()
        return rejected_item(number)

    _, watching, stopping = run(1, source, **settings)
    assert stopping.reason == f"the file {str(path)!r}"
    assert not path.exists()
    assert len(watching.records) == 5


def test_both_stop_files_are_looked_for(tmp_path):
    (tmp_path / "flashevolve.stop").touch()
    _, watching, stopping = run(1, rejected_item, run_dir=str(tmp_path), stop_file=str(tmp_path / "other"))
    assert "flashevolve.stop" in (stopping.reason or "")
    assert watching.records == []


def test_a_file_that_cannot_be_removed_stops_the_run_too(tmp_path):
    (tmp_path / "flashevolve.stop").mkdir()
    _, _, stopping = run(1, rejected_item, run_dir=str(tmp_path))
    assert stopping.reason is not None


def test_a_score_that_is_reached_stops_the_run():
    driver = VirtualDriver(make_limits(2), watching := Watching())
    with Stopping(flash(stop_score=0.75), None) as stopping, driver:
        stopping.watch(driver)

        def source(_):
            assert all(entry.score < 0.75 for entry in driver.pool.entries), "nothing is offered any more"
            return long_item(1.0)

        driver.offer_from(source)
        while (ended := driver.next_ended()) is not None:
            score = 0.25 * (1 + driver.pool.version)
            committed = ended.record.terminal is Terminal.COMMITTED
            driver.recorded(ended, [PoolEntry(driver.pool.version + 1, None, score)] if committed else [])
    assert driver.pool.entries[2].score == 0.75
    assert "stop_score=0.75" in (stopping.reason or "")
    assert len(driver.pool.entries) <= 4, "at most what was being validated then"
    assert watching.records


def seeded(driver, seconds):
    """A host whose seed's validation takes so long; gives its results."""
    return driver.host_item().run(make_stage("validate", 4, lambda: seconds))


@pytest.mark.parametrize("on_stop", ["return", "raise"])
def test_a_stop_before_there_is_any_result_raises(on_stop):
    driver = VirtualDriver(make_limits(4), watching := Watching())
    with Stopping(flash(max_seconds=2.0, grace=3.0, on_stop=on_stop), "runs/7") as stopping, driver:
        stopping.watch(driver)
        with pytest.raises(RunStopped, match=r"\(max_seconds=2 are over\) before the seed was validated") as stopped:
            seeded(driver, 6.0)
        assert driver.now() == 5.0
    assert (stopped.value.best, stopped.value.score, stopped.value.run_dir) == (None, None, "runs/7")
    assert [record.terminal for record in watching.records] == [Terminal.CANCELLED]


def test_a_seed_that_is_validated_within_the_grace_period_is_the_result():
    driver = VirtualDriver(make_limits(4))
    with Stopping(flash(max_seconds=2.0, grace=5.0), None) as stopping, driver:
        stopping.watch(driver)
        assert len(seeded(driver, 6.0)) == 4
        driver.offer_from(lambda _: pytest.fail("nothing is offered after a stop"))
        assert stopping.reason is not None


def test_a_stop_before_the_first_call_spends_nothing(tmp_path):
    (tmp_path / "flashevolve.stop").touch()
    driver = VirtualDriver(make_limits(4))
    with Stopping(flash(), str(tmp_path)) as stopping, driver:
        stopping.watch(driver)
        with pytest.raises(RunStopped):
            seeded(driver, 1.0)
    assert driver.scheduler.ledger.spent == 0
    assert driver.now() == 0.0


def test_it_is_said_once_in_one_line_what_asked_and_how_long_it_waits(caplog):
    run(2, one(long_item(3.0)), max_seconds=2.0, grace=4.0)
    (message,) = [each.message for each in caplog.records if each.levelno >= logging.WARNING]
    assert message.startswith("Stopping (max_seconds=2 are over): nothing more is offered")
    assert "4 seconds" in message
    assert "\n" not in message


def test_the_error_carries_the_best_and_the_directory():
    _, _, stopping = run(2, rejected_item, run_dir="runs/7", max_seconds=2.0, on_stop="raise")
    with pytest.raises(RunStopped) as stopped:
        stopping.require_none(lambda: ({"a": "text"}, 0.5))
    error = stopped.value
    assert (error.best, error.score, error.run_dir, error.reason) == (
        {"a": "text"}, 0.5, "runs/7", "max_seconds=2 are over"
    )  # fmt: skip
    assert re.fullmatch(r"[^\n]*\.best, and the same call with 'runs/7' goes on from there\.", str(error))
    _, _, stopping = run(2, rejected_item, max_seconds=2.0)
    stopping.require_none(lambda: pytest.fail("it returns"))


def test_a_host_that_was_asked_to_stop_stops_gracefully_and_returns():
    driver = VirtualDriver(make_limits(2), watching := Watching())
    with Stopping(flash(on_stop="raise"), None) as stopping, driver:
        stopping.watch(driver)
        stopping.host_asks = lambda: driver.now() >= 3.0
        run_host(driver, lambda number: long_item(4.0) if number == 1 else None)
    assert ends_of(watching.records) == {1: "committed"}
    stopping.require_none(lambda: pytest.fail("it is the host's own stop"))


def test_a_run_inside_another_one_stops_when_that_is_over():
    with Stopping(flash(), None) as outer:
        driver = VirtualDriver(make_limits(1), watching := Watching())

        def source(number):
            outer.over = number == 4
            return rejected_item(number)

        with Stopping(flash(), None) as inner, driver:
            inner.watch(driver)
            run_host(driver, source)
    assert inner.reason == "the run around it stops"
    assert ends_of(watching.records)[4] == "cancelled"
    assert driver.now() == 3.0, "nobody waits for it any more"


def test_a_run_after_a_stopped_one_is_not_stopped(tmp_path):
    (tmp_path / "flashevolve.stop").touch()
    for expected in ({}, {1: "committed"}):
        _, watching, _ = run(2, one(long_item(1.0)), run_dir=str(tmp_path))
        assert ends_of(watching.records) == expected


def test_in_lockstep_nothing_is_listened_to(tmp_path):
    with Stopping(Flash(lockstep=True, progress=False), str(tmp_path)) as stopping:
        assert stopping._handled == {}
    assert Path(tmp_path).is_dir()
