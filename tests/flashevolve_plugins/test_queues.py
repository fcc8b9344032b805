"""The order in which items with waiting samples are taken."""

from __future__ import annotations

import random

from flashevolve_plugins._queues import StageQueues

STAGES = ("rollout", "gate", "validate")


class Queues(StageQueues):
    """Whose items wait until they are said not to, and whose stages have room until they are said to be full."""

    def __init__(self) -> None:
        self.gone: set[tuple[int, str]] = set()
        self.back: set[tuple[int, str]] = set()
        self.full: set[str] = set()
        super().__init__(
            STAGES,
            lambda item, stage: (item, stage) not in self.gone,
            lambda item, stage: (item, stage) not in self.gone | self.back,
            self.full,
        )


def test_the_last_stage_goes_first_then_the_oldest_item() -> None:
    waiting = [("validate", 3), ("validate", 9), ("gate", 1), ("gate", 10), ("rollout", 2)]
    shuffled = waiting.copy()
    random.Random(7).shuffle(shuffled)
    queues = Queues()
    for stage, item in shuffled:
        queues.push(stage, item)
    for stage, item in waiting:
        assert queues.first() == item
        queues.gone.add((item, stage))
    assert queues.first() is None


def test_the_first_stays_until_it_waits_no_more() -> None:
    queues = Queues()
    queues.push("gate", 1)
    assert (queues.first(), queues.first()) == (1, 1)
    queues.gone.add((1, "gate"))
    assert queues.first() is None
    queues.gone.clear()
    assert queues.first() is None


def test_an_item_is_asked_about_with_the_stage_it_was_pushed_for() -> None:
    queues = Queues()
    queues.push("gate", 1)
    queues.push("rollout", 1)
    queues.gone.add((1, "gate"))
    assert queues.first() == 1
    queues.gone.add((1, "rollout"))
    assert queues.first() is None


def test_one_that_is_gone_from_the_top_hides_nothing() -> None:
    queues = Queues()
    queues.push("validate", 1)
    queues.push("validate", 2)
    queues.push("gate", 1)
    queues.gone.add((1, "validate"))
    assert queues.first() == 2
    queues.gone.add((2, "validate"))
    assert queues.first() == 1


def test_an_item_pushed_twice_goes_once() -> None:
    queues = Queues()
    queues.push("gate", 1)
    queues.push("gate", 1)
    assert queues.first() == 1
    queues.gone.add((1, "gate"))
    assert queues.first() is None


def test_a_full_stage_is_passed_over_and_keeps_its_items() -> None:
    queues = Queues()
    queues.push("validate", 1)
    queues.push("rollout", 2)
    queues.full.add("validate")
    assert queues.first() == 2
    queues.full.add("rollout")
    assert queues.first() is None
    queues.full.clear()
    assert queues.first() == 1


def test_in_a_full_stage_those_go_on_that_have_begun_it_the_oldest_first() -> None:
    queues = Queues()
    for item in (1, 2, 3, 4):
        queues.push("validate", item)
    for item in (4, 2):
        queues.push_begun("validate", item)
    assert queues.first() == 1
    queues.full.add("validate")
    assert queues.first() == 2
    queues.gone.add((2, "validate"))
    assert queues.first() == 4
    queues.full.clear()
    assert queues.first() == 1


def test_an_item_that_is_back_in_a_full_stage_has_to_begin_it_anew() -> None:
    queues = Queues()
    for item in (1, 2):
        queues.push("gate", item)
        queues.push_begun("gate", item)
    queues.full.add("gate")
    queues.back.add((1, "gate"))
    assert queues.first() == 2


def test_an_empty_queue_has_no_first() -> None:
    assert Queues().first() is None
