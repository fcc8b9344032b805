"""The moves of one item."""

from __future__ import annotations

import itertools

import pytest

from flashevolve_plugins import InvalidTransition
from flashevolve_plugins._item import Item, State
from flashevolve_plugins._model import Sample, Stage


def _nothing() -> None:
    """No sample is called here."""


def _stage(name: str = "rollout", count: int = 2) -> Stage:
    return Stage(name, tuple(Sample(_nothing, "task", cost=3) for _ in range(count)))


def _in(state: State) -> Item:
    """An item that came to ``state`` by legal moves."""
    item = Item(7, 4, _stage())
    paths: dict[State, tuple[State, ...]] = {
        State.WAITING: (),
        State.RUNNING: (State.RUNNING,),
        State.JUDGING: (State.JUDGING,),
        State.HELD: (State.DECIDING, State.HELD),
        State.DRAINING: (State.RUNNING, State.DRAINING),
        State.DECIDING: (State.DECIDING,),
        State.ENDING: (State.ENDING,),
        State.ENDED: (State.ENDING, State.ENDED),
    }
    for step in paths[state]:
        item.move(step)
    return item


def test_an_item_begins_waiting_at_the_version_it_was_born_at() -> None:
    item = Item(7, 4, _stage())
    assert (item.state, item.version, item.waiting, item.running) == (State.WAITING, 4, {"task": [1, 0]}, set())
    assert item.story == ["offered@4", "rollout"]
    assert not item.complete


def test_an_item_without_samples_is_complete_at_once() -> None:
    assert Item(1, 0, _stage(count=0)).complete


def test_samples_are_counted_from_waiting_to_running_to_spent() -> None:
    item = Item(7, 4, _stage())
    assert item.start("task") == 0
    assert (item.state, item.waiting, item.running) == (State.RUNNING, {"task": [1]}, {0})
    assert item.start("task") == 1
    item.finish(1, 3)
    assert not item.complete
    item.finish(0, 1)
    assert item.complete
    assert item.spent == 4


def test_the_next_stage_begins_afresh_and_keeps_what_was_spent() -> None:
    item = Item(7, 4, _stage())
    for _ in range(2):
        item.finish(item.start("task"), 3)
    item.reserved = item.failed = True
    number = item.stage_number
    item.move(State.DECIDING)
    following = _stage("gate", 3)
    item.deciding_to_waiting(following)
    assert (item.state, item.stage, item.waiting) == (State.WAITING, following, {"task": [2, 1, 0]})
    assert (item.reserved, item.failed, item.spent) == (False, False, 6)
    assert item.stage_number > number
    assert item.story == ["offered@4", "rollout", "gate"]


@pytest.mark.parametrize("state", [state for state in State if state is not State.DECIDING])
def test_a_next_stage_needs_a_decision_before_it(state: State) -> None:
    item = _in(state)
    with pytest.raises(InvalidTransition):
        item.deciding_to_waiting(_stage("gate"))
    assert (item.state, item.stage.name) == (state, "rollout")


def test_an_ended_item_goes_nowhere() -> None:
    for state in State:
        with pytest.raises(InvalidTransition, match=f"Item 7 cannot go from ended to {state.value}"):
            _in(State.ENDED).move(state)


def test_an_ending_item_only_ends() -> None:
    allowed = []
    for state in State:
        item = _in(State.ENDING)
        try:
            item.move(state)
        except InvalidTransition:
            assert item.state is State.ENDING
        else:
            allowed.append(state)
    assert allowed == [State.ENDED]


def test_no_item_ends_without_ending_first() -> None:
    for state in State:
        if state is not State.ENDING:
            with pytest.raises(InvalidTransition):
                _in(state).move(State.ENDED)


def test_a_draining_item_starts_nothing() -> None:
    item = _in(State.DRAINING)
    with pytest.raises(InvalidTransition, match="Item 7 cannot be draining where running is needed"):
        item.start("task")
    assert item.waiting == {"task": [1, 0]}


@pytest.mark.parametrize("start", [False, True])
def test_a_sample_that_does_not_run_cannot_finish(start: bool) -> None:
    item = Item(7, 4, _stage())
    item.start("task")
    if start:
        item.start("task")
        item.finish(1, 0)
    with pytest.raises(InvalidTransition, match="finish sample 1 of rollout") as refused:
        item.finish(1, 3)
    assert refused.value.item == 7
    assert refused.value.story == ("offered@4", "rollout")
    assert (item.spent, item.running) == (0, {0})


def test_samples_start_in_order_on_each_resource() -> None:
    resources = ("task", "local", "task", "local", "task")
    item = Item(7, 4, Stage("rollout", tuple(Sample(_nothing, each, cost=1) for each in resources)))
    assert [item.start("task"), item.start("task"), item.start("local")] == [0, 2, 1]
    assert item.waiting == {"task": [4], "local": [3]}
    item.start("task")
    assert item.waiting == {"local": [3]}


def test_an_item_needs_what_it_has_not_reserved() -> None:
    item = Item(7, 4, Stage("rollout", (Sample(_nothing, "task", cost=3), Sample(_nothing, "task", cost=4)), then=10))
    assert item.need == 17
    item.reserved = True
    assert item.need == 10


def test_what_waits_in_the_queue_needs_for_itself_what_is_not_shared() -> None:
    stage = Stage("queue", (Sample(_nothing, "task", cost=3),), then=10, shared=8)
    item = Item(7, 4, stage)
    assert (item.need, item.own_need) == (13, 5)
    item.reserved = True
    assert (item.need, item.own_need) == (10, 2)


@pytest.mark.parametrize("begins", ["offered", "goes on", "patched"])
def test_a_stage_that_holds_begins_held(begins: str) -> None:
    queue = Stage("queue", (), holds=True)
    if begins == "offered":
        item = Item(7, 4, queue)
    elif begins == "goes on":
        item = _in(State.DECIDING)
        item.deciding_to_waiting(queue)
    else:
        item = _in(State.JUDGING)
        item.patch(queue)
    assert (item.state, item.stage) == (State.HELD, queue)


def test_a_patched_item_begins_a_stage_anchored_to_the_version_it_was_judged_at() -> None:
    item = _in(State.JUDGING)
    item.judged_version = 6
    item.patch(_stage("gate", 3))
    assert (item.state, item.version, item.judged_version, item.patches) == (State.WAITING, 6, 6, 1)
    assert (item.stage.name, item.waiting) == ("gate", {"task": [2, 1, 0]})
    assert item.story == ["offered@4", "rollout", "patched@6", "gate"]


def test_an_item_is_not_patched_inside_a_stage_that_has_begun() -> None:
    item = Item(7, 4, _stage())
    item.start("task")
    item.move(State.JUDGING)
    with pytest.raises(InvalidTransition, match="be patched inside rollout, which has begun"):
        item.patch(_stage("gate"))
    assert (item.state, item.stage.name, item.patches) == (State.JUDGING, "rollout", 0)


def test_require_names_what_is_and_what_is_needed() -> None:
    item = _in(State.WAITING)
    with pytest.raises(InvalidTransition, match="be waiting where running or judging is needed"):
        item.require(State.RUNNING, State.JUDGING)
    item.require(State.WAITING)
    assert item.state is State.WAITING


def test_every_state_is_reached_and_every_item_can_still_end() -> None:
    reached = {state: _in(state).state for state in State}
    assert reached == {state: state for state in State}
    for state, other in itertools.product(State, (State.ENDING,)):
        if state not in {State.ENDING, State.ENDED}:
            item = _in(state)
            item.move(other)
            item.move(State.ENDED)
            assert item.state is State.ENDED
