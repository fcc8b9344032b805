"""The words of the design as types: stages, samples, terminals, verdicts, records.

Nothing here knows a host, a thread or a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._redact import redact

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from flashevolve_plugins._keeping import Kept


class Terminal(Enum):
    """How an item ended. Every item reaches exactly one."""

    COMMITTED = "committed"
    MERGED = "merged"
    REJECTED = "rejected"
    DISCARDED = "discarded"
    SKIPPED = "skipped"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Verdict(Enum):
    """What a staleness policy says of an item."""

    ACCEPT = "accept"
    DISCARD = "discard"
    PATCH = "patch"


@dataclass(eq=False, slots=True)
class Sample:
    """The smallest piece of a stage that can run alone. Nobody changes one; it is not frozen as that makes it dear.

    Args:
        call: what to run, without arguments; a plain function runs on a worker thread, a coroutine function on the
            event-loop thread. Opaque to the Scheduler.
        resource: the name of the resource whose slot it takes.
        cost: metric calls it may spend at most; reserved before it starts.
        spent: given the result, metric calls it really spent; ``None`` means ``cost``.
        asynchronous: whether ``call`` is a coroutine function.
        seconds: virtual seconds it takes, asked when it starts; only the virtual driver reads it.
        kept: how its result is kept for a run that is taken up, if it is; opaque to the Scheduler.
        catches: whether an exception that it raises is its result. One of the infrastructure never is: the sample is
            tried again.
        took: told the seconds that it took, on the caller's thread, once it has given a result.
    """

    call: Callable[[], Any]
    resource: str
    cost: int = 0
    spent: Callable[[Any], int] | None = None
    asynchronous: bool = False
    seconds: Callable[[], float] | None = None
    kept: Kept | None = None
    catches: bool = False
    took: Callable[[float], None] | None = None


@dataclass(frozen=True)
class Evidence:
    """What is known of an artifact before its validation.

    Args:
        artifact: the artifact; ``None`` where it is not written yet, and what waits is a lesson to write it from.
        parent: the pool version of the artifact that it was made from.
        before: the parent's scores on the examples of the gate.
        after: its own scores on the same examples.
        feedback: what led to it, as text.
        examples: names of the examples of the gate, in the order of the scores.
    """

    artifact: Any
    parent: int
    before: tuple[float, ...] = ()
    after: tuple[float, ...] = ()
    feedback: str = ""
    examples: tuple[Any, ...] = ()

    @property
    def gain(self) -> float:
        """What the artifact gained on the examples of its gate, summed."""
        return sum(self.after) - sum(self.before)


@dataclass(frozen=True)
class Change:
    """One change that a merge carries onto another artifact.

    Args:
        before: the artifact that it was made from.
        after: the artifact that it made.
        feedback: what led to it, as text.
    """

    before: Any
    after: Any
    feedback: str = ""


@dataclass(frozen=True)
class Progress:
    """What is known of a stage that evaluates, before its last sample has ended.

    Args:
        scores: one for each example, in the host's order; ``None`` where there is none yet.
        examples: the examples' names, in the same order.
        to_beat: of a gate at which the sums of scores alone decide, the least and the most that the sum may come to
            which the artifact must beat; they differ while that has not ended either. ``None`` elsewhere.
        reaches: whether the same sum is enough.
        parents: pool versions that the artifact was made from.
        artifact: what is evaluated.
        validates: whether it is a validation.
        hands_on: whether the item can go on with part of the scores.
    """

    scores: Sequence[float | None]
    examples: Sequence[Any] = ()
    to_beat: tuple[float, float] | None = None
    reaches: bool = False
    parents: tuple[int, ...] = ()
    artifact: Any = None
    validates: bool = False
    hands_on: bool = False

    @property
    def known(self) -> list[float]:
        """The scores that there are."""
        return [score for score in self.scores if score is not None]


@dataclass(frozen=True, eq=False)
class Stage:
    """A named step of an item, ready to run.

    Args:
        name: one of the run's stage names.
        samples: what it consists of; may be empty.
        then: metric calls the item still needs after this stage to be committed. Nothing starts that could not be
            followed through.
        commits: whether the item is committed when this stage is done, as after a full validation. Once such a stage
            is paid for, no staleness policy judges its item any more.
        settles: whether the item is nearly done once it has begun, as with a stage that commits: a stop that settles
            lets it go on from there to its end.
        holds: whether the item waits here, in the merge queue, until it is let go. Such a stage has no samples.
        shared: of the metric calls still needed, those that all items in the merge queue pay for together.
        evidence: what is known of the item's artifact, where it passed its gate and is not validated yet.
        judged: whether a staleness policy judges the item before it, if the pool has changed.
        version: the pool version that the item's work was made from, if that is newer than the item.
        hands_on: whether the item can go on with part of its results.
        joins: whether it begins only when what runs on of the item's earlier stages has ended, and ``after``.
        after: an item that must have ended before, such as one whose artifact this one was made from.
        unfounded: why the item's parent is not what it was taken for. See :class:`ItemView`.
        progress: what a policy sees of it while it runs, from its results so far, ``None`` where there is none yet.
            Only such a stage may be handed on or stopped before its end.
    """

    name: str
    samples: tuple[Sample, ...]
    then: int = 0
    commits: bool = False
    settles: bool = False
    holds: bool = False
    shared: int = 0
    evidence: Evidence | None = None
    judged: bool = True
    version: int | None = None
    hands_on: bool = False
    joins: bool = False
    after: int | None = None
    unfounded: str = ""
    progress: Callable[[Sequence[Any]], Progress] | None = None

    @property
    def cost(self) -> int:
        """Metric calls that all samples may spend at most."""
        return sum(sample.cost for sample in self.samples)


@dataclass(frozen=True)
class Outcome:
    """What an item's body returns when it is done.

    Args:
        terminal: how the item ends.
        reason: why, in the host's words; empty for a commit.
        payload: what the adapter needs to tell the host; opaque to the executor.
        evidence: what its gate said of its artifact, for the record.
    """

    terminal: Terminal
    reason: str = ""
    payload: Any = None
    evidence: Evidence | None = None


class Discarded(Exception):  # noqa: N818 - a signal, not an error
    """Thrown into an item's body when its item ends before its work is done.

    The body may catch it to build its payload and must then return an :class:`Outcome`.

    Args:
        terminal: ``DISCARDED`` or ``CANCELLED``.
        reason: why, in one clause.
        stage: the stage that does not run, or did not finish.
    """

    def __init__(self, terminal: Terminal, reason: str, stage: str) -> None:
        self.terminal, self.reason, self.stage = terminal, redact(reason), stage
        super().__init__(self.reason)


class Patch(Exception):  # noqa: N818 - a signal, not an error
    """Thrown into an item's body: its artifact is to go on as this one, made from the current best.

    The body goes on with the stages that check it again.

    Args:
        artifact: the patched artifact.
    """

    def __init__(self, artifact: Any) -> None:
        self.artifact = artifact
        super().__init__("patched")


@dataclass(frozen=True)
class PoolEntry:
    """One admitted artifact.

    Args:
        version: the pool's version once it was admitted, counted from 1.
        artifact: the artifact itself, a mapping of component name to text (for ACE of entry id to text).
        score: its validation score, the mean over the examples; NaN where the host validates none, and the newest
            artifact of the pool is the one to go on from.
        parents: the versions it was made from.
        item: the item that brought it; ``None`` for the seed and for entries loaded from a state file.
        scores: its validation scores by example, as far as it was validated; not to be changed.
    """

    version: int
    artifact: Any
    score: float
    parents: tuple[int, ...] = ()
    item: int | None = None
    scores: Mapping[Any, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ItemView:
    """What a policy sees of an item. A copy: changing it changes nothing.

    Args:
        number: the item's number, counted from 1 in the order of offering.
        version: the pool version it was born at.
        staleness: the pool's version now, less ``version``.
        stage: the stage it is about to go on with.
        story: its moves so far, oldest first.
        evidence: what is known of its artifact, once it passed its gate.
        answer: what the work gave that the policy asked for, or the exception that it raised; else ``None``.
        patches: how often it was patched.
        failed_with: sizes of the merges that failed with it, oldest first.
        unfounded: why it should not have been made from its parent, where that was admitted provisionally and its full
            result did not confirm it; else empty.
    """

    number: int
    version: int
    staleness: int
    stage: str
    story: tuple[str, ...] = ()
    evidence: Evidence | None = None
    answer: Any = None
    patches: int = 0
    failed_with: tuple[int, ...] = ()
    unfounded: str = ""


@dataclass(frozen=True)
class Check:
    """One judgement of a staleness policy, as an item's record keeps it.

    Args:
        stage: the stage that was about to begin or go on.
        staleness: the item's, at that moment.
        verdict: what the policy said.
        reason: why, in its own words; empty where it gave none.
    """

    stage: str
    staleness: int
    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True)
class ItemRecord:
    """The terminal record of an item, written exactly once, whatever happened.

    Args:
        number: the item's number.
        terminal: how it ended.
        reason: why; empty for a commit.
        version: the pool version it was born at; 0 if it was made from the seed while that was being validated.
        staleness: how much older than the pool it was when it ended, or when its validation began if it had one.
        spent: metric calls it spent.
        story: its moves, oldest first.
        error: the exception behind a ``FAILED``.
        started: seconds since the run began, when it was offered.
        ended: seconds since the run began, when it ended.
        evidence: what its gate said of its artifact, if it passed one.
        checks: every judgement of it, oldest first.
        members: the items that it merged, if it is a merge.
        merged_into: the merge that took it in, if its terminal is ``MERGED``.
        entries: pool versions that it brought.
        partial: scores by example of a stage of it that was stopped before its end.
    """

    number: int
    terminal: Terminal
    reason: str
    version: int
    staleness: int
    spent: int
    story: tuple[str, ...]
    error: BaseException | None = None
    started: float = 0.0
    ended: float = 0.0
    evidence: Evidence | None = None
    checks: tuple[Check, ...] = ()
    members: tuple[int, ...] = ()
    merged_into: int | None = None
    entries: tuple[int, ...] = ()
    partial: Mapping[Any, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Limits:
    """What a run may use.

    Args:
        slots: resource name to its number of slots.
        stages: the stage names, in the order an item passes them. The driver adds that of a decision's work, ``judge``,
            if it is missing.
        entry: the resource on which a new item begins; an idle slot there asks for one.
        budget: metric calls in all, or ``None`` for no limit.
        offer_cost: metric calls a new item needs to be committed; nothing is offered when less is left.
        max_items: items in flight at most, or ``None``.
        may_hold: whether the merge queue is of use, if a policy wants one.
        holds: whether items wait in the merge queue, and share a validation there; the driver says so.
        validations: items that leave the merge queue to be validated, alone or merged, at once at most.
        validates: whether artifacts are validated before they enter the pool.
        examples: of a validation, where that is known before the first one; else 0.
    """

    slots: Mapping[str, int]
    stages: tuple[str, ...]
    entry: str
    budget: int | None = None
    offer_cost: int = 0
    max_items: int | None = None
    may_hold: bool = True
    holds: bool = False
    validations: int = 1
    validates: bool = True
    examples: int = 0


@dataclass(frozen=True)
class Patience:
    """How long a run waits for servers.

    Args:
        max_outage: seconds without a success after which a resource that fails is given up, and the run ends.
        sample_timeout: seconds that one try of a sample may take, or ``None``.
    """

    max_outage: float = 45.0
    sample_timeout: float | None = None
