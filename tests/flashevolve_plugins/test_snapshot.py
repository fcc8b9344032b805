"""The meter, fed with moments by hand, and the snapshot it makes."""

from __future__ import annotations

import dataclasses

import pytest

from flashevolve_plugins import _events as ev
from flashevolve_plugins._model import ItemRecord, Limits, PoolEntry, Sample, Stage, Terminal
from flashevolve_plugins._scheduler import Scheduler
from flashevolve_plugins._snapshot import Meter, Snapshot

START = 1000.0  # a clock that does not begin at zero


def _scheduler(**more: object) -> Scheduler:
    limits = Limits(slots={"task": 2, "reflection": 1}, stages=("rollout", "validate"), entry="task", budget=50)
    return Scheduler(dataclasses.replace(limits, **more))  # type: ignore[arg-type]


def _nothing() -> None:
    """No sample is called here."""


def _record(terminal: Terminal, staleness: int = 0) -> ItemRecord:
    return ItemRecord(1, terminal, "", version=0, staleness=staleness, spent=0, story=())


def test_a_fresh_meter_shows_an_empty_run() -> None:
    snapshot = Meter(START).snapshot(START, _scheduler())
    assert snapshot.seconds == 0
    assert snapshot.slots == {"task": 2, "reflection": 1}
    assert (snapshot.spent, snapshot.reserved, snapshot.budget, snapshot.items) == (0, 0, 50, 0)
    assert (snapshot.seed_score, snapshot.best_score) == (None, None)
    assert (snapshot.window, snapshot.window_busy) == ((0.0, 0.0), {})
    assert (snapshot.proposals, snapshot.accepted) == (0, 0)


def test_busy_seconds_add_up_over_samples_that_overlap() -> None:
    meter = Meter(START)
    meter.sample_started(START + 1, "task")
    meter.sample_started(START + 2, "task")
    meter.sample_started(START + 2, "reflection")
    meter.sample_ended(START + 4, "task", "rollout", 3.0)
    meter.sample_ended(START + 5, "task", "validate", 3.0)
    snapshot = meter.snapshot(START + 6, _scheduler())
    assert snapshot.seconds == 6
    assert snapshot.busy_seconds == {"task": 6.0, "reflection": 4.0}
    assert snapshot.samples == {"rollout": 1, "validate": 1}
    assert snapshot.sample_seconds == {"rollout": 3.0, "validate": 3.0}


def test_the_window_reaches_from_the_first_to_the_last_offer() -> None:
    meter = Meter(START)
    meter.sample_started(START + 1, "task")  # the seed's validation, before the window
    meter.offered(START + 2)
    assert meter.snapshot(START + 3, _scheduler()).window_busy == {}
    meter.offered(START + 4)
    meter.sample_started(START + 4, "task")
    meter.offered(START + 10)
    meter.sample_ended(START + 30, "task", "rollout", 1.0)
    snapshot = meter.snapshot(START + 40, _scheduler())
    assert snapshot.window == (2, 10)
    assert snapshot.window_busy == {"task": pytest.approx((2 * 1 + 6 * 2) / (8 * 2)), "reflection": 0.0}


def test_a_resource_without_slots_has_no_share_of_busy_time() -> None:
    meter = Meter(START)
    meter.offered(START)
    meter.offered(START + 1)
    snapshot = meter.snapshot(START + 1, _scheduler(slots={"task": 1, "reflection": 0}))
    assert snapshot.window_busy == {"task": 0.0}


def test_ended_items_are_counted_by_terminal_and_staleness_by_commits() -> None:
    meter = Meter(START)
    for terminal, staleness in (
        (Terminal.COMMITTED, 0),
        (Terminal.COMMITTED, 3),
        (Terminal.COMMITTED, 3),
        (Terminal.MERGED, 1),
        (Terminal.REJECTED, 5),
        (Terminal.DISCARDED, 6),
        (Terminal.SKIPPED, 0),
        (Terminal.FAILED, 0),
        (Terminal.CANCELLED, 0),
    ):
        meter.item_ended(_record(terminal, staleness))
    snapshot = meter.snapshot(START, _scheduler())
    assert snapshot.ended == {
        "committed": 3,
        "merged": 1,
        "rejected": 1,
        "discarded": 1,
        "skipped": 1,
        "failed": 1,
        "cancelled": 1,
    }
    assert snapshot.staleness == {0: 1, 3: 2}
    assert snapshot.proposals == 5
    assert snapshot.accepted == 3


def test_the_seed_score_is_the_first_and_the_best_score_the_highest() -> None:
    meter = Meter(START)
    for version, score in enumerate((-2.0, -3.0, -1.0, -1.5), start=1):
        meter.pool_updated(PoolEntry(version, "artifact", score))
    snapshot = meter.snapshot(START, _scheduler())
    assert (snapshot.seed_score, snapshot.best_score) == (-2.0, -1.0)


def test_the_schedulers_state_is_in_the_snapshot() -> None:
    scheduler = _scheduler(slots={"task": 1, "reflection": 1})
    (offer,) = scheduler.begin()
    assert offer == ev.OfferItem(1)
    scheduler.handle(ev.WorkersChanged({"rollout": 1}))
    stage = Stage("rollout", tuple(Sample(_nothing, "task", cost=4) for _ in range(3)))
    scheduler.handle(ev.ItemOffered(1, stage))
    scheduler.handle(ev.PoolUpdated(2))
    snapshot = Meter(START).snapshot(START, scheduler)
    assert (snapshot.items, snapshot.version, snapshot.reserved, snapshot.spent) == (1, 2, 12, 0)
    assert snapshot.busy == {"task": 1, "reflection": 0}
    assert snapshot.workers == {"rollout": 1, "validate": None}
    assert (snapshot.at_work, snapshot.finished) == ({"rollout": 1, "validate": 0}, {"rollout": 0, "validate": 0})
    assert (snapshot.running, snapshot.waiting) == ({"rollout": 1, "validate": 0}, {"rollout": 2, "validate": 0})


def test_a_snapshot_keeps_still_while_the_run_goes_on() -> None:
    meter, scheduler = Meter(START), _scheduler()
    before = meter.snapshot(START, scheduler)
    kept = dataclasses.asdict(before)
    (offer,) = scheduler.begin()
    assert isinstance(offer, ev.OfferItem)
    scheduler.handle(ev.ItemOffered(1, Stage("rollout", (Sample(_nothing, "task", cost=4),))))
    scheduler.handle(ev.SlotsChanged("task", 9))
    meter.offered(START)
    meter.sample_started(START, "task")
    meter.sample_ended(START + 1, "task", "rollout", 1.0)
    meter.item_ended(_record(Terminal.COMMITTED))
    meter.pool_updated(PoolEntry(1, "artifact", 1.0))
    assert dataclasses.asdict(before) == kept
    assert dataclasses.asdict(meter.snapshot(START + 1, scheduler)) != kept
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.items = 3  # type: ignore[misc]


def test_an_empty_snapshot_needs_no_run() -> None:
    assert (Snapshot().proposals, Snapshot().accepted, Snapshot().window_busy) == (0, 0, {})
