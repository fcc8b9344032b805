"""The laws of the Scheduler, on every sequence of events that a driver, a host and a user can invent.

``World`` is a driver without threads or clock. From events and instructions alone it keeps its own account of every
item, slot and metric call, and holds each instruction against it. What happens next is up to hypothesis.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from flashevolve_plugins import InvalidTransition
from flashevolve_plugins import _events as ev
from flashevolve_plugins._model import Limits, Sample, Stage, Terminal, Verdict
from flashevolve_plugins._scheduler import OUT_OF_BUDGET, Scheduler

if TYPE_CHECKING:
    from collections.abc import Iterator

STAGES = ("rollout", "propose", "gate", "validate", "commit")
RESOURCES = ("task", "reflection", "local")
OWN_ENDS = (Terminal.COMMITTED, Terminal.MERGED, Terminal.REJECTED, Terminal.SKIPPED, Terminal.FAILED)


@dataclass
class Life:
    """What the world knows of an item: ``open``, ``judging``, ``deciding``, ``doomed``, ``ending`` or ``over``."""

    number: int
    anchor: int
    judged: int
    stage: Stage
    phase: str = "open"
    waiting: set[int] = field(default_factory=set)
    running: set[int] = field(default_factory=set)
    admitted: bool = False
    failed: bool = False
    end: tuple[Terminal, str, Stage | None] | None = None
    stages: int = 0
    terminals: int = 0

    def begin(self, stage: Stage) -> None:
        self.phase, self.stage, self.stages = "open", stage, self.stages + 1
        self.waiting, self.running = set(range(len(stage.samples))), set()
        self.admitted = self.failed = False


class World:
    """The model driver. Everything it does follows from ``seed`` and from the numbers its methods are given."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        resources = RESOURCES[: rng.randint(1, 3)]
        capped = [name for name in STAGES if rng.random() < 0.3]
        bounds = {name: (low := rng.randint(0, 2), rng.randint(max(low, 1), 3)) for name in capped}
        self.limits = Limits(
            slots={name: rng.choice((0, 1, 1, 2, 3, 5)) for name in resources},
            stages=STAGES,
            entry=rng.choice(resources),
            budget=rng.choice((None, rng.randint(0, 20), rng.randint(0, 60), rng.randint(0, 200))),
            offer_cost=rng.choice((0, rng.randint(0, 12))),
            max_items=rng.choice((None, None, rng.randint(1, 4))),
            stage_slots=bounds,
        )
        self.late: dict[type, float] = {kind: rng.choice((0.0, 0.0, 0.5)) for kind in (ev.JudgeStale, ev.EndItem)}
        self.late |= {kind: rng.choice((0.0, 0.0, 0.0, 0.3)) for kind in (ev.FinishStage, ev.OfferItem)}
        self.slots = dict(self.limits.slots)
        self.stage_caps = {name: high for name, (_, high) in bounds.items()}
        self.offer_cost = self.limits.offer_cost
        self.version = rng.randint(0, 3)
        self.spent = rng.choice((0, 0, rng.randint(0, self.limits.budget or 0)))
        self.lives: dict[int, Life] = {}
        self.all_lives: list[Life] = []
        self.offering: int | None = None
        self.offered = self.ended = self.committed = 0
        self.exhausted = self.stopping = self.cancelled = self.draining = False
        self.reason = ""
        self.cancel_due: list[tuple[int, int]] = []
        self.pending: list[ev.Instruction] = []
        self.broken = False
        self.scheduler = Scheduler(self.limits, version=self.version, spent=self.spent)
        self._go(self.scheduler.begin())

    # -- the account ------------------------------------------------------------------------------------------------

    def running_on(self, resource: str) -> int:
        return sum(life.stage.samples[i].resource == resource for life in self.lives.values() for i in life.running)

    def running_in(self, stage: str) -> int:
        return sum(len(life.running) for life in self.lives.values() if life.stage.name == stage)

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
        return stage not in self.stage_caps or self.running_in(stage) < self.stage_caps[stage]

    def deciding(self) -> bool:
        return any(life.phase == "deciding" for life in self.lives.values())

    def could_run(self, life: Life) -> bool:
        """Whether a waiting sample of it may start now, at the latest once its staleness is judged."""
        path = life.stage.cost + life.stage.then
        return life.phase == "open" and self.stage_free(life.stage.name) and (life.admitted or path <= self.free)

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
        return (
            self.may_offer()
            and self.running_on(entry) < self.slots[entry]
            and all(self.waiting_on(name) <= slots for name, slots in self.slots.items())
            and (self.limits.max_items is None or len(self.lives) < self.limits.max_items)
            and not any(life.phase == "ending" for life in self.lives.values())
            and self.offer_cost + self.expected_need() <= self.free
        )

    def expected_need(self) -> int:
        """What the items in flight still need, as far as they are expected to come to a commit."""
        if self.limits.budget is None:
            return 0
        needs = sum(life.stage.then + (0 if life.admitted else life.stage.cost) for life in self.lives.values())
        return round(needs * (self.committed + 1) / (self.ended + 2))

    # -- events in, instructions out --------------------------------------------------------------------------------

    def feed(self, event: ev.Event) -> None:
        """Tell the Scheduler, check what it asks for, and answer what is answered at once."""
        self.broken = True
        self._go(self.scheduler.handle(event))
        self.broken = False

    def _go(self, instructions: list[ev.Instruction]) -> None:
        todo = deque(instructions)
        self._observe(instructions)
        while todo:
            instruction = todo.popleft()
            if isinstance(instruction, ev.StartSample | ev.CancelSample):
                continue
            if self.rng.random() < self.late[type(instruction)] and not self.draining:
                self.pending.append(instruction)
                continue
            more = self.scheduler.handle(self._answer(instruction))
            todo.extend(more)
            self._observe(more)

    def _observe(self, instructions: list[ev.Instruction]) -> None:
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
                case ev.OfferItem(item):
                    assert self.offering is None
                    assert item == self.offered + 1
                    assert not self.deciding()
                    assert self.offer_is_due()
                    self.offering = self.offered = item
        assert not self.cancel_due, "a running sample of a cancelled item is told to stop"
        self._check_books()
        if not self.deciding() and not any(isinstance(instruction, ev.JudgeStale) for instruction in instructions):
            self._check_slots()  # a verdict just asked for may come at once and take the slot

    def _sample_starts(self, life: Life, index: int, stage: Stage) -> None:
        assert stage is life.stage
        assert not self.deciding(), "nothing starts before the decision that may be more urgent"
        assert life.phase == "open"
        assert not self.cancelled
        assert not life.failed, "the rest of a failed stage does not start"
        assert index in life.waiting
        resource = stage.samples[index].resource
        assert self.running_on(resource) < self.slots[resource]
        assert self.stage_free(stage.name)
        assert life.judged == self.version or (life.admitted and stage.commits), "judged before it costs something"
        mine = (-STAGES.index(stage.name), life.number, index)
        passed_over = [rank for rank, other in self.waiting_samples(resource) if rank < mine and self.could_run(other)]
        assert not passed_over, "closest to a commit first, oldest first"
        if not life.admitted:
            assert stage.cost + stage.then <= self.free
            life.admitted = True
            assert self.limits.budget is None or self.spent + self.reserved <= self.limits.budget
        life.waiting.remove(index)
        life.running.add(index)

    def _judgement_asked(self, life: Life, stage: Stage, staleness: int) -> None:
        assert not self.deciding()
        assert life.phase == "open"
        assert stage is life.stage
        assert not (life.admitted and stage.commits), "a paid validation is committed"
        assert life.judged < self.version
        assert staleness == self.version - life.anchor
        resources = {stage.samples[index].resource for index in life.waiting}
        assert any(self.running_on(name) < self.slots[name] for name in resources), "judged no sooner than it could run"
        life.phase, life.judged = "judging", self.version

    def _stage_finishes(self, life: Life, stage: Stage, *, failed: bool) -> None:
        assert stage is life.stage
        assert life.phase == "open"
        assert not life.waiting
        assert not life.running
        assert failed == life.failed
        life.phase = "deciding"

    def _item_ends(self, life: Life, end: tuple[Terminal, str, Stage | None]) -> None:
        assert not life.running, "what runs of it ends first"
        if life.end is None:
            assert end == (Terminal.DISCARDED, OUT_OF_BUDGET, life.stage)
            assert life.phase == "open"
            assert not life.admitted
            path = life.stage.cost + life.stage.then
            assert path > self.ever_free()
            if life.stages == 1:
                self.offer_cost = max(self.offer_cost, path)  # what the next one would cost too
            life.waiting.clear()
        else:
            assert life.phase == "doomed"
            assert end == life.end
        life.phase = "ending"
        life.terminals += 1
        self.ended += 1
        self.committed += end[0] is Terminal.COMMITTED

    def _check_books(self) -> None:
        scheduler, lives = self.scheduler, self.lives.values()
        assert set(scheduler.items) == set(self.lives)
        assert scheduler.version == self.version
        assert scheduler.ledger.spent == self.spent
        assert scheduler.ledger.reserved == self.reserved
        assert self.limits.budget is None or self.spent + self.reserved <= self.limits.budget
        assert +Counter(scheduler.busy) == +Counter({name: self.running_on(name) for name in self.slots})
        assert +Counter(scheduler.stage_busy) == +Counter({name: self.running_in(name) for name in STAGES})
        assert +Counter(scheduler.backlog) == +Counter({name: self.waiting_on(name) for name in self.slots})
        waiting: Counter[str] = Counter()
        for life in lives:
            waiting[life.stage.name] += len(life.waiting)
        assert +Counter(scheduler.stage_waiting) == +waiting
        assert scheduler.done == (not self.lives and self.offering is None and not self.may_offer())
        assert all(life.running or life.phase != "doomed" for life in lives), "nobody is kept from ending"
        assert all(life.running or life.waiting or life.phase != "open" for life in lives), "a done stage is finished"

    def _check_slots(self) -> None:
        for resource, slots in self.slots.items():
            if self.running_on(resource) < slots:
                self._check_idle_slot(resource)
        assert self.offering is not None or not self.offer_is_due()

    def _check_idle_slot(self, resource: str) -> None:
        for _, life in self.waiting_samples(resource):
            assert not self.could_run(life), "no slot idles while a sample is permitted to run"
            hopeless = not life.admitted and life.stage.cost + life.stage.then > self.ever_free()
            assert not (hopeless and life.phase == "open" and self.stage_free(life.stage.name)), "it waits for nothing"

    # -- answers ----------------------------------------------------------------------------------------------------

    def _answer(self, instruction: ev.Instruction) -> ev.Event:
        match instruction:
            case ev.OfferItem(item):
                return self._offer(item)
            case ev.FinishStage(item):
                return self._decide(self.lives[item])
            case ev.JudgeStale(item):
                return self._judge(self.lives.get(item), item)
            case ev.EndItem(item):
                life = self.lives.pop(item)
                assert life.terminals == 1
                life.phase = "over"
                return ev.ItemRecorded(item)
        raise AssertionError(instruction)

    def _offer(self, item: int) -> ev.Event:
        self.offering = None
        if self.rng.random() < 0.02:
            self.exhausted = True
            return ev.NothingOffered(item)
        life = Life(item, self.version, self.version, self._stage(0))
        self.lives[item] = life
        self.all_lives.append(life)
        self._begin(life, life.stage)
        return ev.ItemOffered(item, life.stage)

    def _decide(self, life: Life) -> ev.Event:
        position = STAGES.index(life.stage.name) + 1
        over = self.rng.random() < 0.25 or position == len(STAGES) or self.draining
        if life.stage.commits or over:
            terminal = Terminal.COMMITTED if life.stage.commits else self.rng.choice(OWN_ENDS)
            life.phase, life.end = "doomed", (terminal, terminal.value, None)
            return ev.ItemDecided(life.number, terminal, terminal.value)
        following = self._stage(self.rng.choice((position, position, position, self.rng.randrange(len(STAGES)))))
        self._begin(life, following)
        return ev.StageReady(life.number, following)

    def _begin(self, life: Life, stage: Stage) -> None:
        life.begin(stage)
        if self.cancelled:
            self._doom(life, Terminal.CANCELLED, self.reason)

    def _judge(self, life: Life | None, item: int) -> ev.Event:
        verdict = self.rng.choice((Verdict.ACCEPT, Verdict.ACCEPT, Verdict.PATCH, Verdict.DISCARD))
        broken = verdict is Verdict.DISCARD and self.rng.random() < 0.3
        if life is None or life.phase != "judging":
            assert self.cancelled, "only a cancel takes an item from its judge"
        elif verdict is Verdict.DISCARD:
            self._doom(life, Terminal.FAILED if broken else Terminal.DISCARDED, "too old")
        else:
            life.phase = "open"
            if verdict is Verdict.PATCH:
                life.anchor = life.judged = self.version
        return ev.Judged(item, verdict, "too old", failed=broken)

    def _doom(self, life: Life, terminal: Terminal, reason: str) -> None:
        life.phase, life.end = "doomed", (terminal, reason, life.stage)
        life.waiting.clear()

    def _stage(self, position: int) -> Stage:
        rng, resources = self.rng, tuple(self.limits.slots)
        few = rng.sample(resources, rng.randint(1, min(2, len(resources))))
        price = rng.choice((0, 1, 1, 4))
        samples = tuple(
            Sample(int, rng.choice(few), cost=rng.randint(min(price, 1), price)) for _ in range(rng.randint(0, 6))
        )
        commits = position == 3 or rng.random() < 0.1
        return Stage(STAGES[position], samples, then=rng.choice((0, 0, 3, 6)), commits=commits)

    # -- what may happen --------------------------------------------------------------------------------------------

    def running(self) -> list[tuple[Life, int]]:
        return [(life, index) for life in self.lives.values() for index in sorted(life.running)]

    def sample_ends(self, pick: int, *, failed: bool) -> None:
        life, index = self.running()[pick % len(self.running())]
        cost = life.stage.samples[index].cost
        spent = cost if self.rng.random() < 0.7 else self.rng.randint(0, cost)
        self.spent += spent
        life.running.remove(index)
        if failed:
            life.failed = True
            life.waiting.clear()
            self.feed(ev.SampleFailed(life.number, index, spent))
        else:
            self.feed(ev.SampleFinished(life.number, index, spent))

    def answer_late(self, pick: int) -> None:
        self.feed(self._answer(self.pending.pop(pick % len(self.pending))))

    def happens(self, what: str, pick: int, size: int) -> None:
        """Let one thing happen, if it can."""
        match what:
            case "sample finishes" | "sample fails" if self.running():
                self.sample_ends(pick, failed=what == "sample fails")
            case "late answer" if self.pending:
                self.answer_late(pick)
            case "pool grows":
                self.version += 1 + size % 2
                self.feed(ev.PoolUpdated(self.version))
            case "slots change":
                resource = tuple(self.slots)[pick % len(self.slots)]
                self.slots[resource] = size
                self.feed(ev.SlotsChanged(resource, size))
            case "stage slots change" if self.stage_caps:
                stage = tuple(self.stage_caps)[pick % len(self.stage_caps)]
                low, high = self.limits.stage_slots[stage]
                self.stage_caps[stage] = sorted((low, size, high))[1]
                self.feed(ev.StageSlotsChanged(stage, size))
            case "offer cost changes":
                self.offer_cost = pick % 13
                self.feed(ev.OfferCostChanged(self.offer_cost))
            case "stop" if pick < 10:
                self.stop(cancel=size > 2)
            case "the impossible":
                self.illegal(pick)

    def stop(self, *, cancel: bool) -> None:
        self.stopping = True
        self.reason = f"stop {self.rng.random()}"
        if cancel and not self.cancelled:
            self.cancelled = True
            for life in self.lives.values():
                if life.phase in {"open", "judging"}:
                    self.cancel_due.extend((life.number, index) for index in life.running)
                    self._doom(life, Terminal.CANCELLED, self.reason)
        self.feed(ev.StopRequested(self.reason, cancel=cancel))
        assert self.scheduler.stop_reason == self.reason

    def illegal(self, pick: int) -> None:
        """Tell the Scheduler what cannot have happened: it refuses, tells the story, and nothing has changed."""
        number = self.rng.choice((*self.lives, self.offered + 1, 0))
        life = self.lives.get(number)
        phase, stage = life.phase if life else "", self._stage(0)
        running = life.running if life else set()
        candidates: list[tuple[bool, ev.Event]] = [
            (number != self.offering, ev.ItemOffered(number, stage)),
            (number != self.offering, ev.NothingOffered(number)),
            (phase != "deciding", ev.StageReady(number, stage)),
            (phase != "deciding", ev.ItemDecided(number, Terminal.REJECTED)),
            (phase != "judging" and not self.cancelled, ev.Judged(number, Verdict.ACCEPT)),
            (phase != "ending", ev.ItemRecorded(number)),
            (0 not in running, ev.SampleFinished(number, 0)),
            (1 not in running, ev.SampleFailed(number, 1)),
            (True, ev.PoolUpdated(self.version - pick % 2)),
        ]
        events = [event for illegal, event in candidates if illegal]
        event = events[pick % len(events)]
        kept = self.scheduler.items.get(number)
        story = tuple(kept.story) if kept else ()
        with pytest.raises(InvalidTransition, match="cannot") as refused:
            self.scheduler.handle(event)
        if not isinstance(event, ev.ItemOffered | ev.NothingOffered | ev.PoolUpdated):
            assert (refused.value.item, refused.value.story) == (number, story)
            assert all(move in str(refused.value) for move in story)
        assert kept is None or tuple(kept.story) == story
        self._check_books()

    def drain(self) -> None:
        """Let everything end that is under way: nothing is left, and every item had its one end."""
        self.draining = True
        for resource in tuple(self.slots):
            self.slots[resource] += 1
            self.feed(ev.SlotsChanged(resource, self.slots[resource]))
        for stage in self.stage_caps:
            self.stage_caps[stage] = self.limits.stage_slots[stage][1]
            self.feed(ev.StageSlotsChanged(stage, 99))
        self.stop(cancel=False)
        while self.pending or self.running():
            if self.pending:
                self.answer_late(0)
            else:
                self.sample_ends(self.rng.randrange(99), failed=False)
        assert self.scheduler.done
        assert not self.scheduler.items
        assert self.scheduler.ledger.reserved == 0
        assert all((life.phase, life.terminals) == ("over", 1) for life in self.all_lives)


#: What happens, and how often beside the others.
WEIGHTS = {"sample finishes": 12, "sample fails": 1, "late answer": 6, "pool grows": 3, "slots change": 1}
WEIGHTS |= {"stage slots change": 1, "offer cost changes": 1, "stop": 1, "the impossible": 1}
#: No shrinking: a smaller seed is another world, not a simpler one.
LENIENT = settings(deadline=None, database=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck))
NUMBERS, SIZES, SEEDS = (st.integers(0, most) for most in (99, 6, 2**32))


class Laws(RuleBasedStateMachine):
    """Hypothesis plays the clock, the host and the user."""

    @initialize(seed=SEEDS)
    def begin(self, seed: int) -> None:
        self.world = World(seed)

    @rule(picks=st.lists(NUMBERS, min_size=1, max_size=8))
    def samples_finish(self, picks: list[int]) -> None:
        for pick in picks:
            self.world.happens("sample finishes", pick, 0)

    @rule(what=st.sampled_from(tuple(WEIGHTS)), pick=NUMBERS, size=SIZES)
    def something_happens(self, what: str, pick: int, size: int) -> None:
        self.world.happens(what, pick, size)

    def teardown(self) -> None:
        if hasattr(self, "world") and not self.world.broken:
            self.world.drain()


TestLaws = Laws.TestCase
TestLaws.settings = settings(LENIENT, max_examples=400, stateful_step_count=30)


@settings(LENIENT, max_examples=1300)
@given(seed=SEEDS, length=st.integers(1, 150))
def test_laws_hold_on_long_random_walks(seed: int, length: int) -> None:
    world, rng = World(seed), random.Random(seed)
    calm = {name: weight * rng.choice((0, 1, 1, 5)) for name, weight in WEIGHTS.items()} | {"sample finishes": 12}
    for what in rng.choices(tuple(calm), tuple(calm.values()), k=length):
        world.happens(what, rng.randrange(100), rng.randint(0, 6))
    world.drain()
