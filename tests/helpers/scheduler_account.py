"""An account of a run, kept from events and instructions alone, and the laws that every instruction is held against."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flashevolve_plugins import _events as ev
from flashevolve_plugins._item import Kind
from flashevolve_plugins._model import Limits, Stage, Terminal
from flashevolve_plugins._scheduler import MAX_MERGES, OUT_OF_BUDGET, Scheduler

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

STAGES = ("rollout", "propose", "gate", "queue", "judge", "merge", "validate", "commit")


@dataclass
class Life:
    """What is known of an item.

    Its phase: ``open``, ``held``, ``taken`` (by a merge), ``judging``, ``deciding``, ``doomed``, ``ending``, ``over``.
    """

    number: int
    anchor: int
    judged: int
    stage: Stage
    kind: Kind = Kind.PROPOSAL
    members: tuple[int, ...] = ()
    #: The item whose verdict a job is for.
    client: int = 0
    #: Whether a stop that settles has spared it.
    settling: bool = False
    phase: str = "open"
    waiting: set[int] = field(default_factory=set)
    running: set[int] = field(default_factory=set)
    admitted: bool = False
    failed: bool = False
    end: tuple[Terminal, str, Stage | None] | None = None
    stages: int = 0
    terminals: int = 0
    merges: list[int] = field(default_factory=list)
    failed_with: tuple[int, ...] = ()
    #: Its staleness when it brought an entry, if it did.
    brought: int | None = None

    def begin(self, stage: Stage) -> None:
        self.phase, self.stage, self.stages = "held" if stage.holds else "open", stage, self.stages + 1
        self.waiting, self.running = set(range(len(stage.samples))), set()
        self.admitted = self.failed = False

    def doom(self, terminal: Terminal, reason: str) -> None:
        self.phase, self.end = "doomed", (terminal, reason, self.stage)
        self.waiting.clear()

    @property
    def path(self) -> int:
        """Metric calls that its stage and what follows it cost."""
        return self.stage.cost + self.stage.then

    @property
    def at_work(self) -> bool:
        """Whether a worker has it: its stage has begun, and is not over."""
        return self.admitted and (self.phase in {"open", "judging"} or bool(self.running))

    @property
    def nearly_done(self) -> bool:
        return self.kind is Kind.JOB or (self.admitted and (self.stage.commits or self.stage.settles))

    @property
    def own_need(self) -> int:
        return self.stage.then - self.stage.shared + (0 if self.admitted else self.stage.cost)


class Account:
    """What is under way, waits, runs, and is reserved and spent."""

    scheduler: Scheduler

    def __init__(self, limits: Limits, version: int, spent: int) -> None:
        self.limits, self.version, self.spent = limits, version, spent
        self.slots = dict(limits.slots)
        #: Stage name to its workers, where their number is limited.
        self.caps: dict[str, int] = {}
        #: The stage in which the last new item began.
        self.begin_in = limits.stages[0]
        self.offer_cost = limits.offer_cost
        self.max_items, self.validations = limits.max_items, limits.validations
        self.lives: dict[int, Life] = {}
        self.all_lives: list[Life] = []
        self.numbers = 0
        self.offering: int | None = None
        self.ended = self.committed = 0
        self.exhausted = self.nothing_yet = self.stopping = self.cancelled = self.settling = False
        self.reason = ""
        self.cancel_due: list[tuple[int, int]] = []
        #: Numbers of the items that wait in the merge queue, in the order in which they came to wait.
        self.queue: list[int] = []
        #: Numbers of what left the queue and has not ended.
        self.validating: set[int] = set()
        self.queue_changed = False
        #: The question to the queue that is not answered yet.
        self.consulting: ev.ConsultQueue | None = None

    # -- sums -------------------------------------------------------------------------------------------------------

    def running_on(self, resource: str) -> int:
        return sum(life.stage.samples[i].resource == resource for life in self.lives.values() for i in life.running)

    def running_in(self, stage: str) -> int:
        return sum(len(life.running) for life in self.lives.values() if life.stage.name == stage)

    def at_work_in(self, stage: str) -> int:
        """Items of which a sample of the stage has started, and not all have ended."""
        return sum(life.at_work for life in self.lives.values() if life.stage.name == stage)

    def waiting_on(self, resource: str) -> int:
        return sum(life.stage.samples[i].resource == resource for life in self.lives.values() for i in life.waiting)

    @property
    def reserved(self) -> int:
        return sum(
            life.stage.samples[i].cost
            for life in self.lives.values()
            if life.admitted
            for i in life.waiting | life.running
        )

    @property
    def free(self) -> float:
        return float("inf") if self.limits.budget is None else self.limits.budget - self.spent - self.reserved

    def ever_free(self) -> float:
        return self.free + self.reserved

    def stage_free(self, stage: str) -> bool:
        """Whether a worker of the stage is idle."""
        return stage not in self.caps or self.at_work_in(stage) < self.caps[stage]

    def any_is(self, phase: str) -> bool:
        return any(life.phase == phase for life in self.lives.values())

    # -- what is due ------------------------------------------------------------------------------------------------

    def could_run(self, life: Life) -> bool:
        """Whether a waiting sample of it may start now, at the latest once its staleness is judged."""
        paid = life.admitted or life.path <= self.free
        return life.phase == "open" and (life.at_work or self.stage_free(life.stage.name)) and paid

    def waiting_samples(self, resource: str) -> Iterator[tuple[tuple[int, int, int], Life]]:
        """Each with its rank: the lowest goes first."""
        for life in self.lives.values():
            for i in life.waiting:
                if life.stage.samples[i].resource == resource:
                    yield (-STAGES.index(life.stage.name), life.number, i), life

    def may_offer(self) -> bool:
        return not (self.exhausted or self.stopping) and self.offer_cost <= self.free

    def offer_is_due(self) -> bool:
        entry = self.limits.entry
        proposals = sum(life.kind is Kind.PROPOSAL for life in self.lives.values())
        return (
            self.may_offer()
            and not self.nothing_yet
            and self.stage_free(self.begin_in)
            and self.running_on(entry) < self.slots[entry]
            and all(self.waiting_on(name) <= slots for name, slots in self.slots.items())
            and (self.max_items is None or proposals < self.max_items)
            and not self.any_is("ending")
            and self.offer_cost + self.expected_need() <= self.free
        )

    def expected_need(self) -> int:
        """What the items in flight still need, as far as they are expected to come to a commit."""
        if self.limits.budget is None:
            return 0
        needs = sum(life.own_need for life in self.lives.values())
        return needs if self.limits.holds else round(needs * (self.committed + 1) / (self.ended + 2))

    def only_queue_left(self) -> bool:
        return self.offering is None and len(self.queue) == len(self.lives)

    def consult_is_due(self) -> bool:
        return (
            bool(self.queue)
            and self.consulting is None
            and len(self.validating) < self.validations
            and not self.any_is("ending")
            and not self.any_is("deciding")
            and (self.queue_changed or self.only_queue_left())
        )

    # -- changes ----------------------------------------------------------------------------------------------------

    def enter(self, life: Life) -> None:
        """An item begins."""
        self.lives[life.number] = life
        self.all_lives.append(life)
        self.begin(life, life.stage)

    def begin(self, life: Life, stage: Stage) -> None:
        """A stage of an item begins."""
        life.begin(stage)
        spared = life.settling or (self.settling and life.kind is Kind.JOB)
        if self.cancelled and not spared:
            life.doom(Terminal.CANCELLED, self.reason)
        elif stage.holds:
            self.hold(life)

    def hold(self, life: Life) -> None:
        life.phase = "held"
        self.queue.append(life.number)
        self.queue_changed = True
        self.validating.discard(life.number)

    def take(self, numbers: Sequence[int], leader: int) -> None:
        """These leave the queue, to be validated as ``leader``."""
        for number in numbers:
            self.queue.remove(number)
        self.validating.add(leader)
        self.queue_changed = True

    def drop(self, life: Life, reason: str) -> None:
        self.queue.remove(life.number)
        life.doom(Terminal.DISCARDED, reason)

    def recorded(self, number: int, *, failed: bool) -> None:
        """An item's record is written: its merge decides about its members."""
        life = self.lives.pop(number)
        assert life.terminals == 1
        assert life.end is not None or not life.members
        life.phase = "over"
        self.validating.discard(number)
        self.queue_changed = True
        self.nothing_yet = False
        committed = life.end is not None and life.end[0] is Terminal.COMMITTED and not failed
        for each in life.members:
            member = self.lives[each]
            assert member.phase == "taken"
            if committed:
                member.doom(Terminal.MERGED, f"merged into item {number}")
            elif self.cancelled:
                member.doom(Terminal.CANCELLED, self.reason)
            elif len(member.failed_with) + 1 >= MAX_MERGES:
                member.doom(Terminal.DISCARDED, f"{MAX_MERGES} merges with it failed")
            else:
                member.failed_with += (len(life.members),)
                self.hold(member)

    def cancel(self, *, settle: bool) -> None:
        self.cancelled, self.settling = True, settle
        for life in self.lives.values():
            life.settling = settle and life.nearly_done
            if not settle:
                self.cancel_due.extend((life.number, index) for index in life.running)
            if life.phase in {"open", "judging", "held"} and not life.settling:
                life.doom(Terminal.CANCELLED, self.reason)
        self.queue = [number for number in self.queue if self.lives[number].phase == "held"]

    # -- what the Scheduler asks for --------------------------------------------------------------------------------

    def observe(self, instructions: Sequence[ev.Instruction]) -> None:
        """Hold instructions against the laws, and book them."""
        for instruction in instructions:
            match instruction:
                case ev.StartSample(item, index, stage):
                    self._sample_starts(self.lives[item], index, stage)
                case ev.JudgeStale(item, stage, staleness):
                    self._judgement_asked(self.lives[item], stage, staleness)
                case ev.FinishStage(item, stage, failed):
                    self._stage_finishes(self.lives[item], stage, failed=failed)
                case ev.EndItem(item, terminal, reason, stage):
                    self._item_ends(self.lives[item], (terminal, reason, stage))
                case ev.CancelSample(item, index):
                    self.cancel_due.remove((item, index))
                case ev.ConsultQueue():
                    self._queue_consulted(instruction)
                case ev.OfferItem(item):
                    assert self.offering is None
                    assert item == self.numbers + 1
                    assert not self.any_is("deciding")
                    assert self.offer_is_due()
                    self.offering = self.numbers = item
        assert not self.cancel_due, "a running sample of a cancelled item is told to stop"
        self.check_books()
        if not self.any_is("deciding") and not any(isinstance(each, ev.JudgeStale) for each in instructions):
            self._check_slots()  # a verdict just asked for may come at once and take the slot
        assert not self.consult_is_due(), "the queue is asked when a validation may start and anything is new"

    def _sample_starts(self, life: Life, index: int, stage: Stage) -> None:
        assert stage is life.stage
        assert not self.any_is("deciding"), "nothing starts before the decision that may be more urgent"
        assert life.phase == "open"
        spared = life.settling or (self.settling and life.kind is Kind.JOB)
        assert spared or not self.cancelled
        assert not life.failed, "the rest of a failed stage does not start"
        assert index in life.waiting
        resource = stage.samples[index].resource
        assert self.running_on(resource) < self.slots[resource]
        assert life.at_work or self.stage_free(stage.name), "one item at a time has each worker"
        exempt = life.kind is Kind.JOB or not stage.judged or (life.admitted and stage.commits)
        assert life.judged == self.version or exempt, "judged before it costs something"
        mine = (-STAGES.index(stage.name), life.number, index)
        passed_over = [rank for rank, other in self.waiting_samples(resource) if rank < mine and self.could_run(other)]
        assert not passed_over, "closest to a commit first, oldest first"
        if not life.admitted:
            assert life.path <= self.free
            life.admitted = True
            assert self.limits.budget is None or self.spent + self.reserved <= self.limits.budget
        life.waiting.remove(index)
        life.running.add(index)

    def _judgement_asked(self, life: Life, stage: Stage, staleness: int) -> None:
        assert not self.any_is("deciding")
        assert life.phase == "open"
        assert life.kind is not Kind.JOB, "nobody judges the judge"
        assert stage is life.stage
        assert stage.judged, "it does not matter here how old it is"
        assert not (life.admitted and stage.commits), "a paid validation is committed"
        assert life.judged < self.version
        assert staleness == self.version - life.anchor
        assert life.at_work or self.stage_free(stage.name), "judged no sooner than a worker could take it"
        resources = {stage.samples[index].resource for index in life.waiting}
        assert any(self.running_on(name) < self.slots[name] for name in resources), "judged no sooner than it could run"
        life.phase, life.judged = "judging", self.version

    def _stage_finishes(self, life: Life, stage: Stage, *, failed: bool) -> None:
        assert stage is life.stage
        assert life.phase == "open", "what waits in the queue goes on when it is let go, and once"
        assert not life.waiting
        assert not life.running
        assert failed == life.failed
        life.phase = "deciding"

    def _queue_consulted(self, asked: ev.ConsultQueue) -> None:
        assert self.consult_is_due()
        assert len(self.validating) < self.validations, "so many validations of what waited, and no more"
        assert asked.items == tuple(self.queue), "who waits, the first to come first"
        assert all(self.lives[number].phase == "held" for number in asked.items), "nobody waits who is in a merge"
        assert asked.last == self.only_queue_left()
        self.consulting, self.queue_changed = asked, False

    def _item_ends(self, life: Life, end: tuple[Terminal, str, Stage | None]) -> None:
        assert not life.running, "what runs of it ends first"
        if life.brought is not None:
            assert self.scheduler.items[life.number].staleness == life.brought, "as it was when its entry came"
        if life.end is None:
            assert end == (Terminal.DISCARDED, OUT_OF_BUDGET, life.stage)
            assert life.kind is not Kind.JOB, "who waits for it would wait for ever"
            assert life.phase == "open"
            assert not life.admitted
            assert life.path > self.ever_free()
            if life.stages == 1 and life.kind is Kind.PROPOSAL:
                self.offer_cost = max(self.offer_cost, life.path)  # what the next one would cost too
            life.waiting.clear()
        else:
            assert life.phase == "doomed"
            assert end == life.end
        life.end = end
        life.phase = "ending"
        life.terminals += 1
        if life.kind is not Kind.JOB:
            self.ended += 1
            self.committed += end[0] is Terminal.COMMITTED

    # -- the laws of a moment ---------------------------------------------------------------------------------------

    def check_books(self) -> None:
        """The Scheduler's sums are the account's."""
        scheduler, lives = self.scheduler, self.lives.values()
        assert set(scheduler.items) == set(self.lives)
        assert scheduler.version == self.version
        assert scheduler.ledger.spent == self.spent
        assert scheduler.ledger.reserved == self.reserved
        assert self.limits.budget is None or self.spent + self.reserved <= self.limits.budget
        assert +Counter(scheduler.busy) == +Counter({name: self.running_on(name) for name in self.slots})
        assert +Counter(scheduler.stage_busy) == +Counter({name: self.running_in(name) for name in STAGES})
        at_work = {name: self.at_work_in(name) for name in STAGES}
        assert scheduler.workforce.at_work == at_work
        assert scheduler.workforce.full == {name for name, cap in self.caps.items() if at_work[name] >= cap}
        assert +Counter(scheduler.backlog) == +Counter({name: self.waiting_on(name) for name in self.slots})
        waiting: Counter[str] = Counter()
        for life in lives:
            waiting[life.stage.name] += len(life.waiting)
        assert +Counter(scheduler.stage_waiting) == +waiting
        assert scheduler.done == (not self.lives and self.offering is None and not self.may_offer())
        assert all(life.running or life.phase != "doomed" for life in lives), "nobody is kept from ending"
        assert all(life.running or life.waiting or life.phase != "open" for life in lives), "a done stage is finished"
        self._check_queue()

    def _check_queue(self) -> None:
        scheduler, lives = self.scheduler, self.lives.values()
        assert list(scheduler.merge_queue.waiting) == self.queue
        assert sorted(self.queue) == sorted(life.number for life in lives if life.phase == "held")
        taken = sorted(life.number for life in lives if life.phase == "taken")
        members = [number for life in lives for number in life.members]
        assert sorted(members) == taken, "in exactly one merge"
        for life in lives:
            kept = scheduler.items[life.number]
            assert kept.failed_with == life.failed_with
            if life.phase in {"held", "taken"}:
                assert kept.merged_into == (life.merges[-1] if life.phase == "taken" else None)

    def _check_slots(self) -> None:
        for resource, slots in self.slots.items():
            if self.running_on(resource) < slots:
                self._check_idle_slot(resource)
        assert self.offering is not None or not self.offer_is_due()

    def _check_idle_slot(self, resource: str) -> None:
        for _, life in self.waiting_samples(resource):
            assert not self.could_run(life), "no slot idles while a sample is permitted to run"
            hopeless = not life.admitted and life.path > self.ever_free()
            permitted = life.phase == "open" and self.stage_free(life.stage.name)
            assert not (hopeless and permitted), "it waits for nothing"

    def check_over(self) -> None:
        """Nothing is left, and every item had its one end."""
        assert self.scheduler.done
        assert not self.scheduler.items
        assert not self.scheduler.merge_queue.waiting
        assert self.scheduler.ledger.reserved == 0
        assert self.consulting is None
        assert all((life.phase, life.terminals) == ("over", 1) for life in self.all_lives)
        merged = Counter(life.merges[-1] for life in self.all_lives if life.end and life.end[0] is Terminal.MERGED)
        for life in self.all_lives:
            if life.number in merged:
                assert life.end is not None
                assert life.end[0] is Terminal.COMMITTED
                assert merged[life.number] == len(life.members)
