"""What the driver keeps of the items under way, and the steps of their bodies. All on the caller's thread."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from flashevolve_plugins._given_up import GIVEN_UP
from flashevolve_plugins._model import Check, Discarded, ItemRecord, Outcome, Patch, Stage, Terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from flashevolve_plugins import _events as ev
    from flashevolve_plugins._failures import Failure
    from flashevolve_plugins._item import Item
    from flashevolve_plugins._model import Evidence
    from flashevolve_plugins._policies import Batch
    from flashevolve_plugins._pool import Pool
    from flashevolve_plugins._snapshot import Meter

#: An item's body: yields stages, is sent their results in sample order, returns how the item ends. It runs on the
#: caller's thread. A sample that raised is thrown into it.
Body: TypeAlias = "Generator[Stage, list[Any], Outcome]"

#: Makes the body of a merge: its number, its members' numbers, and what the policy said.
Merger: TypeAlias = "Callable[[int, Batch], Body]"


class Partial(list[Any]):
    """What a stage gave that was handed on: ``None`` where a sample had not ended.

    Args:
        results: the stage's results, which go on to fill.
    """

    def __init__(self, results: list[Any]) -> None:
        super().__init__(results)
        self._results = results
        self._error: BaseException | None = None

    def whole(self) -> list[Any]:
        """All results. Only once a later stage that ``joins`` has begun; raises what a sample raised."""
        if self._error is not None:
            raise self._error
        return self._results

    def over(self, answer: Any) -> Iterable[ev.Event]:
        """The tail has ended; with what a sample of it raised, if one did."""
        self._error = answer if isinstance(answer, BaseException) else None
        return ()


@dataclass(frozen=True)
class Ended:
    """An item that is over and whose host has not been told yet.

    Args:
        number: the item's number.
        outcome: how it ended, with what its body returned.
        record: its terminal record.
    """

    number: int
    outcome: Outcome
    record: ItemRecord


@dataclass
class OpenItem:
    """What the driver keeps of an item under way."""

    body: Body | None
    born: int
    started: float
    results: list[Any] = field(default_factory=list)
    begun: bool = False
    error: BaseException | None = None
    #: Why the sample that raised it was given up, if it never got an answer.
    gone: Failure | None = None
    outcome: Outcome | None = None
    evidence: Evidence | None = None
    checks: list[Check] = field(default_factory=list)
    #: Pool versions that it has brought before its end.
    entries: tuple[int, ...] = ()
    #: What was known by example of a stage that was stopped.
    partial: dict[Any, float] = field(default_factory=dict)
    #: A job's: what follows from its result, or from what it raised.
    answered: Callable[[Any], Iterable[ev.Event]] | None = None

    def begin(self, stage: Stage) -> None:
        """A stage begins: nothing of it has run."""
        self.results, self.begun = [None] * len(stage.samples), False
        self.evidence = stage.evidence or self.evidence

    def step(self, step: Callable[..., Stage], *given: Any) -> Stage | None:
        """Run the body to its next stage, or to its end: ``None``, and ``outcome`` says how."""
        stage, outcome, self.error = _advance(step, *given)
        if stage is not None:
            self.begin(stage)
        elif outcome is not None:
            self.outcome, self.evidence = outcome, outcome.evidence or self.evidence
        return stage

    def go_on(self, stage: Stage, *, failed: bool) -> Stage | None:
        """Run the body on after a stage, to its next one or to its end."""
        assert self.body is not None  # noqa: S101 - asked by the caller
        if failed and self.gone is not None:
            self.fail(GIVEN_UP.format(stage.name, self.gone.message), stage)
            return None
        if failed and self.error is not None:
            return self.step(self.body.throw, self.error)
        return self.step(self.body.send, self.results)

    def fail(self, reason: str, stage: Stage) -> None:
        """Let the item fail in a stage, to its host like one that was discarded there."""
        told = self.discard(Discarded(Terminal.FAILED, reason, stage.name))
        self.outcome = Outcome(Terminal.FAILED, reason, told and told.payload)

    def discard(self, why: Discarded) -> Outcome | None:
        """Let the body build its payload for an end that was not its own decision."""
        if self.body is None:
            return None
        _, outcome, error = _advance(self.body.throw, why)
        if error is not None and error is not why:
            self.error = self.error or error
        self.shut()
        return outcome

    def record(self, item: Item, outcome: Outcome, ended: float) -> ItemRecord:
        """The terminal record.

        Args:
            item: the Scheduler's view of the item.
            outcome: how it ended.
            ended: seconds since the run began.
        """
        merged = outcome.terminal is Terminal.MERGED
        return ItemRecord(
            number=item.number,
            terminal=outcome.terminal,
            reason=outcome.reason,
            version=self.born,
            staleness=item.staleness,
            spent=item.spent,
            story=tuple(item.story),
            error=self.error,
            started=self.started,
            ended=ended,
            evidence=self.evidence,
            checks=tuple(self.checks),
            members=item.members,
            merged_into=item.merged_into if merged else None,
            entries=self.entries,
            partial=self.partial,
        )

    def shut(self) -> None:
        """Close the body; what it raises then belongs to its item."""
        if self.body is None:
            return
        try:
            self.body.close()
        except Exception as error:  # noqa: BLE001 - it must not cost the item its record
            self.error = self.error or error


class OpenItems(dict[int, OpenItem]):
    """The items under way, by number.

    Args:
        first_stage: the name of an item's first stage.
        pool: the pool, for the version at which an item is born.
        now: the driver's clock.
        meter: for the time since the run began.
    """

    def __init__(self, first_stage: str, pool: Pool, now: Callable[[], float], meter: Meter) -> None:
        super().__init__()
        self._first_stage, self._pool, self._now, self._meter = first_stage, pool, now, meter

    def open(self, item: int, stage: Stage) -> OpenItem:
        """Add an item without a body that begins with this stage."""
        opened = self[item] = OpenItem(None, self._pool.version, self._meter.seconds(self._now()))
        opened.begin(stage)
        return opened

    def open_body(self, item: int, body: Body) -> Stage:
        """Run a new item's body to its first stage, and add the item."""
        opened = OpenItem(body, self._pool.version, self._meter.seconds(self._now()))
        stage = opened.step(next, body) or self._empty(opened)
        self[item] = opened
        return stage

    def patch(self, item: int, artifact: Any) -> Stage:
        """Let an item's body go on with another artifact."""
        opened = self[item]
        assert opened.body is not None  # noqa: S101 - only bodies give evidence
        return opened.step(opened.body.throw, Patch(artifact)) or self._empty(opened)

    def _empty(self, opened: OpenItem) -> Stage:
        """A stage for an item to end in whose body is over."""
        stage = Stage(self._first_stage, ())
        opened.begin(stage)
        return stage


def _advance(step: Callable[..., Stage], *given: Any) -> tuple[Stage | None, Outcome | None, BaseException | None]:
    """Run a body to its next stage or its end."""
    try:
        stage = step(*given)
        if isinstance(stage, Stage):
            return stage, None, None
        wrong = TypeError(f"An item's body must yield stages, not {type(stage).__name__}.")
        return None, Outcome(Terminal.FAILED, str(wrong)), wrong
    except StopIteration as end:
        if isinstance(end.value, Outcome):
            return None, end.value, None
        problem = TypeError(f"An item's body must return an Outcome, not {type(end.value).__name__}.")
        return None, Outcome(Terminal.FAILED, str(problem)), problem
    except Exception as error:  # noqa: BLE001 - whatever a host raises fails its item
        return None, Outcome(Terminal.FAILED, f"{type(error).__name__}: {error}"), error
