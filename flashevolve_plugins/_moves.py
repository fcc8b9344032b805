"""The Scheduler's account of its items and slots, and the moves that keep it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashevolve_plugins import _events as ev
from flashevolve_plugins._backlog import Backlog
from flashevolve_plugins._errors import InvalidTransition, UsageError
from flashevolve_plugins._item import Item, Kind, State
from flashevolve_plugins._ledger import Ledger, Parking
from flashevolve_plugins._merge_queue import MergeQueue
from flashevolve_plugins._model import Limits, Terminal
from flashevolve_plugins._waits import Waits
from flashevolve_plugins._workforce import Workforce

if TYPE_CHECKING:
    from flashevolve_plugins._model import Stage


class Moves:
    """What the Scheduler knows, and how its items move. It decides nothing.

    Args:
        limits: slots per resource, stage names, budget.
        version: the pool's version at the start.
        spent: metric calls already spent at the start.
    """

    def __init__(self, limits: Limits, *, version: int = 0, spent: int = 0) -> None:
        if limits.entry not in limits.slots:
            raise UsageError(f"The entry resource {limits.entry!r} has no slots: name it in Limits.slots.")
        self.version = version
        self.ledger = Ledger(limits.budget, spent)
        self.slots = dict(limits.slots)
        #: Samples that run and that wait, by resource and by stage. Plain dicts: writing to a Counter is slow.
        self.busy = dict.fromkeys(limits.slots, 0)
        self.backlog = dict.fromkeys(limits.slots, 0)
        self.stage_busy = dict.fromkeys(limits.stages, 0)
        self.stage_waiting = dict.fromkeys(limits.stages, 0)
        self.first_stage = limits.stages[0]
        self.entry = limits.entry
        self.items: dict[int, Item] = {}
        self._waits_for = Waits(self.items)
        self.merge_queue = MergeQueue(limits.validations)
        self.holds = limits.holds
        self.validates, self.examples = limits.validates, limits.examples
        self.max_items = limits.max_items
        self._proposals = 0
        self.workforce = Workforce(limits.stages)
        self._begin_in = limits.stages[0]  # where new items begin, as far as is known
        self.offer_cost = limits.offer_cost
        self._next = 1
        self._offering: int | None = None
        self._exhausted = self._nothing_yet = False
        self._stopping: str | None = None
        self._cancelled = self._settling = False
        self._deciding = 0
        self._ending = 0
        self._ended = self._committed = 0
        self._needed = 0
        self._parking = Parking(self.ledger)
        self._queues = Backlog(limits.slots, limits.stages, self.items, self._parking, self.workforce)
        self._out: list[ev.Instruction] = []

    def _item(self, number: int) -> Item:
        try:
            return self.items[number]
        except KeyError:
            raise InvalidTransition(number, "be told of: it never was, or has ended", ()) from None

    def _take_offering(self, number: int) -> None:
        if self._offering != number:
            raise InvalidTransition(number, "be offered: it was not asked for", ())
        self._offering = None

    def _held_item(self, number: int) -> Item:
        item = self._item(number)
        item.require(State.HELD)
        if number not in self.merge_queue.waiting:
            raise InvalidTransition(number, "leave the merge queue: a merge has taken it", item.story)
        return item

    def _free_slot(self, event: ev.SampleFinished | ev.SampleFailed) -> Item:
        item = self._item(event.item)
        item.finish(event.index, event.spent)
        sample = item.stage.samples[event.index]
        self.busy[sample.resource] -= 1
        self.stage_busy[item.stage.name] -= 1
        self.ledger.settle(sample.cost, event.spent)
        if item.origin is not None:
            self.items[item.origin].spent += event.spent
        return item

    def _after_sample(self, item: Item) -> None:
        if item.waiting or item.running or item.state is State.JUDGING:
            return
        if item.doom is None:
            self._finish(item)
            return
        self.workforce.ends(item)
        if not item.tails:
            self._end(item, *item.doom)

    def _finish(self, item: Item) -> None:
        self.workforce.ends(item, finished=True)
        item.move(State.DECIDING)
        self._deciding += 1
        self._out.append(ev.FinishStage(item.number, item.stage, item.failed))

    def _drop_waiting(self, item: Item) -> None:
        if item.reserved:
            samples = item.stage.samples
            self.ledger.settle(sum(samples[each].cost for indices in item.waiting.values() for each in indices), 0)
        self._count_waiting(item, -1)
        item.waiting.clear()

    def _count_waiting(self, item: Item, sign: int) -> None:
        for resource, indices in item.waiting.items():
            self.backlog[resource] += sign * len(indices)
            self.stage_waiting[item.stage.name] += sign * len(indices)

    def _doom(self, item: Item, terminal: Terminal, reason: str) -> None:
        """End an item by our own decision, at once or when what runs of it has ended."""
        self._drop_waiting(item)
        self.merge_queue.leave(item.number)
        if not item.running:
            self.workforce.ends(item)
        if item.running or item.tails:
            item.move(State.DRAINING)
            item.doom = (terminal, reason, item.stage)
        else:
            self._end(item, terminal, reason, item.stage)

    def _end(self, item: Item, terminal: Terminal, reason: str, stage: Stage | None) -> None:
        if item.brought is not None:
            item.staleness = item.brought
        elif not (item.reserved and item.stage.commits):
            item.staleness = self.version - item.version
        item.move(State.ENDING)
        item.story.append(terminal.value)
        if item.kind is not Kind.JOB:
            self._ended += 1
            self._committed += terminal is Terminal.COMMITTED
        self._ending += 1
        self._out.append(ev.EndItem(item.number, terminal, reason, stage))
