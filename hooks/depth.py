"""Policies that spend validations on depth: the best of what waits, and the merge queue."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from typing import TYPE_CHECKING

from flashevolve_plugins._model import Terminal
from flashevolve_plugins._policies import Batch, Plan
from flashevolve_plugins.hooks.prompts import added_share, write_merge
from flashevolve_plugins.hooks.specs import hookimpl
from flashevolve_plugins.hooks.staleness import StalenessPolicy, require_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flashevolve_plugins._model import Change, Evidence, ItemRecord, ItemView, PoolEntry
    from flashevolve_plugins._policies import Ask, Judgement
    from flashevolve_plugins._pool import Pool
    from flashevolve_plugins._snapshot import Snapshot

MAX_ITEMS = 16
MAX_BATCH = 16
FIRST_BATCH = 4
LEAST_SURVIVAL = 0.3  # of the merged changes; below, merging is worse than going alone
SEEN = 6  # merges, the last ones, that say how well changes survive


class QueuePolicy(StalenessPolicy):
    """Lets what passed its gate wait, and decides what is validated.

    Called as every :class:`StalenessPolicy`. Nothing is judged stale: what waits is judged when it is taken.

    Args:
        max_items: proposals in flight at most, those that wait included.
    """

    def __init__(self, max_items: int = MAX_ITEMS) -> None:
        self.max_items = require_count(type(self).__name__, "max_items", max_items, 1)

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
        """So many proposals in flight, one validation at a time."""
        del snapshot
        return Plan(max_items=self.max_items)


class BestFirst(QueuePolicy):
    """Validates one proposal at a time: of what waits, the one that gained most, made from what is still the best.

    Args:
        max_items: proposals in flight at most, those that wait included.
    """

    def take(self, waiting: Sequence[ItemView], pool: Pool, *, last: bool) -> Batch:
        """The largest gain; what was made from another artifact than the best has aged."""
        best = best_entry(pool)
        old = [each.number for each in waiting if _parent(each) != best.version]
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
    little of the changes survives the merging, it goes on as :class:`BestFirst`.

    Args:
        max_batch: proposals merged at once at most.
        max_items: proposals in flight at most, those that wait included.
        max_characters: length that a component's text may reach by merging, or ``None`` for no limit.
    """

    def __init__(
        self, max_batch: int = MAX_BATCH, max_items: int = MAX_ITEMS, max_characters: int | None = None
    ) -> None:
        super().__init__(max_items)
        self.max_batch = require_count("Merge", "max_batch", max_batch, 1)
        self.max_characters = (
            None if max_characters is None else require_count("Merge", "max_characters", max_characters, 1)
        )
        self._limit = min(FIRST_BATCH, self.max_batch)
        self._alone = BestFirst(max_items)
        self._taken: dict[int, tuple[Evidence, PoolEntry]] = {}
        self._survival: deque[float] = deque(maxlen=SEEN)

    @property
    def merges(self) -> bool:
        """Whether enough of the changes survives the merging, as far as it has been seen."""
        seen = self._survival
        return len(seen) < SEEN // 2 or sum(seen) / len(seen) >= LEAST_SURVIVAL

    def take(self, waiting: Sequence[ItemView], pool: Pool, *, last: bool) -> Batch:
        """The largest gains, as many as merges of that size pass."""
        if not self.merges:
            return self._alone.take(waiting, pool, last=last)
        lost = {each.number: "its change does not help the current best" for each in waiting if 1 in each.failed_with}
        rest = [each for each in waiting if each.number not in lost]
        failed = [each for each in rest if each.failed_with]
        limit = min(self._limit, *(each.failed_with[-1] // 2 for each in failed)) if failed else self._limit
        chosen = sorted(failed or rest, key=_gain, reverse=True)[: max(1, limit)]
        if not chosen:
            return Batch(discard=lost)
        members = tuple(each.number for each in chosen)
        if len(chosen) == 1 and _parent(chosen[0]) == best_entry(pool).version and not failed:
            return Batch(members, discard=lost)
        entries = pool.entries
        self._taken = {
            each.number: (each.evidence, entries[each.evidence.parent - 1]) for each in chosen if each.evidence
        }
        return Batch(members, self._write, discard=lost)

    def _write(self, ask: Ask | None, current: Mapping[str, str], changes: Sequence[Change]) -> dict[str, str]:
        return write_merge(ask, current, changes, max_characters=self.max_characters)

    @hookimpl
    def flashevolve_item_ended(self, record: ItemRecord) -> None:
        """Learn from a merge."""
        if not record.members:
            return
        if record.terminal is Terminal.COMMITTED:
            self._limit = min(2 * self._limit, self.max_batch)
        elif record.terminal in {Terminal.REJECTED, Terminal.SKIPPED}:
            self._limit = max(1, self._limit // 2)
        if record.evidence is not None:
            taken = [self._taken[number] for number in record.members]
            merged = record.evidence.artifact
            shares = [added_share(entry.artifact, evidence.artifact, merged) for evidence, entry in taken]
            self._survival.append(sum(shares) / len(shares))


def best_entry(pool: Pool) -> PoolEntry:
    """The artifact with the highest validation score, the first of several."""
    return max(pool.entries, key=lambda entry: entry.score)


def _parent(item: ItemView) -> int | None:
    return item.evidence.parent if item.evidence is not None else None


def _gain(item: ItemView) -> float:
    return item.evidence.gain if item.evidence is not None else 0.0
