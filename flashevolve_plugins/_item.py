"""The Scheduler's view of one item: its state, and the moves that are legal."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

from flashevolve_plugins._errors import InvalidTransition

if TYPE_CHECKING:
    from flashevolve_plugins._model import Stage, Terminal


class State(Enum):
    """Where an item stands."""

    WAITING = "waiting"
    RUNNING = "running"
    JUDGING = "judging"
    HELD = "held"
    DRAINING = "draining"
    DECIDING = "deciding"
    ENDING = "ending"
    ENDED = "ended"

    __hash__ = object.__hash__  # members are singletons; Enum's own hashes their names, many times per sample


class Kind(Enum):
    """What an item is for."""

    PROPOSAL = "offered"
    MERGE = "merge"
    JOB = "job"

    __hash__ = object.__hash__


_MOVES: dict[State, frozenset[State]] = {
    State.WAITING: frozenset({State.RUNNING, State.JUDGING, State.DRAINING, State.DECIDING, State.ENDING}),
    State.RUNNING: frozenset({State.JUDGING, State.DRAINING, State.DECIDING, State.ENDING}),
    State.JUDGING: frozenset({State.WAITING, State.RUNNING, State.HELD, State.DRAINING, State.DECIDING, State.ENDING}),
    State.DRAINING: frozenset({State.ENDING}),
    State.HELD: frozenset({State.DECIDING, State.DRAINING, State.ENDING}),
    State.DECIDING: frozenset({State.WAITING, State.HELD, State.DRAINING, State.ENDING}),
    State.ENDING: frozenset({State.ENDED}),
    State.ENDED: frozenset(),
}


class Item:
    """One item under way.

    Args:
        number: its number, counted from 1.
        version: the pool version it was born at.
        stage: its first stage.
        kind: a proposal, a merge of proposals, or a job for a decision.
        members: the items that a merge merges.
    """

    __slots__ = (
        "at_work",
        "brought",
        "cost",
        "doom",
        "doubted",
        "failed",
        "failed_with",
        "judged_version",
        "kind",
        "members",
        "merged_into",
        "number",
        "origin",
        "patches",
        "reserved",
        "running",
        "settling",
        "spent",
        "stage",
        "stage_number",
        "staleness",
        "state",
        "story",
        "tails",
        "version",
        "waiting",
    )

    def __init__(
        self, number: int, version: int, stage: Stage, kind: Kind = Kind.PROPOSAL, members: tuple[int, ...] = ()
    ) -> None:
        self.number = number
        self.kind = kind
        self.members = members
        self.merged_into: int | None = None
        self.failed_with: tuple[int, ...] = ()
        self.patches = 0
        self.version = version
        self.judged_version = version
        self.staleness = 0
        self.brought: int | None = None  # its staleness when it brought an entry
        self.state = _first_state(stage)
        self.story: list[str] = [f"{kind.value}@{version}"]
        self.spent = 0
        self.stage_number = 0
        self.at_work = False  # whether a worker of its stage has it
        self.doubted = 0  # the number of the last stage before which it was judged
        self.stage = stage
        self.doom: tuple[Terminal, str, Stage | None] | None = None
        self.tails: set[int] = set()  # what runs on of stages that it has left
        self.origin: int | None = None  # of a tail, the item that left it
        self.settling = False  # whether a stop has spared it, as it was nearly done
        self._begin(stage)

    def _begin(self, stage: Stage) -> None:
        self.stage = stage
        self.cost = stage.cost
        self.stage_number += 1
        #: Resource name to the stage's waiting samples on it, the next one last; without resources that have none.
        self.waiting: dict[str, list[int]] = {}
        for index in reversed(range(len(stage.samples))):
            self.waiting.setdefault(stage.samples[index].resource, []).append(index)
        self.running: set[int] = set()
        self.reserved = False
        self.failed = False
        self.story.append(stage.name)

    def move(self, to: State) -> None:
        """Go to another state, or raise :class:`InvalidTransition` with the whole story."""
        if to not in _MOVES[self.state]:
            raise InvalidTransition(self.number, f"go from {self.state.value} to {to.value}", self.story)
        self.state = to

    def require(self, *states: State) -> None:
        """Raise :class:`InvalidTransition` unless the item is in one of ``states``."""
        if self.state not in states:
            wanted = " or ".join(state.value for state in states)
            raise InvalidTransition(self.number, f"be {self.state.value} where {wanted} is needed", self.story)

    def deciding_to_waiting(self, stage: Stage) -> None:
        """Go on with the next stage."""
        self.require(State.DECIDING)
        if stage.version is not None:
            self.version = stage.version
        self.move(_first_state(stage))
        self._begin(stage)

    def anchor(self) -> None:
        """Count as made from the pool that it was judged with."""
        self.version = self.judged_version

    def patch(self, stage: Stage) -> None:
        """Go on with a stage that checks a patched artifact, made from the pool that it was judged with."""
        self.require(State.JUDGING)
        if self.reserved or self.running:
            raise InvalidTransition(self.number, f"be patched inside {self.stage.name}, which has begun", self.story)
        self.patches += 1
        self.anchor()
        self.story.append(f"patched@{self.version}")
        self.move(_first_state(stage))
        self._begin(stage)

    def split(self, number: int) -> Item:
        """Leave what waits and runs of the stage to a tail of this number, a job, and return that."""
        self.require(State.RUNNING)
        rest = replace(self.stage, then=0, shared=0, commits=False, settles=False, judged=False, evidence=None)
        tail = Item(number, self.version, rest, Kind.JOB)
        tail.waiting, tail.running, tail.reserved = self.waiting, self.running, True
        tail.origin, tail.state = self.number, State.RUNNING
        tail.at_work, self.at_work = self.at_work, False
        self.waiting, self.running = {}, set()
        self.tails.add(number)
        return tail

    def start(self, resource: str) -> int:
        """Count the stage's next waiting sample on ``resource`` as running, and return its index."""
        if self.state is State.WAITING:
            self.move(State.RUNNING)
        elif self.state is not State.RUNNING:
            self.require(State.RUNNING)
        indices = self.waiting[resource]
        index = indices.pop()
        if not indices:
            del self.waiting[resource]
        self.running.add(index)
        return index

    def finish(self, index: int, spent: int) -> None:
        """Count sample ``index`` of the stage as ended."""
        if index not in self.running:
            raise InvalidTransition(self.number, f"finish sample {index} of {self.stage.name} twice", self.story)
        self.running.remove(index)
        self.spent += spent

    @property
    def need(self) -> int:
        """Metric calls that it still has to reserve to be committed."""
        return self.stage.then if self.reserved else self.cost + self.stage.then

    @property
    def own_need(self) -> int:
        """The same without what the items in the merge queue pay for together."""
        return self.need - self.stage.shared

    @property
    def nearly_done(self) -> bool:
        """Whether a stage has begun with which, or soon after, it ends well; or somebody may wait for this job."""
        begun = self.reserved or not self.stage.samples
        return self.kind is Kind.JOB or (begun and (self.stage.commits or self.stage.settles))

    @property
    def complete(self) -> bool:
        """Whether no sample of the stage waits or runs."""
        return not self.waiting and not self.running


def _first_state(stage: Stage) -> State:
    """Where an item stands as a stage of it begins."""
    return State.HELD if stage.holds else State.WAITING
