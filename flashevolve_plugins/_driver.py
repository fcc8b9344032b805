"""Carries out what the Scheduler asks for, and tells it what happened. The same for threads and for virtual time."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar

from flashevolve_plugins import _events as ev
from flashevolve_plugins._bodies import Ended, OpenItem, OpenItems
from flashevolve_plugins._calls import Call, Calls, Carrier
from flashevolve_plugins._cancellation import cancellation
from flashevolve_plugins._decisions import JUDGE, Decisions
from flashevolve_plugins._driver_kind import DriverKind
from flashevolve_plugins._errors import FlashEvolveError
from flashevolve_plugins._given_up import GivenUp, given_up
from flashevolve_plugins._host_item import HostItem
from flashevolve_plugins._item import State
from flashevolve_plugins._model import Discarded, ItemRecord, Outcome, Patience, Stage, Terminal
from flashevolve_plugins._policies import AcceptAll, Policies
from flashevolve_plugins._pool import Pool
from flashevolve_plugins._releases import Releases
from flashevolve_plugins._scheduler import Scheduler
from flashevolve_plugins._snapshot import Meter, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from typing_extensions import Self

    from flashevolve_plugins._bodies import Body, Merger
    from flashevolve_plugins._failures import Failure
    from flashevolve_plugins._keeping import Keeper
    from flashevolve_plugins._model import Limits, PoolEntry
    from flashevolve_plugins._stopping import Stopping

SNAPSHOT_EVERY = 0.5  # seconds

#: What a source of items gives while there is nothing to offer yet: it is asked again when an item has ended.
LATER: Any = type("Later", (), {"__repr__": lambda _: "LATER"})()


class Driver(DriverKind):
    """Runs items.

    Args:
        limits: slots, stages and budget.
        policies: who decides and who looks on.
        pool: the pool, with what it holds at the start.
        spent: metric calls already spent at the start.
        patience: how long to wait for servers.
    """

    #: Whether a sample that met an infrastructure failure is tried again.
    retries: ClassVar[bool] = True

    def __init__(
        self,
        limits: Limits,
        policies: Policies | None = None,
        *,
        pool: Pool | None = None,
        spent: int = 0,
        patience: Patience | None = None,
    ) -> None:
        self._prepare()
        self._cancellation = cancellation()
        self._cancellation.watch(self.wake)
        carrier = Carrier(
            self.now, self._start, self._abandon_try, self._slots_left, self._wanted, self._ending, self._sample_over
        )
        self._calls = Calls(carrier, limits.slots, (patience or Patience()) if self.retries else None)
        self._given_up = GivenUp()
        #: Calls that were left to themselves as the driver was closed.
        self.abandoned = 0
        self.pool = pool or Pool()
        self.policies = policies or AcceptAll()
        stages = limits.stages if JUDGE in limits.stages else (*limits.stages, JUDGE)
        limits = replace(limits, stages=stages, holds=limits.may_hold and self.policies.holds)
        self.scheduler = Scheduler(limits, version=self.pool.version, spent=spent)
        self._meter = Meter(self.now())
        #: How many metric calls reflective datasets have made so far; an adapter that knows says so.
        self.feedback_calls: Callable[[], int] = int
        self._open = OpenItems(self.scheduler.first_stage, self.pool, self.now, self._meter)
        #: What the policies are asked; an adapter whose host reflects says with what: ``decisions.reflector``.
        self.decisions = Decisions(self.scheduler, self.policies, self.pool, self._open)
        self.releases = Releases(self.scheduler, self.policies, self.pool, self._open, self._calls)
        self._ended: deque[Ended] = deque()
        self._source: Callable[[int], Body | None] | None = None
        self._invitation: int | None = None
        self._untold: Ended | None = None
        self._origin: int | None = None  # the host item that all others are made from, until it has ended
        self._next_snapshot = 0.0
        self._control_period = inf if self.policies.control_period is None else self.policies.control_period
        self._next_control = inf
        #: Keeps what samples gave, where the run has a directory.
        self.keeper: Keeper | None = None
        #: Called on the caller's thread about as often as snapshots are told, also while nothing ends.
        self.tick: Callable[[], None] = lambda: None
        #: What may stop the run before its end, if anything may.
        self.stopping: Stopping | None = None
        self._carry_out(self.scheduler.begin())
        if self.policies.control_period is not None:
            self._control(self.now())

    # -- what an adapter calls, on the caller's thread --------------------------------------------------------------

    def offer_from(self, source: Callable[[int], Body | None], merger: Merger | None = None) -> None:
        """Take items from ``source`` from now on.

        Args:
            source: makes the bodies of proposals, each from its item's number; ``None`` means nothing is left,
                ``LATER`` that there is nothing until an item has ended.
            merger: makes the bodies of merges; without one, items that wait in the merge queue can only go on alone.
        """
        self._heed()
        self._source, self.decisions.merger = source, merger
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
            if stage.samples:
                self._heed()  # before anything is spent
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
            if self.stopping is not None and self.stopping.reason is not None:
                raise self.stopping.error()
            raise FlashEvolveError(f"The run cannot go on with {stage.name}: {self._ended_item(item).outcome.reason}.")
        if opened.gone is not None:
            raise given_up(stage.name, opened.gone) from error
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
        self._heed()
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
        self._heed()  # before anything more is offered
        if entries:
            self._feed(ev.PoolUpdated(self.pool.version, anchors))
        self.releases.ended(ended.number)
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

    def stop(self, reason: str, *, cancel: bool = False, settle: bool = False) -> None:
        """Offer nothing more; with ``cancel`` also start nothing more, but, with ``settle``, of what is nearly done."""
        self._feed(ev.StopRequested(reason, cancel, settle))

    def abandon(self, reason: str) -> None:
        """Wait no longer for what runs: what has ended by now counts, and all items end."""
        for cancel in (False, True):
            self.stop(reason, cancel=cancel)
            waits = 1 + self._calls.lost.total()  # that may give nothing, as an abandoned call has come back
            while waits:
                if (end := self._wait()) is None:
                    waits -= 1
                else:
                    self._calls.ended(*end)
        self._calls.timers.clear()
        for item in tuple(self.scheduler.items.values()):
            for index in sorted(item.running):
                self._feed(ev.SampleFailed(item.number, index, 0))

    def due(self) -> float:
        """When a wait ends at the latest, by the driver's clock."""
        timer, alarm = self._calls.timers.next, inf if self.stopping is None else self.stopping.alarm
        return alarm if timer is None else min(alarm, timer)

    def _heed(self) -> bool:
        """Stop if that was asked for; whether anything has changed."""
        return self.stopping is not None and self.stopping.heed(self)

    def tell(self, event: ev.SlotsChanged | ev.WorkersChanged | ev.OfferCostChanged) -> None:
        """Change a limit while the run goes on."""
        if isinstance(event, ev.SlotsChanged):
            event = ev.SlotsChanged(event.resource, self._calls.change_slots(event.resource, event.slots))
        self._feed(event)

    def spare(self, calls: int) -> None:
        """So many metric calls are not made, since what they would give is known."""
        self._meter.spared += calls

    def snapshot(self) -> Snapshot:
        """The run's statistics now."""
        return self._meter.snapshot(
            self.now(), self.scheduler, self.feedback_calls(), self._calls, self.abandoned + self._calls.lost.total()
        )

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
        self._cancellation.raise_if_requested()
        if self._heed():
            return
        end = self._wait()
        now = self.now()
        if now >= self._next_snapshot:
            self._tell_snapshot()
        if end is not None:
            self._calls.ended(*end)
        self._calls.timers.run(now)
        if now >= self._next_control:
            self._control(now)
        self._given_up.require_fewer()

    def _sample_over(
        self, call: Call, result: Any, error: BaseException | None, seconds: float, gone: Failure | None
    ) -> None:
        item, index, sample = call.item, call.index, call.sample
        opened = self._open[item]
        self._meter.sample_ended(self.now(), sample.resource, call.stage.name, seconds)
        if sample.catches and gone is None and isinstance(error, Exception):
            result, error = error, None
        event: ev.Event
        if error is None:
            opened.results[index] = result
            if sample.took is not None:
                sample.took(seconds)
            spent = sample.cost if sample.spent is None else sample.spent(result)
            event = ev.SampleFinished(item, index, spent)
        else:
            self.releases.withdraw(item)
            if opened.error is None:
                opened.error, opened.gone = error, gone
            if item == self._origin:  # nothing will come of what is made from it
                self.stop(f"item {item} failed")
            event = ev.SampleFailed(item, index, sample.cost if gone is None else 0)
        if error is None and call.stage.progress is not None and self.policies.releases:
            for answer in self.releases.look(item, index, call.stage):  # before its slot goes to the next sample
                self._feed(answer)
            event.item = self.releases.owner(item, call.key)
        self._carry_out(self.scheduler.handle(event))

    def _wanted(self, call: Call) -> bool:
        """Whether a sample's item would go on with its result."""
        kept = self.scheduler.items[call.item]
        origin = kept if kept.origin is None else self.scheduler.items[kept.origin]
        return kept.doom is None and origin.doom is None and not kept.failed

    def _ending(self) -> bool:
        return not any(self.scheduler.backlog.values()) and not self.scheduler.may_offer()

    def _slots_left(self, resource: str, slots: int) -> None:
        self._feed(ev.SlotsChanged(resource, slots))

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
                    return self.decisions.finish_job(item, answered)
                answer = self._finish_stage(item, stage, failed=failed)
            case ev.OfferItem(item):
                answer = self._offer(item)
            case ev.JudgeStale(item, stage):
                answer = self.decisions.judge(item, stage)
            case ev.ConsultQueue(items, last):
                return self.decisions.consult(items, last=last) if self._origin is None else (ev.QueueWaits(),)
            case ev.EndItem(item, terminal, reason, stage):
                answer = self._end(item, terminal, reason, stage)
            case ev.CancelSample(item, index):
                answer = self._cancel_sample(item, index)
        return () if answer is None else (answer,)

    def _begin_sample(self, item: int, index: int, stage: Stage) -> None:
        opened = self._open[item]
        if not opened.begun:
            opened.begun = True
            if opened.answered is None:  # observers hear of items, not of jobs
                self.policies.stage_started(item, stage.name)
        sample = stage.samples[index]
        if self.keeper is not None and sample.kept is not None:
            sample = self.keeper.keeping(self.scheduler.items[item].origin or item, sample)
        self._meter.sample_started(self.now(), sample.resource)
        self._calls.begin(Call(item, index, stage, sample, self.releases.key(item)))

    def _cancel_sample(self, item: int, index: int) -> ev.Event | None:
        key = self.releases.key(item)
        if not self._calls.has(key, index):
            return None  # it has ended at this very moment
        call = self._calls.cancel(key, index)
        if call is None:
            self._cancel(key, index)  # and its end comes as any other
            return None
        self._meter.sample_ended(self.now(), call.sample.resource, call.stage.name, 0.0)
        return ev.SampleFailed(item, index, 0)

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
        if opened.body is None:
            return None  # the host goes on when it sees the stage finished
        if item in self.pool.provisional and stage.commits and not failed:
            wrong = self.releases.confirm(item, stage)
            if wrong is not None:
                opened.fail(str(wrong), stage)
                return ev.ItemDecided(item, Terminal.FAILED, str(wrong))
        following = opened.go_on(stage, failed=failed)
        if following is not None:
            return ev.StageReady(item, following)
        assert opened.outcome is not None  # noqa: S101 - a body that gives no stage is over
        return ev.ItemDecided(item, opened.outcome.terminal, opened.outcome.reason)

    def _plan(self) -> None:
        """Ask how much may be under way, and let the Scheduler know if that changed."""
        if self.policies.plans and (event := self.decisions.plan(self.snapshot())) is not None:
            self._feed(event)

    def _control(self, now: float) -> None:
        """Ask how many items may be at work in each stage, and let the Scheduler know if that changed."""
        self._next_control = now + self._control_period
        if (event := self.decisions.control(self.snapshot())) is not None:
            self._feed(event)

    # -- ends -------------------------------------------------------------------------------------------------------

    def _end(self, item: int, terminal: Terminal, reason: str, stage: Stage | None) -> ev.Event | None:
        opened = self._open[item]
        if opened.answered is not None:
            del self._open[item]
            self.releases.ended(item)
            return ev.ItemRecorded(item)  # a job leaves no record
        outcome = opened.outcome
        if stage is not None:
            outcome = opened.discard(Discarded(terminal, reason, stage.name))
        del self._open[item]
        payload = outcome.payload if outcome is not None else None
        record = self._record_of(item, opened, terminal, reason)
        self._given_up.ended(terminal, opened.gone)
        self._ended.append(Ended(item, Outcome(terminal, reason, payload), record))
        return None

    def _record_of(self, item: int, opened: OpenItem, terminal: Terminal, reason: str) -> ItemRecord:
        return opened.record(self.scheduler.items[item], Outcome(terminal, reason), self._meter.seconds(self.now()))
