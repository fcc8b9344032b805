"""The laws of the Scheduler, on every sequence of events that a driver, a host and a user can invent.

``World`` is a driver without threads or clock. From events and instructions alone it keeps its own account of every
item, slot and metric call, and holds each instruction against it. What happens next is up to hypothesis.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from scheduler_account import STAGES, Account, Life

from flashevolve_plugins import InvalidTransition
from flashevolve_plugins import _events as ev
from flashevolve_plugins._item import Kind
from flashevolve_plugins._model import Limits, Sample, Stage, Terminal, Verdict
from flashevolve_plugins._scheduler import LEFT_OVER, Scheduler

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The stages of a proposal; where items wait in the merge queue, they do so before their validation.
PATH = ("rollout", "propose", "gate", "validate", "commit")
RESOURCES = ("task", "reflection", "local")
OWN_ENDS = (Terminal.COMMITTED, Terminal.REJECTED, Terminal.SKIPPED, Terminal.FAILED)


class World(Account):
    """The model driver. Everything it does follows from ``seed`` and from the numbers its methods are given."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        resources = RESOURCES[: rng.randint(1, 3)]
        limits = Limits(
            slots={name: rng.choice((0, 1, 1, 2, 3, 5)) for name in resources},
            stages=STAGES,
            entry=rng.choice(resources),
            budget=rng.choice((None, rng.randint(0, 20), rng.randint(0, 60), rng.randint(0, 200))),
            offer_cost=rng.choice((0, rng.randint(0, 12))),
            max_items=rng.choice((None, None, rng.randint(1, 4))),
            holds=rng.random() < 0.5,
            validations=rng.choice((1, 1, 2, 3)),
        )
        self.late: dict[type, float] = {kind: rng.choice((0.0, 0.0, 0.5)) for kind in (ev.JudgeStale, ev.EndItem)}
        self.late |= {kind: rng.choice((0.0, 0.0, 0.0, 0.3)) for kind in (ev.FinishStage, ev.OfferItem)}
        self.late[ev.ConsultQueue] = rng.choice((0.0, 0.0, 0.3))
        self.slow_verdicts = rng.choice((0.0, 0.0, 0.5))
        self.early_ends = rng.choice((0.25, 0.1))
        self.last_offer = rng.choice((0.02, 0.02, 0.2))
        self.later = rng.choice((0.0, 0.0, 0.3))
        super().__init__(limits, rng.randint(0, 3), rng.choice((0, 0, rng.randint(0, limits.budget or 0))))
        self.draining = False
        self.pending: list[ev.Instruction] = []
        self.broken = False
        self.scheduler = Scheduler(self.limits, version=self.version, spent=self.spent)
        self._go(self.scheduler.begin())
        if rng.random() < 0.6:
            self.feed(self._workers())

    # -- events in, instructions out --------------------------------------------------------------------------------

    def feed(self, event: ev.Event) -> None:
        """Tell the Scheduler, check what it asks for, and answer what is answered at once."""
        self.broken = True
        self._go(self.scheduler.handle(event))
        self.broken = False

    def _go(self, instructions: list[ev.Instruction]) -> None:
        todo = deque(instructions)
        self.observe(instructions)
        while todo:
            instruction = todo.popleft()
            if isinstance(instruction, ev.StartSample | ev.CancelSample):
                continue
            if self.rng.random() < self.late[type(instruction)] and not self.draining:
                self.pending.append(instruction)
                continue
            for event in self._answer(instruction):
                more = self.scheduler.handle(event)
                todo.extend(more)
                self.observe(more)

    # -- answers ----------------------------------------------------------------------------------------------------

    def _answer(self, instruction: ev.Instruction) -> Iterator[ev.Event]:
        match instruction:
            case ev.OfferItem(item):
                yield self._offer(item)
            case ev.FinishStage(item) if (job := self.lives[item]).kind is Kind.JOB:
                job.phase, job.end = "doomed", (Terminal.SKIPPED, "", None)
                yield ev.ItemDecided(item, Terminal.SKIPPED)
                client = self.lives.get(job.client)
                if client is not None and client.phase == "judging":
                    yield self._judge(client, job.client)
            case ev.FinishStage(item):
                if self.rng.random() < 0.1:
                    yield self._bring(self.lives[item])
                yield self._decide(self.lives[item])
            case ev.JudgeStale(item):
                yield self._judge(self.lives.get(item), item)
            case ev.ConsultQueue():
                yield from self._consult(instruction)
            case ev.EndItem(item, terminal):
                failed = terminal is Terminal.COMMITTED and self.rng.random() < 0.1
                self.recorded(item, failed=failed)
                yield ev.ItemRecorded(item, failed=failed)

    def _bring(self, life: Life) -> ev.Event:
        """The item brings an entry before it ends."""
        life.brought = self.version - life.anchor
        self.version += 1
        self.queue_changed = True
        return ev.PoolUpdated(self.version, item=life.number)

    def _offer(self, item: int) -> ev.Event:
        self.offering = None
        if self.rng.random() < self.last_offer:
            self.exhausted = True
            return ev.NothingOffered(item)
        if self.rng.random() < self.later:
            self.nothing_yet, self.exhausted = bool(self.lives), not self.lives
            return ev.NothingYet(item)
        holds = self.limits.holds and self.rng.random() < 0.05
        first = "rollout" if self.rng.random() < 0.9 else "propose"
        life = Life(item, self.version, self.version, self._held_stage() if holds else self._stage(first))
        self.begin_in = life.stage.name
        self.enter(life)
        return ev.ItemOffered(item, life.stage)

    def _decide(self, life: Life) -> ev.Event:
        name = life.stage.name
        position = PATH.index({"queue": "gate", "merge": "gate"}.get(name, name)) + 1
        over = self.rng.random() < self.early_ends or position == len(PATH) or self.draining
        if life.stage.commits or over:
            terminal = Terminal.COMMITTED if life.stage.commits else self.rng.choice(OWN_ENDS)
            life.phase, life.end = "doomed", (terminal, terminal.value, None)
            return ev.ItemDecided(life.number, terminal, terminal.value)
        following = PATH[self.rng.choice((position, position, position, self.rng.randrange(len(PATH))))]
        waits = self.limits.holds and life.kind is Kind.PROPOSAL and self.rng.random() < 0.9
        if waits and (name == "gate" or (following == "validate" and name != "queue") or self.rng.random() < 0.1):
            stage = self._held_stage()
        else:
            stage = self._stage(following)
        if self.rng.random() < 0.1:
            life.anchor = self.rng.randint(life.anchor, self.version)
            stage = replace(stage, version=life.anchor)
        self.begin(life, stage)
        return ev.StageReady(life.number, stage)

    def _judge(self, life: Life | None, item: int) -> ev.Event:
        verdict = self.rng.choice((Verdict.ACCEPT, Verdict.ACCEPT, Verdict.PATCH, Verdict.DISCARD))
        broken = verdict is Verdict.DISCARD and self.rng.random() < 0.3
        if life is None or life.phase != "judging":
            assert self.cancelled, "only a cancel takes an item from its judge"
            if verdict is Verdict.PATCH:
                return ev.Patched(item, self._stage("gate"))
        elif self.rng.random() < self.slow_verdicts:
            return self._start_job(item)
        elif verdict is Verdict.DISCARD:
            life.doom(Terminal.FAILED if broken else Terminal.DISCARDED, "too old")
        elif verdict is Verdict.PATCH and not (life.admitted or life.running) and self.rng.random() < 0.5:
            return self._patch(life)
        else:
            life.phase = "open"
            if verdict is Verdict.PATCH:
                life.anchor = life.judged
        return ev.Judged(item, verdict, "too old", failed=broken)

    def _start_job(self, item: int) -> ev.Event:
        resource = self.rng.choice(tuple(self.limits.slots))
        job = Life(self._number(), self.version, self.version, Stage("judge", (Sample(int, resource),)), Kind.JOB)
        job.client = item
        self.enter(job)
        return ev.JobStarted(job.number, job.stage)

    def _patch(self, life: Life) -> ev.Event:
        life.anchor = life.judged
        waits = self.limits.holds and life.kind is Kind.PROPOSAL and self.rng.random() < 0.2
        self.begin(life, self._held_stage() if waits else self._stage(self.rng.choice(PATH)))
        return ev.Patched(life.number, life.stage)

    def _consult(self, asked: ev.ConsultQueue) -> Iterator[ev.Event]:
        rng, dropped = self.rng, self.rng.choice((0.0, 0.0, 0.3))
        last = asked.last
        for number in tuple(self.queue):
            if rng.random() < dropped and number in self.queue:
                last = False
                self.drop(self.lives[number], "not worth it")
                yield ev.Dropped(number, "not worth it")
        self.consulting, waiting = None, [number for number in asked.items if number in self.queue]
        answer = rng.choice(("release", "merge", "merge", "wait")) if waiting else "wait"
        if answer == "release":
            number = rng.choice(waiting)
            self.take([number], number)
            self.lives[number].phase = "open"
            yield ev.Released(number)
        elif answer == "merge":
            members = tuple(rng.sample(waiting, rng.randint(1, len(waiting))))
            number = self._number()
            self.take(members, number)
            for each in members:
                self.lives[each].phase = "taken"
                self.lives[each].merges.append(number)
            self.enter(Life(number, self.version, self.version, self._stage("merge"), Kind.MERGE, members))
            yield ev.MergeStarted(number, members, self.lives[number].stage)
        else:
            if last:
                for number in tuple(self.queue):
                    self.drop(self.lives[number], LEFT_OVER)
            yield ev.QueueWaits()

    def _number(self) -> int:
        number = self.scheduler.next_number()
        assert number == self.numbers + 1
        self.numbers = number
        return number

    def _held_stage(self) -> Stage:
        then = self.rng.choice((0, 3, 6))
        return Stage("queue", (), then=then, holds=True, shared=self.rng.choice((0, then)))

    def _stage(self, name: str) -> Stage:
        rng, resources = self.rng, tuple(self.limits.slots)
        few = rng.sample(resources, rng.randint(1, min(2, len(resources))))
        price = rng.choice((0, 1, 1, 4))
        samples = tuple(
            Sample(int, rng.choice(few), cost=rng.randint(min(price, 1), price)) for _ in range(rng.randint(0, 6))
        )
        commits = name == "validate" or rng.random() < 0.1
        then = rng.choice((0, 0, 3, 6))
        shared = rng.choice((0, then)) if self.limits.holds else 0
        judged, settles = rng.random() < 0.8, rng.random() < 0.2
        return Stage(name, samples, then=then, commits=commits, settles=settles, shared=shared, judged=judged)

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
        for event in self._answer(self.pending.pop(pick % len(self.pending))):
            self.feed(event)

    def happens(self, what: str, pick: int, size: int) -> None:
        """Let one thing happen, if it can."""
        match what:
            case "sample finishes" | "sample fails" if self.running():
                self.sample_ends(pick, failed=what == "sample fails")
            case "late answer" if self.pending:
                self.answer_late(pick)
            case "pool grows":
                self.grow(1 + size % 2, anchors=pick % 5 == 0)
            case "plan changes":
                self.max_items, self.validations = (size or None), 1 + pick % 3
                self.queue_changed = True
                self.feed(ev.PlanChanged(self.max_items, self.validations))
            case "slots change":
                resource = tuple(self.slots)[pick % len(self.slots)]
                self.slots[resource] = size
                self.feed(ev.SlotsChanged(resource, size))
            case "workers change":
                self.feed(self._workers())
            case "offer cost changes":
                self.offer_cost = pick % 13
                self.feed(ev.OfferCostChanged(self.offer_cost))
            case "stop" if pick < 10:
                self.stop(cancel=size > 2, settle=size > 3)
            case "the impossible":
                self.illegal(pick)

    def _workers(self) -> ev.Event:
        """Other stages have a cap now, and other ones."""
        self.caps = {name: self.rng.randint(1, 3) for name in STAGES if self.rng.random() < 0.4}
        return ev.WorkersChanged(dict(self.caps))

    def grow(self, entries: int, *, anchors: bool) -> None:
        self.version += entries
        self.queue_changed = True
        for life in self.lives.values() if anchors else ():
            life.anchor = life.judged = self.version
        self.feed(ev.PoolUpdated(self.version, anchors))

    def stop(self, *, cancel: bool, settle: bool = False) -> None:
        self.stopping = True
        self.reason = f"stop {self.rng.random()}"
        if cancel and (not self.cancelled or (self.settling and not settle)):
            self.cancel(settle=settle)
        self.feed(ev.StopRequested(self.reason, cancel=cancel, settle=settle))
        assert self.scheduler.stop_reason == self.reason

    def illegal(self, pick: int) -> None:
        """Tell the Scheduler what cannot have happened: it refuses, tells the story, and nothing has changed."""
        number = self.rng.choice((*self.lives, self.numbers + 1, 0))
        life = self.lives.get(number)
        phase, stage = life.phase if life else "", self._stage("rollout")
        running = life.running if life else set()
        candidates: list[tuple[bool, ev.Event]] = [
            (number != self.offering, ev.ItemOffered(number, stage)),
            (number != self.offering, ev.NothingOffered(number)),
            (number != self.offering, ev.NothingYet(number)),
            (phase != "deciding", ev.StageReady(number, stage)),
            (phase != "deciding", ev.ItemDecided(number, Terminal.REJECTED)),
            (phase != "judging" and not self.cancelled, ev.Judged(number, Verdict.ACCEPT)),
            (phase != "judging" and not self.cancelled, ev.Patched(number, stage)),
            (phase != "ending", ev.ItemRecorded(number)),
            (0 not in running, ev.SampleFinished(number, 0)),
            (1 not in running, ev.SampleFailed(number, 1)),
            (phase != "held", ev.Released(number)),
            (phase != "held", ev.Dropped(number, "not there")),
            (phase != "held", ev.MergeStarted(self.numbers + 1, (*self.queue, number), stage)),
            (self.consulting is None, ev.QueueWaits()),
            (True, ev.PoolUpdated(self.version - pick % 2)),
        ]
        events = [event for illegal, event in candidates if illegal]
        event = events[pick % len(events)]
        kept = self.scheduler.items.get(number)
        story = tuple(kept.story) if kept else ()
        with pytest.raises(InvalidTransition, match="cannot") as refused:
            self.scheduler.handle(event)
        if not isinstance(event, ev.ItemOffered | ev.NothingOffered | ev.NothingYet | ev.QueueWaits | ev.PoolUpdated):
            assert (refused.value.item, refused.value.story) == (number, story)
            assert all(move in str(refused.value) for move in story)
        assert kept is None or tuple(kept.story) == story
        self.check_books()

    def drain(self) -> None:
        """Let everything end that is under way, by however few workers: all is done, and every item had its one end."""
        self.draining = True
        for resource in tuple(self.slots):
            self.slots[resource] += 1
            self.feed(ev.SlotsChanged(resource, self.slots[resource]))
        self.stop(cancel=False)
        while self.pending or self.running():
            if self.pending:
                self.answer_late(0)
            else:
                self.sample_ends(self.rng.randrange(99), failed=False)
        self.check_over()


#: What happens, and how often beside the others.
WEIGHTS = {"sample finishes": 12, "sample fails": 1, "late answer": 6, "pool grows": 3, "slots change": 1}
WEIGHTS |= {"workers change": 1, "offer cost changes": 1, "plan changes": 1, "stop": 1, "the impossible": 1}
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
