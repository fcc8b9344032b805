"""What the driver keeps of the items under way, and the steps of their bodies. All on the caller's thread."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from flashevolve_plugins._model import Check, Discarded, Outcome, Patch, Stage, Terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from flashevolve_plugins import _events as ev
    from flashevolve_plugins._model import Evidence
    from flashevolve_plugins._policies import Batch
    from flashevolve_plugins._pool import Pool
    from flashevolve_plugins._snapshot import Meter

#: An item's body: yields stages, is sent their results in sample order, returns how the item ends. It runs on the
#: caller's thread. A sample that raised is thrown into it.
Body: TypeAlias = "Generator[Stage, list[Any], Outcome]"

#: Makes the body of a merge: its number, its members' numbers, and what the policy said.
Merger: TypeAlias = "Callable[[int, Batch], Body]"


@dataclass
class OpenItem:
    """What the driver keeps of an item under way."""

    body: Body | None
    born: int
    started: float
    results: list[Any] = field(default_factory=list)
    begun: bool = False
    error: BaseException | None = None
    outcome: Outcome | None = None
    evidence: Evidence | None = None
    checks: list[Check] = field(default_factory=list)
    #: Pool versions that it has brought before its end.
    entries: tuple[int, ...] = ()
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

    def discard(self, why: Discarded) -> Outcome | None:
        """Let the body build its payload for an end that was not its own decision."""
        if self.body is None:
            return None
        _, outcome, error = _advance(self.body.throw, why)
        if error is not None and error is not why:
            self.error = self.error or error
        self.shut()
        return outcome

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
