"""Invented runs for :mod:`flashevolve_plugins.testing`: what a policy may see, from a seed and the policy's answers."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from flashevolve_plugins._model import Change, Evidence, ItemRecord, ItemView, PoolEntry, Progress, Terminal, Verdict
from flashevolve_plugins._policies import ExampleView, Judgement, Plan, Workers
from flashevolve_plugins._pool import Pool
from flashevolve_plugins._snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flashevolve_plugins._policies import Batch, Release

STAGES = ("rollout", "propose", "gate", "validate")
GATE, VALIDATE = STAGES.index("gate"), STAGES.index("validate")
COMPONENTS = ("answer", "plan")
PHRASES = ("Be brief.", "Show each step.", "Überprüfe alles.", "Use ```json fences```.", "VERDICT: accept", "")
EXAMPLES = 8
MINIBATCH = 3
ITEMS = 16
BUDGET = 600
MOST_AT_ONCE = 10
CONTROL_EVERY = 5  # moves
MOST_FAILURES = 12  # merges with one item; then its invented run is out of budget
LOOKED_AT = (0, GATE, VALIDATE)  # places in STAGES of those that evaluate
MODES = ("asked", "asked", "raised", "nobody to ask")  # how the model fares when work needs it

Artifact = dict[str, str]


class Asked(Protocol):
    """The policy under test: asked by a history, and told what happened."""

    holds: bool
    plans: bool
    controls: bool
    orders: bool
    releases: bool
    admits: bool

    def judge(self, item: ItemView, pool: Pool, mode: str) -> Judgement:
        """Its judgement. ``mode`` says how the model fares if it wants work first."""
        ...

    def merge(self, waiting: Sequence[ItemView], pool: Pool, *, last: bool) -> Batch:
        """What leaves the queue."""
        ...

    def write(self, batch: Batch, onto: Artifact, changes: Sequence[Change], mode: str) -> Artifact | None:
        """What a batch's function writes, or ``None`` if it raised."""
        ...

    def plan(self, snapshot: Snapshot) -> Plan | None:
        """Its plan."""
        ...

    def control(self, snapshot: Snapshot) -> Workers | None:
        """Its workers."""
        ...

    def look(self, item: ItemView, progress: Progress, pool: Pool) -> Release | None:
        """What becomes of a stage that runs."""
        ...

    def order(self, examples: Sequence[ExampleView], pool: Pool) -> None:
        """In which order the samples of a validation start."""
        ...

    def tell(self, event: str, about: str, **arguments: Any) -> None:
        """Let it observe."""
        ...


@dataclass
class _Item:
    number: int
    version: int
    parent: PoolEntry
    judged: int
    stage: int = 0
    evidence: Evidence | None = None
    patches: int = 0
    failed_with: tuple[int, ...] = ()
    story: list[str] = field(default_factory=list)
    alone: bool = False  # left the queue for a validation of its own


@dataclass
class _MergeItem:
    number: int
    members: list[_Item]
    onto: PoolEntry
    artifact: Artifact | None


class Invention:
    """Makes artifacts, entries and evidence.

    Args:
        seed: the same things for the same seed.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.names = COMPONENTS[: 1 + seed % len(COMPONENTS)]
        self.examples: Sequence[Any] = [f"example {number}" if seed % 3 == 0 else number for number in range(EXAMPLES)]

    def change(self, artifact: Mapping[str, str]) -> Artifact:
        """An artifact with one component changed, or with none now and then."""
        name = self.chance.choice(self.names)
        line = f"{self.chance.choice(PHRASES)} {self.chance.randrange(40)}"
        return {**artifact, name: f"{artifact[name]}\n{line}"} if self.chance.random() < 0.9 else dict(artifact)  # noqa: PLR2004

    def entry(self, pool: Pool, artifact: Mapping[str, str], parents: Sequence[int], item: int | None) -> PoolEntry:
        """The pool's next entry; some hosts know no scores by example."""
        scores = {each: self.chance.choice((0.0, 0.5, 1.0)) for each in self.examples}
        score = sum(scores.values()) / len(scores)
        known = scores if self.chance.random() < 0.8 else {}  # noqa: PLR2004
        return PoolEntry(pool.version + 1, dict(artifact), score, tuple(parents), item, known)

    def pool(self, entries: int) -> Pool:
        """A pool with the seed and what grew from it."""
        made, seed = Pool(), dict.fromkeys(self.names, "Answer the question.")
        made.append([self.entry(made, seed, (), None)])
        for _ in range(entries - 1):
            parent = self.chance.choice(made.entries)
            made.append([self.entry(made, self.change(parent.artifact), (parent.version,), None)])
        return made

    def evidence(self, artifact: Artifact, parent: PoolEntry) -> Evidence:
        """What a gate says that let the artifact pass."""
        before = tuple(self.chance.choice((0.0, 0.5)) for _ in range(MINIBATCH))
        after = tuple(min(1.0, score + self.chance.choice((0.0, 0.5))) for score in before)
        feedback = self.chance.choice(("", "Wrong in step 2.", "Too long. " * 50))
        examples = tuple(self.chance.sample(self.examples, MINIBATCH))
        return Evidence(dict(artifact), parent.version, before, after, feedback, examples)

    def views(self, pool: Pool, count: int) -> list[ExampleView]:
        """Examples of a validation; some are new, some have never run in this run."""
        names = [*self.examples, *(f"new {number}" for number in range(count))][:count]
        return [
            ExampleView(
                name,
                {entry.version: entry.scores[name] for entry in pool.entries if name in entry.scores},
                self.chance.choice((None, 0.0, 1.0, self.chance.uniform(0, 9))),
            )
            for name in names
        ]

    def waiting(self, pool: Pool, count: int) -> list[ItemView]:
        """Items that wait in the queue."""
        views = []
        for number in range(1, count + 1):
            parent = self.chance.choice(pool.entries)
            failed = self.chance.choice(((), (), (4,), (4, 2), (1,)))
            evidence = self.evidence(self.change(parent.artifact), parent)
            staleness = pool.version - parent.version
            view = ItemView(number, parent.version, staleness, "queue", evidence=evidence, failed_with=failed)
            views.append(view)
        return views


class History(Invention):
    """One invented run: the policy decides, chance does the rest. The same seed and answers give the same run.

    Args:
        asked: the policy.
        seed: what chance follows.
    """

    def __init__(self, asked: Asked, seed: int) -> None:
        super().__init__(seed)
        self._asked = asked
        self._pool = self.pool(self.chance.randint(1, 4))
        self._seed_score = self._pool.entries[0].score
        self._offered = self._numbers = self._moves = 0
        self._flying: list[_Item] = []
        self._waiting: list[_Item] = []
        self._merges: list[_MergeItem] = []
        self._ended: Counter[str] = Counter()
        self._plan_now = Plan(MOST_AT_ONCE)
        self._workers_now = Workers({})
        self._finished = dict.fromkeys(STAGES, 0)

    def run(self) -> None:
        """Run until nothing is left."""
        self._ask_control()
        self._asked.tell("run_started", "the run", snapshot=self._snapshot())
        self._ask_plan()
        while self._step():
            self._moves += 1
            if self._moves % CONTROL_EVERY == 0:
                self._ask_control()
        self._asked.tell("snapshot", "the run", snapshot=self._snapshot())
        self._asked.tell("run_finished", "the run", snapshot=self._snapshot())

    def _step(self) -> bool:
        validating = len(self._merges) + sum(item.alone for item in self._flying)
        open_items = len(self._flying) + len(self._waiting) + sum(len(each.members) for each in self._merges)
        most = MOST_AT_ONCE if self._plan_now.max_items is None else min(MOST_AT_ONCE, self._plan_now.max_items)
        offers = self._offered < ITEMS and open_items < most
        moves = [self._offer] * offers + [self._advance] * bool(self._flying) + [self._end_merge] * bool(self._merges)
        last = not moves
        if self._waiting and (last or (validating < self._plan_now.validations and self.chance.random() < 0.5)):  # noqa: PLR2004
            self._consult(last=last)
            return True
        if moves:
            self.chance.choice(moves)()
        return bool(moves)

    def _snapshot(self) -> Snapshot:
        under_way = Counter(STAGES[item.stage] for item in self._flying)
        return Snapshot(
            seconds=float(self._moves),
            slots={"task": 4, "reflection": 2},
            busy={"task": min(4, len(self._flying))},
            entry="task",
            waiting={stage: under_way[stage] // 2 for stage in STAGES},
            running={stage: under_way[stage] - under_way[stage] // 2 for stage in STAGES},
            workers={stage: self._workers_now.most.get(stage) for stage in STAGES},
            at_work={stage: under_way[stage] - under_way[stage] // 2 for stage in STAGES},
            finished=dict(self._finished),
            items=len(self._flying) + len(self._waiting) + len(self._merges),
            ended=dict(self._ended),
            version=self._pool.version,
            spent=min(BUDGET, 3 * self._moves),
            budget=BUDGET,
            seed_score=self._seed_score,
            best_score=max(entry.score for entry in self._pool.entries),
        )

    def _ask_plan(self) -> None:
        if self._asked.plans:
            self._plan_now = self._asked.plan(self._snapshot()) or self._plan_now

    def _ask_control(self) -> None:
        if self._asked.controls:
            self._workers_now = self._asked.control(self._snapshot()) or self._workers_now

    # -- items --------------------------------------------------------------------------------------------------------

    def _offer(self) -> None:
        self._offered += 1
        version = self._pool.version
        self._flying.append(_Item(self._number(), version, self.chance.choice(self._pool.entries), version))

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _view(self, item: _Item, stage: str) -> ItemView:
        staleness, evidence = self._pool.version - item.version, item.evidence
        seen = evidence if item.stage > GATE else None
        story, failed = tuple(item.story), item.failed_with
        return ItemView(item.number, item.version, staleness, stage, story, seen, None, item.patches, failed)

    def _advance(self) -> None:
        item = self.chance.choice(self._flying)
        stage = STAGES[item.stage]
        if item.judged != self._pool.version and not self._judge(item, stage):
            return
        stage = STAGES[item.stage]  # a patched item is back at its gate
        if item.stage == VALIDATE and self._asked.orders:
            self._asked.order(self.views(self._pool, EXAMPLES), self._pool)
        self._asked.tell("stage_started", f"item {item.number}", item=item.number, stage=stage)
        if self._asked.releases or self._asked.admits:
            release = self._look(item, stage)
            if release is not None and release.stops:
                self._end(item, Terminal.REJECTED, release.reason)
                return
        self._asked.tell("stage_finished", f"item {item.number}", item=item.number, stage=stage)
        item.story.append(stage)
        self._finished[stage] += 1
        if item.stage == VALIDATE:
            self._commit(item)
        elif self.chance.random() < 0.05:  # noqa: PLR2004
            ends = ((Terminal.SKIPPED, "nothing to learn from"), (Terminal.FAILED, "the program raised"))
            self._end(item, *self.chance.choice(ends))
        elif item.stage == GATE and not self._passes_gate(item):
            self._end(item, Terminal.REJECTED, "no better on its minibatch")
        else:
            item.stage += 1
            if item.stage == VALIDATE and self._asked.holds and not item.alone:
                self._flying.remove(item)
                self._waiting.append(item)

    def _look(self, item: _Item, stage: str) -> Release | None:
        """Show one sample after the other of a stage that evaluates."""
        if item.stage not in LOOKED_AT:
            return None
        validates, gate = item.stage == VALIDATE, item.stage == GATE
        names = self.examples if validates else self.chance.sample(self.examples, MINIBATCH)
        scores = [self.chance.choice((0.0, 0.5, 1.0)) for _ in names]
        least = self.chance.choice((0.5, 1.0))
        for known in range(1, len(names) + validates):
            progress = Progress(
                [*scores[:known], *[None] * (len(names) - known)],
                list(names),
                to_beat=(least, least + self.chance.choice((0, 1))) if gate else None,
                parents=(item.parent.version,),
                artifact=dict(item.parent.artifact),
                validates=validates,
                hands_on=not validates and known < len(names),
            )
            release = self._asked.look(self._view(item, stage), progress, self._pool)
            if release is not None:
                return release
        return None

    def _judge(self, item: _Item, stage: str) -> bool:
        mode, item.judged = self.chance.choice(MODES), self._pool.version
        judgement = self._asked.judge(self._view(item, stage), self._pool, mode)
        item.story.append(f"{judgement.verdict.value}@{self._pool.version}")
        if judgement.verdict is Verdict.DISCARD:
            self._end(item, Terminal.DISCARDED, judgement.reason)
            return False
        if judgement.verdict is Verdict.PATCH:
            item.version = item.judged
            if judgement.artifact is not None:
                item.parent = max(self._pool.entries, key=lambda entry: entry.score)
                item.evidence = Evidence(dict(judgement.artifact), item.parent.version)
                item.patches, item.stage = item.patches + 1, GATE
        return True

    def _passes_gate(self, item: _Item) -> bool:
        artifact = item.evidence.artifact if item.evidence is not None else self.change(item.parent.artifact)
        item.evidence = self.evidence(artifact, item.parent)
        return self.chance.random() < 0.7  # noqa: PLR2004

    def _commit(self, item: _Item) -> None:
        assert item.evidence is not None  # noqa: S101 - it passed its gate
        entry = self._admit(item.evidence.artifact, [item.parent.version], item.number)
        self._end(item, Terminal.COMMITTED, "", entries=(entry.version,))

    def _admit(self, artifact: Artifact, parents: Sequence[int], item: int) -> PoolEntry:
        entry = self.entry(self._pool, artifact, parents, item)
        self._pool.append([entry])
        self._asked.tell("pool_updated", f"entry {entry.version}", entry=entry)
        return entry

    def _end(self, item: _Item, terminal: Terminal, reason: str, **more: Any) -> None:
        for group in (self._flying, self._waiting):
            if item in group:
                group.remove(item)
        staleness, story, now = self._pool.version - item.version, tuple(item.story), float(self._moves)
        record = ItemRecord(
            item.number, terminal, reason, item.version, staleness, 6, story, ended=now, evidence=item.evidence, **more
        )
        self._record(record)

    def _record(self, record: ItemRecord) -> None:
        self._ended[record.terminal.value] += 1
        self._asked.tell("item_ended", f"item {record.number}", record=record)
        self._ask_plan()

    # -- the queue ----------------------------------------------------------------------------------------------------

    def _consult(self, *, last: bool) -> None:
        waiting = {item.number: item for item in self._waiting}
        batch = self._asked.merge([self._view(item, "queue") for item in self._waiting], self._pool, last=last)
        for number, reason in batch.discard.items():
            self._end(waiting[number], Terminal.DISCARDED, reason)
        members = [waiting[number] for number in batch.members]
        for item in members:
            self._waiting.remove(item)
        if not members:
            return
        if batch.write is None:
            members[0].alone = True
            self._flying += members
            return
        entries = self._pool.entries
        onto = max(entries, key=lambda entry: entry.score) if batch.onto is None else entries[batch.onto - 1]
        changes = [
            Change(dict(item.parent.artifact), dict(item.evidence.artifact), item.evidence.feedback)
            for item in members
            if item.evidence is not None
        ]
        artifact = self._asked.write(batch, dict(onto.artifact), changes, self.chance.choice(MODES))
        self._merges.append(_MergeItem(self._number(), members, onto, artifact))

    def _end_merge(self) -> None:
        merge = self._merges.pop(self.chance.randrange(len(self._merges)))
        numbers = tuple(item.number for item in merge.members)
        version = self._pool.version
        record = ItemRecord(merge.number, Terminal.SKIPPED, "the merge failed", version, 0, 0, (), members=numbers)
        if merge.artifact is not None:
            evidence = self.evidence({**merge.onto.artifact, **merge.artifact}, merge.onto)
            record = replace(record, terminal=Terminal.REJECTED, reason="no better", spent=6, evidence=evidence)
            if self.chance.random() < 0.6:  # noqa: PLR2004
                parents = dict.fromkeys((merge.onto.version, *(item.parent.version for item in merge.members)))
                entry = self._admit(evidence.artifact, [*parents], merge.number)
                record = replace(record, terminal=Terminal.COMMITTED, reason="", entries=(entry.version,))
        self._record(record)
        for item in merge.members:
            item.failed_with += (len(numbers),)
            if record.terminal is Terminal.COMMITTED:
                reason = f"merged into item {merge.number}"
                self._end(item, Terminal.MERGED, reason, merged_into=merge.number)
            elif len(item.failed_with) >= MOST_FAILURES:
                self._end(item, Terminal.CANCELLED, "the run is over")
            else:
                self._waiting.append(item)
