"""What the Scheduler is told (events) and what it asks for (instructions). Nobody changes one.

They are not frozen: making a frozen dataclass takes three times as long, and every sample takes two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flashevolve_plugins._model import Stage, Terminal, Verdict


@dataclass(slots=True)
class ItemOffered:
    """The item asked for by :class:`OfferItem` exists and begins with this stage."""

    item: int
    stage: Stage


@dataclass(slots=True)
class NothingOffered:
    """There is nothing left to offer; the Scheduler never asks again."""

    item: int


@dataclass(slots=True)
class NothingYet:
    """There is nothing to offer now; the Scheduler asks again when an item has ended."""

    item: int


@dataclass(slots=True)
class StageReady:
    """The decision after a stage: the item goes on with this one."""

    item: int
    stage: Stage


@dataclass(slots=True)
class ItemDecided:
    """The decision after a stage: the item is over."""

    item: int
    terminal: Terminal
    reason: str = ""


@dataclass(slots=True)
class SampleFinished:
    """A sample returned. ``spent`` is what it really cost, in metric calls."""

    item: int
    index: int
    spent: int = 0


@dataclass(slots=True)
class SampleFailed:
    """A sample raised. The rest of its stage does not start. ``spent`` as above."""

    item: int
    index: int
    spent: int = 0


@dataclass(slots=True)
class StageReleased:
    """The item goes on with what its stage has by now; the rest of the stage runs on as item ``tail``."""

    item: int
    tail: int


@dataclass(slots=True)
class StageStopped:
    """The rest of the item's stage never starts, and the item is over once what runs of it has ended.

    ``failed`` says that a policy raised; the item then fails instead of being rejected.
    """

    item: int
    reason: str
    failed: bool = False


@dataclass(slots=True)
class Provisional:
    """What the item validates was admitted before its last samples: the next validation need not wait for it."""

    item: int


@dataclass(slots=True)
class Judged:
    """A staleness policy's verdict. ``PATCH`` means: goes on, anchored to the version of the question.

    ``failed`` says that the policy raised; the item then fails instead of being discarded.
    """

    item: int
    verdict: Verdict
    reason: str = ""
    failed: bool = False


@dataclass(slots=True)
class Patched:
    """The verdict is a new artifact: the item goes on with this stage, anchored to the version of the question."""

    item: int
    stage: Stage


@dataclass(slots=True)
class JobStarted:
    """A decision needs work: a job with this number, made by ``Scheduler.next_number``, runs this stage."""

    item: int
    stage: Stage


@dataclass(slots=True)
class MergeStarted:
    """The queue's answer: these items are merged by the item of this number, which begins with this stage."""

    item: int
    members: tuple[int, ...]
    stage: Stage


@dataclass(slots=True)
class Released:
    """The queue's answer: this item goes on by itself."""

    item: int


@dataclass(slots=True)
class QueueWaits:
    """The queue's answer: nothing leaves it now."""


@dataclass(slots=True)
class Dropped:
    """The item leaves the queue and is discarded. Comes before the queue's answer."""

    item: int
    reason: str


@dataclass(slots=True)
class ItemRecorded:
    """The item's record is written and its host has been told. ``failed``: which raised over the item's commit."""

    item: int
    failed: bool = False


@dataclass(slots=True)
class PoolUpdated:
    """The pool has a new entry; ``version`` counts them all.

    ``anchors``: all that is under way was made from it. ``item`` brought it, and goes on.
    """

    version: int
    anchors: bool = False
    item: int | None = None


@dataclass(slots=True)
class SlotsChanged:
    """A resource has a new number of slots."""

    resource: str
    slots: int


@dataclass(slots=True)
class WorkersChanged:
    """Stage name to the items that may be at work in it at once, each at least 1; the other stages have no cap."""

    workers: Mapping[str, int]


@dataclass(slots=True)
class OfferCostChanged:
    """What a new item needs to be committed, in metric calls."""

    cost: int


@dataclass(slots=True)
class PlanChanged:
    """So many proposals in flight at most, or no limit, and so many validations of what waited in the queue."""

    max_items: int | None
    validations: int


@dataclass(slots=True)
class StopRequested:
    """Offer nothing more. With ``cancel``, also start nothing more and end every item.

    With ``settle`` as well, items that are nearly done go on to their end, until a cancel without it.
    """

    reason: str
    cancel: bool = False
    settle: bool = False


@dataclass(slots=True)
class OfferItem:
    """Ask the adapter for an item with this number. Answer: ItemOffered, NothingYet or NothingOffered."""

    item: int


@dataclass(slots=True)
class StartSample:
    """Run ``stage.samples[index]`` now. Answer: SampleFinished or SampleFailed."""

    item: int
    index: int
    stage: Stage


@dataclass(slots=True)
class CancelSample:
    """Stop a running sample if it can be stopped. Its end is still reported."""

    item: int
    index: int


@dataclass(slots=True)
class FinishStage:
    """Every sample of the stage that started has ended. Answer: StageReady or ItemDecided."""

    item: int
    stage: Stage
    failed: bool


@dataclass(slots=True)
class JudgeStale:
    """Ask the staleness policy. Answer: Judged."""

    item: int
    stage: Stage
    staleness: int


@dataclass(slots=True)
class ConsultQueue:
    """Ask which of the waiting items leave the merge queue. Answer: MergeStarted, Released or QueueWaits.

    ``last`` says that nothing else is under way or will be offered before something leaves: what is left now is
    discarded.
    """

    items: tuple[int, ...]
    last: bool


@dataclass(slots=True)
class EndItem:
    """The item is over. Answer, once it is recorded: ItemRecorded.

    ``stage`` is the stage that does not go on, when the Scheduler ended the item; ``None`` when its body did.
    """

    item: int
    terminal: Terminal
    reason: str
    stage: Stage | None


Event: TypeAlias = (
    ItemOffered
    | NothingOffered
    | NothingYet
    | StageReady
    | ItemDecided
    | SampleFinished
    | SampleFailed
    | StageReleased
    | StageStopped
    | Provisional
    | Judged
    | Patched
    | JobStarted
    | MergeStarted
    | Released
    | QueueWaits
    | Dropped
    | ItemRecorded
    | PoolUpdated
    | SlotsChanged
    | WorkersChanged
    | OfferCostChanged
    | PlanChanged
    | StopRequested
)
Instruction: TypeAlias = OfferItem | StartSample | CancelSample | FinishStage | JudgeStale | ConsultQueue | EndItem
