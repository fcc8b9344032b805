"""Carries out what the Scheduler asks for, and tells it what happened. The same for threads and for virtual time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flashevolve_plugins import _events as ev
from flashevolve_plugins._bodies import OpenItem, OpenItems
from flashevolve_plugins._decisions import JUDGE, Decisions, Reflector
from flashevolve_plugins._errors import FlashEvolveError
from flashevolve_plugins._host_item import HostItem
from flashevolve_plugins._item import State
from flashevolve_plugins._model import Discarded, ItemRecord, Outcome, Sample, Stage, Terminal
from flashevolve_plugins._policies import AcceptAll, Policies
from flashevolve_plugins._pool import Pool
from flashevolve_plugins._scheduler import Scheduler
from flashevolve_plugins._snapshot import Meter, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from typing_extensions import Self

    from flashevolve_plugins._bodies import Body, Merger
    from flashevolve_plugins._model import Limits, PoolEntry

SNAPSHOT_EVERY = 0.5  # seconds

#: What a source of items gives while there is nothing to offer yet: it is asked again when an item has ended.
LATER: Any = type("Later", (), {"__repr__": lambda _: "LATER"})()


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


class Driver(ABC):
    """Runs items.

    Args:
        limits: slots, stages and budget.
        policies: who decides and who looks on.
        pool: the pool, with what it holds at the start.
        spent: metric calls already spent at the start.
    """

    def __init__(
        self, limits: Limits, policies: Policies | None = None, *, pool: Pool | None = None, spent: int = 0
    ) -> None:
        self._prepare()
        self.pool = pool or Pool()
        self.policies = policies or AcceptAll()
        stages = limits.stages if JUDGE in limits.stages else (*limits.stages, JUDGE)
        limits = replace(limits, stages=stages, holds=limits.may_hold and self.policies.holds)
        self.scheduler = Scheduler(limits, version=self.pool.version, spent=spent)
        self._meter = Meter(self.now())
        #: How many metric calls reflective datasets have made so far; an adapter that knows says so.
        self.feedback_calls: Callable[[], int] = int
        self._open = OpenItems(self.scheduler.first_stage, self.pool, self.now, self._meter)
        self._decisions = Decisions(self.scheduler, self.policies, self.pool, self._open)
        self._ended: deque[Ended] = deque()
        self._source: Callable[[int], Body | None] | None = None
        self._invitation: int | None = None
        self._untold: Ended | None = None
        self._origin: int | None = None  # the host item that all others are made from, until it has ended
        self._next_snapshot = 0.0
        #: Called on the caller's thread about as often as snapshots are told, also while nothing ends.
        self.tick: Callable[[], None] = lambda: None
        self._carry_out(self.scheduler.begin())

    # -- what a driver kind supplies --------------------------------------------------------------------------------

    @abstractmethod
    def _prepare(self) -> None:
        """Make what this kind of driver needs; comes before everything else."""

    @abstractmethod
    def now(self) -> float:
        """The driver's clock, in seconds."""

    @abstractmethod
    def _start(self, item: int, index: int, sample: Sample) -> None:
        """Let a sample run."""

    @abstractmethod
    def _wait(self) -> tuple[int, int, Any, BaseException | None, float]:
        """Wait for a sample to end: item, index, result, what it raised, seconds it took."""

    def _cancel(self, item: int, index: int) -> None:  # noqa: B027 - most samples cannot be stopped
        """Stop a running sample if that is possible."""

    @abstractmethod
    def close(self) -> None:
        """Give back what the driver holds. Samples that still run are abandoned."""

    # -- what an adapter calls, on the caller's thread --------------------------------------------------------------

    @property
    def reflector(self) -> Reflector:
        """For the work of decisions; an adapter whose host reflects says with what."""
        return self._decisions.reflector

    @reflector.setter
    def reflector(self, reflector: Reflector) -> None:
        self._decisions.reflector = reflector

    def offer_from(self, source: Callable[[int], Body | None], merger: Merger | None = None) -> None:
        """Take items from ``source`` from now on.

        Args:
            source: makes the bodies of proposals, each from its item's number; ``None`` means nothing is left,
                ``LATER`` that there is nothing until an item has ended.
            merger: makes the bodies of merges; without one, items that wait in the merge queue can only go on alone.
        """
        self._source, self._decisions.merger = source, merger
        self.policies.run_started(self.snapshot())
        self._plan()
        invitation, self._invitation = self._invitation, None
        if invitation is None:
            return
        if self.scheduler.may_offer():
            self._carry_out([ev.OfferItem(invitation)])
        else:  # the budget has changed since the Scheduler asked
            self._feed(ev.NothingOffered(invitation))

    def host_item(self) -> HostItem:
        """An item whose stages the host asks for one by one, as in lockstep and for the seed."""
        if self._invitation is None:
            raise FlashEvolveError("The host asked for a stage while no slot was free for a new item.")
        return HostItem(self, self._invitation)

    def run_host_stage(
        self, item: int, stage: Stage, *, first: bool, meanwhile: Callable[[], None] | None = None
    ) -> list[Any]:
        """Run one stage of a host item and wait for it. See :meth:`HostItem.run`."""
        if first:
            self._invitation = None
            opened = self._open.open(item, stage)
            self._feed(ev.ItemOffered(item, stage))
        else:
            opened = self._open[item]
            opened.begin(stage)
            self._feed(ev.StageReady(item, stage))
        if meanwhile is not None:
            self._origin = item
            meanwhile()
        kept = self.scheduler.items[item]
        while kept.state not in {State.DECIDING, State.ENDING}:
            self._step()
        error, opened.error = opened.error, None
        if kept.state is State.ENDING:
            raise FlashEvolveError(f"The run cannot go on with {stage.name}: {self._ended_item(item).outcome.reason}.")
        if error is not None:
            raise error
        return opened.results

    def end_host_item(self, item: int, outcome: Outcome, entries: Sequence[PoolEntry], *, counted: bool) -> None:
        """End a host item and record it. See :meth:`HostItem.end`."""
        if self.scheduler.items[item].state is State.DECIDING:
            self._feed(ev.ItemDecided(item, outcome.terminal, outcome.reason))
        anchors = item == self._origin and bool(entries)
        if anchors:
            self._origin = None
        if any(each.number == item for each in self._ended):  # else it was interrupted, and leaving records the item
            ended = self._ended_item(item)
            self._ended.remove(ended)
            self.recorded(ended, entries, counted=counted, anchors=anchors)

    def _ended_item(self, item: int) -> Ended:
        return next(each for each in self._ended if each.number == item)

    def next_ended(self) -> Ended | None:
        """Wait for an item to end; ``None`` when there is none and none will come.

        The caller tells the host, then calls :meth:`recorded`.
        """
        while not self._ended:
            if self.scheduler.done:
                return None
            self._step()
        self._untold = self._ended.popleft()
        return self._untold

    def recorded(
        self,
        ended: Ended,
        entries: Sequence[PoolEntry] = (),
        error: BaseException | None = None,
        *,
        counted: bool = True,
        anchors: bool = False,
    ) -> None:
        """The host has been told of ``ended``, and its pool took these entries; or it raised ``error``."""
        record = ended.record
        if error is not None and record.terminal is Terminal.COMMITTED and not entries:
            reason = f"the host raised {type(error).__name__}: {error}"
            record = replace(record, terminal=Terminal.FAILED, reason=reason, error=error)
        if entries:
            record = replace(record, entries=record.entries + tuple(entry.version for entry in entries))
        if counted:
            self._meter.item_ended(record)
        self._untold = None
        self._admit(entries)
        self.policies.item_ended(record)
        if entries:
            self._feed(ev.PoolUpdated(self.pool.version, anchors))
        self._feed(ev.ItemRecorded(ended.number, failed=record.terminal is not ended.record.terminal))
        if self._source is not None:
            self._plan()

    def publish(self, item: int, entries: Sequence[PoolEntry]) -> None:
        """Let an item's entries enter the pool before the item has ended. For its body alone.

        Args:
            item: the item's number.
            entries: what its host's pool has taken.
        """
        opened = self._open[item]
        opened.entries += tuple(entry.version for entry in entries)
        self._admit(entries)
        self._feed(ev.PoolUpdated(self.pool.version, item=item))

    def _admit(self, entries: Sequence[PoolEntry]) -> None:
        self.pool.append(entries)
        for entry in entries:
            self._meter.pool_updated(entry)
        for entry in entries:
            self.policies.pool_updated(entry)

    def stop(self, reason: str, *, cancel: bool = False) -> None:
        """Offer nothing more; with ``cancel`` also start nothing more."""
        self._feed(ev.StopRequested(reason, cancel))

    def tell(self, event: ev.SlotsChanged | ev.StageSlotsChanged | ev.OfferCostChanged) -> None:
        """Change a limit while the run goes on."""
        self._feed(event)

    def snapshot(self) -> Snapshot:
        """The run's statistics now."""
        return self._meter.snapshot(self.now(), self.scheduler, self.feedback_calls())

    def finish(self) -> Snapshot:
        """Tell the observers that the run is over, and return its last statistics."""
        last = self.snapshot()
        self.policies.run_finished(last)
        return last

    def __enter__(self) -> Self:
        """Begin a run."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """End the run: record what is still open, tell the observers, and give back what the driver holds."""
        try:
            self._abandon("the run is over" if kind is None else f"the run ended with {kind.__name__}")
            self.finish()
        finally:
            self.close()

    def _abandon(self, reason: str) -> None:
        """Write the records of the items that nobody waits for any more."""
        untold = [self._untold] if self._untold is not None else []
        records = [ended.record for ended in (*untold, *self._ended)]
        self._untold = None
        self._ended.clear()
        for item, opened in self._open.items():
            opened.shut()
            if opened.answered is None and item in self.scheduler.items:  # else interrupted while it was begun
                records.append(self._record_of(item, opened, Terminal.CANCELLED, reason))
        self._open.clear()
        for record in sorted(records, key=lambda each: each.number):
            self._meter.item_ended(record)
            self.policies.item_ended(record)

    # -- events and instructions ------------------------------------------------------------------------------------

    def _tell_snapshot(self) -> None:
        now = self.now()
        if now >= self._next_snapshot:
            self._next_snapshot = now + SNAPSHOT_EVERY
            self.tick()
            self.policies.snapshot(self.snapshot())

    def _step(self) -> None:
        item, index, result, error, seconds = self._wait()
        now = self.now()
        if now >= self._next_snapshot:
            self._tell_snapshot()
        opened = self._open[item]
        stage = self.scheduler.items[item].stage
        sample = stage.samples[index]
        self._meter.sample_ended(now, sample.resource, stage.name, seconds)
        event: ev.Event
        if error is None:
            opened.results[index] = result
            spent = sample.cost if sample.spent is None else sample.spent(result)
            event = ev.SampleFinished(item, index, spent)
        else:
            opened.error = opened.error or error
            if item == self._origin:  # nothing will come of what is made from it
                self.stop(f"item {item} failed")
            event = ev.SampleFailed(item, index, sample.cost)
        self._carry_out(self.scheduler.handle(event))

    def _feed(self, event: ev.Event) -> None:
        self._carry_out(self.scheduler.handle(event))

    def _carry_out(self, instructions: Sequence[ev.Instruction]) -> None:
        todo = deque(instructions)
        while todo:
            for answer in self._do(todo.popleft()):
                todo.extend(self.scheduler.handle(answer))

    def _do(self, instruction: ev.Instruction) -> Iterable[ev.Event]:
        answer: ev.Event | None = None
        match instruction:
            case ev.StartSample(item, index, stage):
                self._begin_sample(item, index, stage)
            case ev.FinishStage(item, stage, failed):
                if (answered := self._open[item].answered) is not None:
                    return self._decisions.finish_job(item, answered)
                answer = self._finish_stage(item, stage, failed=failed)
            case ev.OfferItem(item):
                answer = self._offer(item)
            case ev.JudgeStale(item, stage):
                answer = self._decisions.judge(item, stage)
            case ev.ConsultQueue(items, last):
                return self._decisions.consult(items, last=last) if self._origin is None else (ev.QueueWaits(),)
            case ev.EndItem(item, terminal, reason, stage):
                answer = self._end(item, terminal, reason, stage)
            case ev.CancelSample(item, index):
                self._cancel(item, index)
        return () if answer is None else (answer,)

    def _begin_sample(self, item: int, index: int, stage: Stage) -> None:
        opened = self._open[item]
        if not opened.begun:
            opened.begun = True
            if opened.answered is None:  # observers hear of items, not of jobs
                self.policies.stage_started(item, stage.name)
        sample = stage.samples[index]
        self._meter.sample_started(self.now(), sample.resource)
        self._start(item, index, sample)

    def _offer(self, item: int) -> ev.Event | None:
        if self._source is None:
            self._invitation = item
            return None
        offered = self.now()
        body = self._source(item)
        if body is None or body is LATER:
            return ev.NothingOffered(item) if body is None else ev.NothingYet(item)
        self._meter.offered(offered)
        return ev.ItemOffered(item, self._open.open_body(item, body))

    def _finish_stage(self, item: int, stage: Stage, *, failed: bool) -> ev.Event | None:
        opened = self._open[item]
        if opened.outcome is not None:  # its body was over before its first stage
            return ev.ItemDecided(item, opened.outcome.terminal, opened.outcome.reason)
        if not opened.begun:  # an empty stage
            self.policies.stage_started(item, stage.name)
        self.policies.stage_finished(item, stage.name)
        body, raised = opened.body, opened.error
        if body is None:
            return None  # the host goes on when it sees the stage finished
        if failed and raised is not None:
            following = opened.step(body.throw, raised)
        else:
            following = opened.step(body.send, opened.results)
        if following is not None:
            return ev.StageReady(item, following)
        assert opened.outcome is not None  # noqa: S101 - a body that gives no stage is over
        return ev.ItemDecided(item, opened.outcome.terminal, opened.outcome.reason)

    def _plan(self) -> None:
        """Ask how much may be under way, and let the Scheduler know if that changed."""
        if self.policies.plans and (event := self._decisions.plan(self.snapshot())) is not None:
            self._feed(event)

    # -- ends -------------------------------------------------------------------------------------------------------

    def _end(self, item: int, terminal: Terminal, reason: str, stage: Stage | None) -> ev.Event | None:
        opened = self._open[item]
        if opened.answered is not None:
            del self._open[item]
            return ev.ItemRecorded(item)  # a job leaves no record
        outcome = opened.outcome
        if stage is not None:
            outcome = opened.discard(Discarded(terminal, reason, stage.name))
        del self._open[item]
        payload = outcome.payload if outcome is not None else None
        record = self._record_of(item, opened, terminal, reason)
        self._ended.append(Ended(item, Outcome(terminal, reason, payload), record))
        return None

    def _record_of(self, item: int, opened: OpenItem, terminal: Terminal, reason: str) -> ItemRecord:
        kept = self.scheduler.items[item]
        return ItemRecord(
            number=item,
            terminal=terminal,
            reason=reason,
            version=opened.born,
            staleness=kept.staleness,
            spent=kept.spent,
            story=tuple(kept.story),
            error=opened.error,
            started=opened.started,
            ended=self._meter.seconds(self.now()),
            evidence=opened.evidence,
            checks=tuple(opened.checks),
            members=kept.members,
            merged_into=kept.merged_into if terminal is Terminal.MERGED else None,
            entries=opened.entries,
        )
