"""What the executor asks of policies and tells to observers. ``flashevolve_plugins.hooks`` answers with plugins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from flashevolve_plugins._model import Change, Verdict

if TYPE_CHECKING:
    from flashevolve_plugins._model import ItemRecord, ItemView, PoolEntry, Progress
    from flashevolve_plugins._pool import Pool
    from flashevolve_plugins._snapshot import Snapshot


#: One call of the model that the host reflects with: prompt in, answer out. It runs in a slot.
Ask: TypeAlias = Callable[[str], str]


@dataclass(frozen=True)
class Judgement:
    """A verdict and its reason in one clause.

    Args:
        verdict: what becomes of the item.
        reason: why; users read it.
        artifact: with ``PATCH``, what the item goes on with instead, made from the current best. It passes the gate
            again. Without one the item goes on as it is, anchored to the pool with which the policy was first
            asked.
    """

    verdict: Verdict
    reason: str = ""
    artifact: Any = None


@dataclass(frozen=True)
class Work:
    """What a decision needs first: it is asked again with the result as ``item.answer``.

    Args:
        call: runs in a slot of the host's reflection, off the caller's thread. It is given the host's reflection model,
            or ``None`` where the host has none.
    """

    call: Callable[[Ask | None], Any]


#: Writes the artifact that a merge makes from the host's reflection model, the artifact to merge onto, and the changes.
MergeWriter: TypeAlias = Callable[["Ask | None", Any, Sequence[Change]], Any]


@dataclass(frozen=True)
class Batch:
    """What leaves the merge queue.

    Args:
        members: numbers of items that wait. One alone, without ``write``, goes on to its own validation; none says that
            nothing leaves now.
        write: carries the members' changes onto the artifact ``onto``. The result passes a gate on the examples of all
            its members, and is validated once for all.
        onto: pool version of the artifact to merge onto; ``None`` for the best.
        onto_item: number of the item whose provisional artifact is merged onto instead.
        discard: number to reason of the items that leave the queue for good.
    """

    members: tuple[int, ...] = ()
    write: MergeWriter | None = None
    onto: int | None = None
    onto_item: int | None = None
    discard: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """How much may be under way.

    Args:
        max_items: proposals in flight at most, those in the merge queue included; ``None`` for no limit. A lower
            ``Flash(max_items=...)`` wins.
        validations: validations of what waited in the queue, alone or merged, at once at most.
    """

    max_items: int | None = None
    validations: int = 1


@dataclass(frozen=True)
class Workers:
    """How many items may be at work in a stage at once.

    A worker works on one item of a stage, from the start of its first sample until its last sample has ended.

    Args:
        most: stage name to that number, at least 1. A stage that is not in it, or has ``None``, may have any number.
    """

    most: Mapping[str, int | None]


@dataclass(frozen=True)
class Release:
    """What becomes of a stage before its last sample has ended.

    Args:
        stops: the rest never runs, and the item is rejected. Otherwise the item goes on with what there is; the rest
            runs on, and counts where the item is decided.
        reason: why, in one clause; users read it where the stage is stopped.
    """

    stops: bool
    reason: str = ""


@dataclass(frozen=True)
class ExampleView:
    """What a policy sees of an example that a validation is about to run.

    Args:
        name: its name, as in the validation scores of pool entries.
        scores: pool version to its score with that entry, oldest first, as far as it was validated; not to be changed.
        seconds: what its samples in validations of this run took, the mean; ``None`` before the first has ended.
    """

    name: Any
    scores: Mapping[int, float] = field(default_factory=dict)
    seconds: float | None = None


class Policies(Protocol):
    """Decisions and observations of one run. All calls come from the thread that called the host, one at a time."""

    #: Pool versions that an item may lag behind, where the staleness policy has such a number.
    max_staleness: int | None

    @property
    def holds(self) -> bool:
        """Whether what passed its gate waits for :meth:`merge_batch`."""
        ...

    @property
    def releases(self) -> bool:
        """Whether anybody answers :meth:`release_stage` or :meth:`admit_provisional`."""
        ...

    @property
    def plans(self) -> bool:
        """Whether anybody answers :meth:`plan`."""
        ...

    @property
    def control_period(self) -> float | None:
        """Seconds from one call of :meth:`control` to the next at least; ``None`` where nobody answers."""
        ...

    @property
    def orders(self) -> bool:
        """Whether anybody answers :meth:`order_samples`."""
        ...

    def judge_stale(self, item: ItemView, pool: Pool) -> Judgement | Work:
        """Whether a stale item goes on. Raises PluginError when the policy raised."""
        ...

    def merge_batch(self, waiting: Sequence[ItemView], pool: Pool, *, last: bool) -> Batch:
        """What leaves the merge queue. Raises PluginError when the policy raised."""
        ...

    def release_stage(self, item: ItemView, progress: Progress, pool: Pool) -> Release | None:
        """What becomes of a stage that runs, if anything. Raises PluginError when the policy raised."""
        ...

    def admit_provisional(self, item: ItemView, progress: Progress, pool: Pool) -> bool:
        """Whether what is validated may be built on by now. Raises PluginError when the policy raised."""
        ...

    def plan(self, snapshot: Snapshot) -> Plan | None:
        """How much may be under way. Raises PluginError when the policy raised."""
        ...

    def control(self, snapshot: Snapshot) -> Workers | None:
        """How many items may be at work in each stage. Raises PluginError when the policy raised."""
        ...

    def order_samples(self, stage: str, examples: Sequence[ExampleView], pool: Pool) -> Sequence[int] | None:
        """Positions of examples in the order in which they start. Raises PluginError when the policy raised."""
        ...

    def stage_started(self, item: int, stage: str) -> None:
        """The first sample of a stage of an item started."""
        ...

    def stage_finished(self, item: int, stage: str) -> None:
        """Every sample of a stage of an item ended."""
        ...

    def pool_updated(self, entry: PoolEntry) -> None:
        """An artifact entered the pool."""
        ...

    def item_ended(self, record: ItemRecord) -> None:
        """An item reached its terminal and its host has been told."""
        ...

    def run_started(self, snapshot: Snapshot) -> None:
        """The run is about to offer its first item."""
        ...

    def snapshot(self, snapshot: Snapshot) -> None:
        """The run's statistics, at most twice a second."""
        ...

    def run_finished(self, snapshot: Snapshot) -> None:
        """The run is over."""
        ...


class AcceptAll:
    """Full Async: nothing is ever too stale, and nobody looks on."""

    holds = plans = releases = orders = False
    max_staleness: int | None = None
    control_period: float | None = None

    def judge_stale(self, item: ItemView, pool: Pool) -> Judgement:
        """Accept."""
        del item, pool
        return Judgement(Verdict.ACCEPT)

    def merge_batch(self, waiting: Sequence[ItemView], pool: Pool, *, last: bool) -> Batch:
        """The oldest goes on by itself."""
        del pool, last
        return Batch((waiting[0].number,))

    def release_stage(self, item: ItemView, progress: Progress, pool: Pool) -> Release | None:
        """Every stage to its end."""
        del item, progress, pool
        return None

    def admit_provisional(self, item: ItemView, progress: Progress, pool: Pool) -> bool:
        """Nothing before its last sample."""
        del item, progress, pool
        return False

    def plan(self, snapshot: Snapshot) -> Plan | None:
        """No limits of its own."""
        del snapshot
        return None

    def control(self, snapshot: Snapshot) -> Workers | None:
        """No workers of its own."""
        del snapshot
        return None

    def order_samples(self, stage: str, examples: Sequence[ExampleView], pool: Pool) -> Sequence[int] | None:
        """The host's order."""
        del stage, examples, pool
        return None

    def stage_started(self, item: int, stage: str) -> None:
        """Ignore."""

    def stage_finished(self, item: int, stage: str) -> None:
        """Ignore."""

    def pool_updated(self, entry: PoolEntry) -> None:
        """Ignore."""

    def item_ended(self, record: ItemRecord) -> None:
        """Ignore."""

    def run_started(self, snapshot: Snapshot) -> None:
        """Ignore."""

    def snapshot(self, snapshot: Snapshot) -> None:
        """Ignore."""

    def run_finished(self, snapshot: Snapshot) -> None:
        """Ignore."""
