"""The order in which waiting samples are taken."""

from __future__ import annotations

import random

from flashevolve_plugins._queues import StageQueues, Waiting

STAGES = ("rollout", "gate", "validate")


def _always(_: object) -> bool:
    return True


def _take_all(queues: StageQueues) -> list[Waiting]:
    """What would start, one after the other."""
    taken: list[Waiting] = []
    while (entry := queues.first(lambda waiting: waiting not in taken, _always)) is not None:
        taken.append(entry)
    return taken


def test_the_last_stage_goes_first_then_the_oldest_item_then_the_first_sample() -> None:
    waiting = [
        ("validate", Waiting(3, 0, 1)),
        ("validate", Waiting(3, 1, 1)),
        ("validate", Waiting(9, 0, 1)),
        ("gate", Waiting(1, 0, 2)),
        ("gate", Waiting(10, 0, 2)),
        ("rollout", Waiting(2, 4, 1)),
    ]
    shuffled = waiting.copy()
    random.Random(7).shuffle(shuffled)
    queues = StageQueues(STAGES)
    for stage, entry in shuffled:
        queues.push(stage, entry)
    assert _take_all(queues) == [entry for _, entry in waiting]


def test_the_first_stays_until_it_is_void() -> None:
    queues = StageQueues(STAGES)
    entry = Waiting(1, 0, 1)
    queues.push("gate", entry)
    assert queues.first(_always, _always) == entry
    assert queues.first(_always, _always) == entry
    assert queues.first(lambda _: False, _always) is None
    assert queues.first(_always, _always) is None


def test_a_void_entry_on_top_hides_nothing() -> None:
    queues = StageQueues(STAGES)
    queues.push("validate", Waiting(1, 0, 1))
    queues.push("validate", Waiting(2, 0, 1))
    queues.push("gate", Waiting(1, 0, 1))
    assert queues.first(lambda waiting: waiting.item == 2, _always) == Waiting(2, 0, 1)
    assert queues.first(lambda waiting: waiting.item == 1, _always) == Waiting(1, 0, 1)


def test_a_stage_that_may_not_start_is_passed_over_and_keeps_its_samples() -> None:
    queues = StageQueues(STAGES)
    queues.push("validate", Waiting(1, 0, 1))
    queues.push("rollout", Waiting(2, 0, 1))
    assert queues.first(_always, lambda stage: stage != "validate") == Waiting(2, 0, 1)
    assert queues.first(_always, lambda stage: stage == "gate") is None
    assert queues.first(_always, _always) == Waiting(1, 0, 1)


def test_an_empty_queue_has_no_first() -> None:
    assert StageQueues(STAGES).first(_always, _always) is None
