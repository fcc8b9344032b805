"""The pure core: events in, instructions out.

Owns no thread, no clock and no randomness, and calls no user code. Its laws are listed in ``docs/explanation``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flashevolve_plugins import _events as ev
from flashevolve_plugins._errors import InvalidTransition
from flashevolve_plugins._item import Item, Kind, State
from flashevolve_plugins._model import Limits, Terminal, Verdict
from flashevolve_plugins._moves import Moves

if TYPE_CHECKING:
    from collections.abc import Callable


OUT_OF_BUDGET = "the budget cannot pay for what it still needs"
MAX_MERGES = 16  # of one item; a policy that halves its merges needs fewer
LEFT_OVER = "nothing took it from the merge queue"


class Scheduler(Moves):
    """Decides what runs next.

    Args:
        limits: slots per resource, stage names, budget.
        version: the pool's version at the start.
        spent: metric calls already spent at the start.
    """

    def __init__(self, limits: Limits, *, version: int = 0, spent: int = 0) -> None:
        super().__init__(limits, version=version, spent=spent)
        self._handlers: dict[type, Callable[[Any], None]] = {
            ev.ItemOffered: self._item_offered,
            ev.NothingOffered: self._nothing_offered,
            ev.NothingYet: self._offer_later,
            ev.StageReady: self._stage_ready,
            ev.ItemDecided: self._item_decided,
            ev.SampleFinished: self._sample_finished,
            ev.SampleFailed: self._sample_failed,
            ev.StageReleased: self._stage_released,
            ev.StageStopped: self._stage_stopped,
            ev.Provisional: self._provisional,
            ev.Judged: self._judged,
            ev.Patched: self._patched,
            ev.JobStarted: self._job_started,
            ev.MergeStarted: self._merge_started,
            ev.Released: self._released,
            ev.QueueWaits: self._queue_waits,
            ev.Dropped: self._dropped,
            ev.ItemRecorded: self._item_recorded,
            ev.PoolUpdated: self._pool_updated,
            ev.SlotsChanged: self._slots_changed,
            ev.WorkersChanged: self._workers_changed,
            ev.OfferCostChanged: self._offer_cost_changed,
            ev.PlanChanged: self._plan_changed,
            ev.StopRequested: self._stop_requested,
        }

    # -- the two calls a driver makes -------------------------------------------------------------------------------

    def begin(self) -> list[ev.Instruction]:
        """The first instructions."""
        return self._settle_and_take()

    def handle(self, event: ev.Event) -> list[ev.Instruction]:
        """Take one event, return what is to be done now, in order.

        Raises:
            InvalidTransition: the event cannot happen in the state its item is in.
        """
        self._handlers[type(event)](event)
        return self._settle_and_take()

    @property
    def done(self) -> bool:
        """Whether nothing is in flight and nothing more will be offered."""
        return not self.items and self._offering is None and not self.may_offer()

    @property
    def stop_reason(self) -> str | None:
        """Why nothing more is offered, if a stop was requested."""
        return self._stopping

    def next_number(self) -> int:
        """A number for a merge or a job."""
        number, self._next = self._next, self._next + 1
        return number

    # -- events -----------------------------------------------------------------------------------------------------

    def _item_offered(self, event: ev.ItemOffered) -> None:
        self._take_offering(event.item)
        self._proposals += 1
        self._begin_in = event.stage.name
        self._add(Item(event.item, self.version, event.stage))

    def _add(self, item: Item) -> None:
        self.items[item.number] = item
        self._needed += item.own_need
        self._begin(item)

    def _begin(self, item: Item) -> None:
        """A stage of the item begins."""
        self._count_waiting(item, 1)
        if self._cancelled and not (item.settling or (self._settling and item.kind is Kind.JOB)):
            self._doom(item, Terminal.CANCELLED, self._stopping or "")
        elif item.state is State.HELD:
            self.merge_queue.add(item.number)
        elif self._waits_for.begins(item):
            self._proceed(item)

    def _proceed(self, item: Item) -> None:
        if item.complete:
            self._finish(item)
        else:
            self._queues.add(item)

    def _nothing_offered(self, event: ev.NothingOffered) -> None:
        self._take_offering(event.item)
        self._exhausted = True

    def _offer_later(self, event: ev.NothingYet) -> None:
        self._take_offering(event.item)
        self._nothing_yet = bool(self.items)  # with nothing in flight, nothing would ever change that
        self._exhausted = not self.items

    def _stage_ready(self, event: ev.StageReady) -> None:
        item = self._item(event.item)
        needed = item.own_need
        item.deciding_to_waiting(event.stage)
        self._needed += item.own_need - needed
        self._deciding -= 1
        self._begin(item)

    def _item_decided(self, event: ev.ItemDecided) -> None:
        item = self._item(event.item)
        item.require(State.DECIDING)
        self._deciding -= 1
        if item.tails:
            item.move(State.DRAINING)
            item.doom = (event.terminal, event.reason, None)
        else:
            self._end(item, event.terminal, event.reason, None)

    def _sample_finished(self, event: ev.SampleFinished) -> None:
        item = self._free_slot(event)
        self._after_sample(item)

    def _sample_failed(self, event: ev.SampleFailed) -> None:
        item = self._free_slot(event)
        item.failed = True
        self._drop_waiting(item)
        self._after_sample(item)

    def _stage_released(self, event: ev.StageReleased) -> None:
        item = self._item(event.item)
        tail = self.items[event.tail] = item.split(event.tail)
        self._queues.add(tail)
        self._finish(item)

    def _stage_stopped(self, event: ev.StageStopped) -> None:
        item = self._item(event.item)
        item.require(State.RUNNING)
        self.merge_queue.ended(item.number)
        self._doom(item, Terminal.FAILED if event.failed else Terminal.REJECTED, event.reason)

    def _provisional(self, event: ev.Provisional) -> None:
        item = self._item(event.item)
        item.require(State.RUNNING)
        item.story.append("provisional")
        self.merge_queue.ended(item.number)

    def _judged(self, event: ev.Judged) -> None:
        if self._cancelled and getattr(self.items.get(event.item), "state", None) is not State.JUDGING:
            return  # the verdict comes after the cancel that ended the item
        item = self._item(event.item)
        item.require(State.JUDGING)
        item.story.append(f"{event.verdict.value}@{item.judged_version}")
        if event.verdict is Verdict.DISCARD:
            terminal = Terminal.FAILED if event.failed else Terminal.DISCARDED
            self._doom(item, terminal, event.reason or "stale")
            return
        if event.verdict is Verdict.PATCH:
            item.anchor()
        item.move(State.RUNNING if item.reserved else State.WAITING)
        if item.reserved and item.complete:
            self._finish(item)
        else:
            self._queues.add(item)

    def _patched(self, event: ev.Patched) -> None:
        if self._cancelled and getattr(self.items.get(event.item), "state", None) is not State.JUDGING:
            return  # as a verdict
        item = self._item(event.item)
        item.require(State.JUDGING)
        needed = item.own_need
        self._count_waiting(item, -1)
        item.patch(event.stage)
        self._needed += item.own_need - needed
        self._begin(item)

    def _job_started(self, event: ev.JobStarted) -> None:
        self._add(Item(event.item, self.version, event.stage, Kind.JOB))

    def _merge_started(self, event: ev.MergeStarted) -> None:
        members = [self._held_item(number) for number in event.members]
        self.merge_queue.take(event.members, event.item)
        for member in members:
            member.merged_into = event.item
            member.story.append(f"taken into {event.item}")
        self._add(Item(event.item, self.version, event.stage, Kind.MERGE, event.members))

    def _released(self, event: ev.Released) -> None:
        item = self._held_item(event.item)
        self.merge_queue.take((item.number,), item.number)
        item.story.append("released")
        self._finish(item)

    def _queue_waits(self, event: ev.QueueWaits) -> None:
        del event
        for number in self.merge_queue.wait():
            self._doom(self.items[number], Terminal.DISCARDED, LEFT_OVER)

    def _dropped(self, event: ev.Dropped) -> None:
        item = self._held_item(event.item)
        self.merge_queue.drop(item.number)
        self._doom(item, Terminal.DISCARDED, event.reason)

    def _plan_changed(self, event: ev.PlanChanged) -> None:
        self.max_items, self.merge_queue.validations = event.max_items, event.validations
        self.merge_queue.changed = True

    def _item_recorded(self, event: ev.ItemRecorded) -> None:
        item = self._item(event.item)
        item.move(State.ENDED)
        self._ending -= 1
        self._nothing_yet = False
        self._needed -= item.own_need
        self._proposals -= item.kind is Kind.PROPOSAL
        self.merge_queue.ended(item.number)
        del self.items[item.number]
        for waiting in self._waits_for.ended(item):
            if waiting.state is State.WAITING:  # and is not about to end
                self._proceed(waiting)
        origin = None if item.origin is None else self.items[item.origin]
        if origin is not None and origin.doom is not None and not (origin.running or origin.tails):
            self._end(origin, *origin.doom)
        for number in item.members:
            member = self.items[number]
            if item.story[-1] == Terminal.COMMITTED.value and not event.failed:
                self._doom(member, Terminal.MERGED, f"merged into item {item.number}")
            elif self._cancelled:
                self._doom(member, Terminal.CANCELLED, self._stopping or "")
            elif len(member.failed_with) + 1 >= MAX_MERGES:  # else a policy that never learns would ask for ever
                self._doom(member, Terminal.DISCARDED, f"{MAX_MERGES} merges with it failed")
            else:
                member.merged_into = None
                if item.stage.after is None:  # else it was never tried: what it was written onto was not confirmed
                    member.failed_with += (len(item.members),)
                member.story.append(f"back from {item.number}")
                self.merge_queue.add(member.number)

    def _pool_updated(self, event: ev.PoolUpdated) -> None:
        if event.version <= self.version:
            raise InvalidTransition(0, f"bring the pool from version {self.version} to {event.version}", ())
        if event.item is not None:
            item = self._item(event.item)
            item.brought = self.version - item.version
        self.version = event.version
        self.merge_queue.changed = True
        if event.anchors:
            for item in self.items.values():
                item.version = item.judged_version = event.version

    def _slots_changed(self, event: ev.SlotsChanged) -> None:
        self.slots[event.resource] = event.slots

    def _workers_changed(self, event: ev.WorkersChanged) -> None:
        capped = self.workforce.change(event.workers)
        for item in self.items.values() if capped else ():
            if item.stage.name in capped:
                self._queues.begun(item)

    def _offer_cost_changed(self, event: ev.OfferCostChanged) -> None:
        self.offer_cost = event.cost

    def _stop_requested(self, event: ev.StopRequested) -> None:
        self._stopping = event.reason
        if not event.cancel or (self._cancelled and (event.settle or not self._settling)):
            return
        self._cancelled, self._settling = True, event.settle
        for item in tuple(self.items.values()):
            of = item if item.origin is None else self.items[item.origin]  # a tail ends with its item
            item.settling = event.settle and of.nearly_done and of.doom is None
            if not event.settle:
                self._out.extend(ev.CancelSample(item.number, index) for index in sorted(item.running))
            spared = item.settling or item.merged_into is not None  # which ends with its merge
            if not spared and item.state in {State.WAITING, State.RUNNING, State.JUDGING, State.HELD}:
                self._doom(item, Terminal.CANCELLED, event.reason)

    # -- what runs next ---------------------------------------------------------------------------------------------

    def _settle_and_take(self) -> list[ev.Instruction]:
        if not self._deciding:
            if self._parking.numbers:
                for item in self._parking.leaving(self.items):
                    self._queues.add(item)
            for resource, waiting in self.backlog.items():
                if waiting and not self._fill(resource):
                    break
            else:
                if self.busy[self.entry] < self.slots[self.entry]:
                    self._maybe_offer()
            if self.merge_queue.waiting and not self._ending:
                question = self.merge_queue.consult(self.items, offering=self._offering is not None)
                if question is not None:
                    self._out.append(question)
        out, self._out = self._out, []
        return out

    def _fill(self, resource: str) -> bool:
        """Give idle slots to what waits. False: stopped at a judgement, whose item has the first claim on the slot."""
        queues = self._queues.by_resource[resource]
        while self.backlog[resource] and self.busy[resource] < self.slots[resource]:
            number = queues.first()
            if number is None:
                return True
            item = self.items[number]
            if self._permitted(item):
                self._start(item, resource)
            elif item.state is State.JUDGING:
                return False
        return True

    def _permitted(self, item: Item) -> bool:
        """Whether a waiting sample of the item may start; if not, the item has been put where it waits for that."""
        stage, job = item.stage, item.kind is Kind.JOB
        judged = stage.judged and not job and not (item.reserved and stage.commits)
        doubted = stage.unfounded and item.doubted != item.stage_number
        if judged and (doubted or item.judged_version != self.version):
            item.move(State.JUDGING)
            item.doubted = item.stage_number
            item.judged_version = self.version  # an entry that comes before the verdict asks for another one
            item.staleness = self.version - item.version
            self._out.append(ev.JudgeStale(item.number, stage, item.staleness))
            return False
        if item.reserved:
            return True
        due = self.ledger.due(item)
        if job or self.ledger.affords(due):  # who waits for a job goes on in any case
            self.ledger.reserve(item.cost)
            self._needed -= item.cost
            item.reserved = True
            item.staleness = self.version - item.version
            self.workforce.begins(item)
            self._queues.begun(item)
            return True
        if self.ledger.could_ever_afford(due):
            self._parking.add(item)
        else:
            # A new proposal costs more than was said: the next one would end here as well.
            if item.stage_number == 1 and item.kind is Kind.PROPOSAL:
                self.offer_cost = max(self.offer_cost, item.need)
            self._doom(item, Terminal.DISCARDED, OUT_OF_BUDGET)
        return False

    def _start(self, item: Item, resource: str) -> None:
        index, stage = item.start(resource), item.stage
        self.backlog[resource] -= 1
        self.busy[resource] += 1
        self.stage_waiting[stage.name] -= 1
        self.stage_busy[stage.name] += 1
        self._out.append(ev.StartSample(item.number, index, stage))

    def _maybe_offer(self) -> None:
        """Ask for an item when a slot would otherwise be idle and the budget can still turn it into something.

        Where it would have to wait for a worker, it is asked for later, and made from a newer pool.
        A resource with more samples waiting than slots is the bottleneck; more items would only grow stale there.
        """
        if self._offering is not None or self._nothing_yet or self._ending or not self.may_offer():
            return
        if self._begin_in in self.workforce.full:
            return
        if any(self.backlog[name] > slots for name, slots in self.slots.items()):
            return
        if not self.ledger.affords_offer(self.offer_cost + self.expected_need()):
            return
        if self.max_items is not None and self._proposals >= self.max_items:
            return
        self._offering = self._next
        self._next += 1
        self._out.append(ev.OfferItem(self._offering))

    def expected_need(self) -> int:
        """Metric calls that the items in flight are expected to need, by the share of items that are committed.

        Where items share their validations, all that they need for themselves.
        """
        if self.ledger.limit is None:
            return 0
        if self.holds:
            return self._needed
        return round(self._needed * (self._committed + 1) / (self._ended + 2))

    def may_offer(self) -> bool:
        """Whether a new item would be asked for if a slot were idle."""
        return not self._exhausted and self._stopping is None and self.ledger.affords_offer(self.offer_cost)
