"""Policies that spend validations on depth: the best of what waits, and the merge queue."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import deque
from dataclasses import replace
from math import isnan
from typing import TYPE_CHECKING, Literal, get_args

from flashevolve_plugins._errors import UnknownNameError, UsageError
from flashevolve_plugins._model import Terminal
from flashevolve_plugins._policies import Batch, Plan
from flashevolve_plugins.hooks.prompts import MalformedAnswerError, added_share, changed_characters, write_merge
from flashevolve_plugins.hooks.specs import hookimpl
from flashevolve_plugins.hooks.staleness import StalenessPolicy, require_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flashevolve_plugins._model import Change, Evidence, ItemRecord, ItemView, PoolEntry
    from flashevolve_plugins._policies import Ask, Judgement
    from flashevolve_plugins._pool import Pool
    from flashevolve_plugins._snapshot import Snapshot

logger = logging.getLogger("flashevolve_plugins")

Onto = Literal["best", "frontier"]

MAX_ITEMS = 16
TRIED = 3  # proposals for one that passes its gate, about
MAX_BATCH = 8
SLOTS_PER_WRITER = 4  # where two lessons or more go together, curations are a fifth of all calls, and some take long
FIRST_BATCH = 4
EXAMPLES_PER_CHANGE = 40  # of a validation, for each change that it should be worth
# The same where a budget pays for few validations and the slots are busy all through one, and the most then that must
# wait. See "Budgets of few validations" in docs/benchmarks.md.
EXAMPLES_WHERE_SCARCE, MAX_LEAST_WHERE_SCARCE = 16, 12
FEW_VALIDATIONS = range(5, 25)  # in a budget; one of fewer ends before so many changes are found
MANY_ROUNDS = 4  # of the slots in a validation; with fewer most of its time is spent on its slowest answers
LEAST_SURVIVAL = 0.3  # of the merged changes; below, merging is worse than going alone
MOST_CHANGED = 60_000  # characters of changes and feedback in a merge's prompt; a single change may have more
UNPAID = "the budget cannot pay for its merge"
SEEN = 6  # merges, the last ones, that say how well changes survive


class QueuePolicy(StalenessPolicy):
    """Lets what passed its gate wait, and decides what is validated.

    Called as every :class:`StalenessPolicy`. Nothing is judged stale: what waits is judged when it is taken.

    Args:
        max_items: proposals in flight at most, those that wait included. Default: 16 where the host validates its
            artifacts, else twice as many as there are slots.
    """

    def __init__(self, max_items: int | None = None) -> None:
        self.max_items = (
            max_items if max_items is None else require_count(type(self).__name__, "max_items", max_items, 1)
        )

    @abstractmethod
    def take(self, waiting: Sequence[ItemView], pool: Pool, *, last: bool) -> Batch:
        """Decide what leaves the queue, when a validation may start.

        Args:
            waiting: the items that wait, oldest first, at least one; each has ``evidence``.
            pool: all admitted artifacts.
            last: whether nothing else is under way or will be offered.
        """

    def judge(self, item: ItemView, pool: Pool) -> Judgement:
        """Accept."""
        del item, pool
        return self.accept()

    @hookimpl
    def flashevolve_merge_batch(self, waiting: Sequence[ItemView], pool: Pool, last: bool) -> Batch:  # noqa: FBT001 - pluggy calls by name
        """Answer the hook with :meth:`take`."""
        return self.take(waiting, pool, last=last)

    @hookimpl
    def flashevolve_plan(self, snapshot: Snapshot) -> Plan:
        """How many proposals in flight; one validation at a time, or as many writers as the slots keep busy."""
        if snapshot.validates:
            return Plan(self.max_items or MAX_ITEMS)
        slots = snapshot.slots.get(snapshot.entry, 1)
        return Plan(self.max_items or 2 * slots, validations=max(1, slots // SLOTS_PER_WRITER))


class BestFirst(QueuePolicy):
    """Validates one proposal at a time: of what waits, the one that gained most, made from what is still the best.

    Where lessons wait, from which nothing is written yet, they go one at a time, the oldest first.

    Args:
        max_items: as for every :class:`QueuePolicy`.
    """

    def take(self, waiting: Sequence[ItemView], pool: Pool, *, last: bool) -> Batch:
        """The largest gain; what was made from another artifact than the best has aged."""
        if _lessons(waiting):
            return Batch((waiting[0].number,))
        best = best_entry(pool.entries)
        old = [each.number for each in waiting if _evidence(each).parent != best.version]
        aged = dict.fromkeys(old, "made from what is no longer the best")
        fresh = [each for each in waiting if each.number not in aged]
        del last
        if not fresh:
            return Batch(discard=aged)
        return Batch((max(fresh, key=_gain).number,), discard=aged)


class Merge(QueuePolicy):
    """The merge queue: what waits is merged onto the current best in one call, and pays for one validation.

    It begins with small merges. One that passes its gate doubles the next, up to ``max_batch``; one that fails halves
    it, and its members are tried again in halves; alone at last, and one that fails alone is discarded. Where too
    little of the changes survives the merging, it goes on as :class:`BestFirst`. Where lessons wait, from which nothing
    is written yet, the oldest go together, and the host writes what they teach in one call.

    Args:
        max_batch: proposals merged at once at most. Default: 8, or as many as must wait for a merge, if that is more.
        max_items: as for every :class:`QueuePolicy`. Default: 16, or three for each of ``least``, if those are more:
            about one in three passes its gate.
        max_characters: length that a component's text may reach by merging, or ``None`` for no limit.
        least: proposals that must wait before they are merged, unless nothing else is under way. Default: one for every
            40 validation examples, up to ``max_batch``: the dearer a validation, the more it should be worth. One for
            every 16, up to 12, where the budget pays for 5 to 24 validations, each of more than four rounds of the
            slots.
        onto: what changes are merged onto: ``"best"``, the artifact with the best mean score, or ``"frontier"``, the
            one that is best on most validation examples.

    Raises:
        UsageError: an option that cannot work.
        UnknownNameError: another ``onto``.
    """

    def __init__(
        self,
        max_batch: int | None = None,
        max_items: int | None = None,
        max_characters: int | None = None,
        onto: Onto = "best",
        least: int | None = None,
    ) -> None:
        super().__init__(max_items)
        self.least = None if least is None else require_count("Merge", "least", least, 1)
        if onto not in get_args(Onto):
            raise UnknownNameError("Merge(onto=...)", onto, get_args(Onto))
        self.onto = onto
        self.max_batch = max_batch if max_batch is None else require_count("Merge", "max_batch", max_batch, 1)
        self.max_characters = (
            None if max_characters is None else require_count("Merge", "max_characters", max_characters, 1)
        )
        self._limit = min(FIRST_BATCH, self.max_batch or MAX_BATCH)
        self._alone = BestFirst(max_items)
        self._taken: dict[int, tuple[Evidence, PoolEntry]] = {}
        self._survival: deque[float] = deque(maxlen=SEEN)
        self._mute = False  # the host has no reflection model
        self._unwritten = False  # the last merge has no text: the model failed, or its answer could not be read
        self._examples = 0  # of a validation
        self._budget: int | None = None
        self._slots = 1
        self._why: dict[int, str] = {}  # what was never tried, and why

    @property
    def merges(self) -> bool:
        """Whether there is a model to merge with, and enough of the changes survives it, as far as it has been seen."""
        seen = self._survival
        return not self._mute and (len(seen) < SEEN // 2 or sum(seen) / len(seen) >= LEAST_SURVIVAL)

    def take(self, waiting: Sequence[ItemView], pool: Pool, *, last: bool) -> Batch:
        """The largest gains, as many as merges of that size pass."""
        if _lessons(waiting):
            members = tuple(each.number for each in waiting[: self._lesson_limit(waiting)])
            return Batch(members, write=None if len(members) == 1 else self._write)
        if not self.merges:
            return self._alone.take(waiting, pool, last=last)
        entries = pool.entries
        base = self._base(pool)
        changes = {each.number: (_evidence(each), entries[_evidence(each).parent - 1]) for each in waiting}
        lost = {each.number: self._why_lost(each.number) for each in waiting if 1 in each.failed_with}
        held = [
            number
            for number, (evidence, parent) in changes.items()
            if parent is not base and added_share(parent.artifact, evidence.artifact, base.artifact) == 1
        ]
        if base.version:  # else it is provisional, and may not be confirmed
            lost = {**dict.fromkeys(held, "what it would be merged onto holds its change already"), **lost}
        rest = [each for each in waiting if each.number not in lost and each.number not in held]
        failed = [each for each in rest if each.failed_with]
        least = self._least(len(entries[0].scores))
        if not rest or (len(rest) < least and not failed and not last):
            return Batch(discard=lost)
        if not self._survival:  # the first merge takes them all
            self._limit = max(self._limit, least)
        limit = min(self._limit, *(each.failed_with[-1] // 2 for each in failed)) if failed else self._limit
        chosen = _fitting(sorted(failed or rest, key=_gain, reverse=True)[: max(1, limit)], changes)
        members = tuple(each.number for each in chosen)
        self._taken.update((number, changes[number]) for number in members)
        is_plain = len(chosen) == 1 and changes[members[0]][1] is base
        onto, onto_item = (base.version, None) if base.version else (None, base.item)
        write = None if is_plain else self._write
        return Batch(members, write=write, onto=onto, onto_item=onto_item, discard=lost)

    def _base(self, pool: Pool) -> PoolEntry:
        """What changes are merged onto: of the best, the newest that is provisional, if there is one."""
        if self.onto == "frontier":
            return frontier_entry(pool.entries)
        return next(reversed(pool.provisional.values()), None) or best_entry(pool.entries)

    def _least(self, examples: int) -> int:
        few = self._budget is not None and self._budget // max(1, examples) in FEW_VALIDATIONS
        scarce = few and examples > MANY_ROUNDS * self._slots
        per_change, most = (
            (EXAMPLES_WHERE_SCARCE, MAX_LEAST_WHERE_SCARCE) if scarce else (EXAMPLES_PER_CHANGE, MAX_BATCH)
        )
        least = self.least or max(1, round(examples / per_change))
        return min(least, self.max_batch or most)

    def _lesson_limit(self, waiting: Sequence[ItemView]) -> int:
        failed = [each.failed_with[-1] // 2 for each in waiting if each.failed_with]
        return max(1, min([self._limit, *failed]))

    def _why_lost(self, number: int) -> str:
        return self._why.get(number, "its change does not help the current best")

    def _write(self, ask: Ask | None, current: Mapping[str, str], changes: Sequence[Change]) -> dict[str, str]:
        """Merge. Runs in a slot."""
        self._unwritten = True
        try:
            merged = write_merge(ask, current, changes, max_characters=self.max_characters)
        except UsageError:
            self._mute = True
            raise
        for name, text in merged.items():
            if self.max_characters is not None and len(text) > max(self.max_characters, len(current[name])):
                raise MalformedAnswerError(
                    f"the text of {name} would be longer than max_characters={self.max_characters}"
                )
        self._unwritten = False
        return merged

    @hookimpl
    def flashevolve_pool_updated(self, entry: PoolEntry) -> None:
        """Learn how dear a validation is."""
        if entry.version == 1:
            self._examples = len(entry.scores)

    @hookimpl
    def flashevolve_plan(self, snapshot: Snapshot) -> Plan:
        """As many in flight as make those that a merge waits for."""
        plan = super().flashevolve_plan(snapshot)
        self._budget, self._slots = snapshot.budget, snapshot.slots.get(snapshot.entry, 1)
        if self.max_items is not None or not snapshot.validates:
            return plan
        return replace(plan, max_items=max(MAX_ITEMS, TRIED * self._least(self._examples or snapshot.examples)))

    @hookimpl
    def flashevolve_item_ended(self, record: ItemRecord) -> None:
        """Learn from a merge: whether it passed its gate, and how much of the changes was left in its text."""
        if not record.members:
            self._taken.pop(record.number, None)
            return
        if record.terminal is Terminal.COMMITTED:
            most = self.max_batch or max(MAX_BATCH, self._least(self._examples))
            self._limit = min(2 * self._limit, most)
        elif record.terminal is Terminal.REJECTED:
            self._limit = max(1, self._limit // 2)
        elif record.terminal is Terminal.DISCARDED:
            self._why.update(dict.fromkeys(record.members, UNPAID))
        elif self._unwritten:  # while a merge whose text holds nothing new says nothing of the next one
            self._limit = max(1, self._limit // 2)
            self._survival.append(0.0)
            self._why.update(dict.fromkeys(record.members, f"item {record.number}, its merge, could not be written"))
            self._tell_if_over(record.reason)
        self._unwritten = False
        taken = [self._taken[number] for number in record.members if number in self._taken]
        if record.evidence is not None and taken:
            merged = record.evidence.artifact
            shares = [added_share(parent.artifact, evidence.artifact, merged) for evidence, parent in taken]
            self._survival.append(sum(shares) / len(shares))
            self._tell_if_over("too little is left of changes")

    def _tell_if_over(self, why: str) -> None:
        if not self.merges:
            logger.warning("No more merges, the best of what waits goes on instead: %s.", why)


def best_entry(entries: Sequence[PoolEntry]) -> PoolEntry:
    """The artifact with the highest validation score, the first of several; the newest where none is validated."""
    if isnan(entries[-1].score):
        return entries[-1]
    return max(entries, key=lambda entry: entry.score)


def frontier_entry(entries: Sequence[PoolEntry]) -> PoolEntry:
    """The artifact that has the best score on most validation examples; of several the one with the best mean."""
    tops: dict[object, float] = {}
    for entry in entries:
        for example, score in entry.scores.items():
            tops[example] = max(score, tops.get(example, score))
    return max(
        entries,
        key=lambda entry: (sum(score == tops[each] for each, score in entry.scores.items()), entry.score),
    )


def _fitting(items: Sequence[ItemView], changes: Mapping[int, tuple[Evidence, PoolEntry]]) -> list[ItemView]:
    """The first of the items, as many as one prompt can hold."""
    room = MOST_CHANGED
    fitting: list[ItemView] = []
    for each in items:
        evidence, parent = changes[each.number]
        room -= changed_characters(parent.artifact, evidence.artifact) + len(evidence.feedback)
        if room < 0 and fitting:
            break
        fitting.append(each)
    return fitting


def _lessons(waiting: Sequence[ItemView]) -> bool:
    """Whether what waits is not written yet."""
    return _evidence(waiting[0]).artifact is None


def _evidence(item: ItemView) -> Evidence:
    assert item.evidence is not None  # noqa: S101 - what waits has some
    return item.evidence


def _gain(item: ItemView) -> float:
    return _evidence(item).gain
