"""Reflective Async (paper, section on Async modes): a stale proposal is evidence that the reflection model can read."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

from flashevolve_plugins._errors import UnknownNameError, UsageError
from flashevolve_plugins._model import Verdict
from flashevolve_plugins._policies import Work
from flashevolve_plugins.hooks.depth import best_entry
from flashevolve_plugins.hooks.prompts import Answer, HistoryEntry, ask_verdict
from flashevolve_plugins.hooks.staleness import DEFAULT_MAX_STALENESS, StalenessPolicy, require_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashevolve_plugins._model import ItemView, PoolEntry
    from flashevolve_plugins._policies import Ask, Judgement
    from flashevolve_plugins._pool import Pool

Fallback = Literal["accept", "discard"]

MAX_PATCHES = 3
MAX_CHARACTERS = 60_000  # of a prompt; with the answer it fits a context of 32,000 tokens


class Reflective(StalenessPolicy):
    """Reflective Async: the reflection model reads a stale proposal and accepts, discards or patches it.

    It is asked before the validation, the most expensive stage; until then a stale item goes on. It reads the parent,
    the proposal, the feedback that led to it, and what entered the pool since. A patch passes the gate again.

    Args:
        max_staleness: pool versions an item may lag behind unread.
        max_patches: how often one item may be patched; a further time it falls back.
        fallback: the verdict where the model's answer cannot be read twice, where it cannot be reached, and beyond
            ``max_patches``: ``"discard"`` or ``"accept"``. ``fallbacks`` counts them, and an item's record says so.
        max_characters: length of a prompt at most; older history is left out first.

    Raises:
        UsageError: an option that cannot work.
        UnknownNameError: another fallback.
    """

    def __init__(
        self,
        max_staleness: int = DEFAULT_MAX_STALENESS,
        max_patches: int = MAX_PATCHES,
        fallback: Fallback = "discard",
        max_characters: int = MAX_CHARACTERS,
    ) -> None:
        self.max_staleness = require_count("Reflective", "max_staleness", max_staleness, 0)
        self.max_patches = require_count("Reflective", "max_patches", max_patches, 0)
        if fallback not in get_args(Fallback):
            raise UnknownNameError("Reflective(fallback=...)", fallback, get_args(Fallback))
        self.fallback = fallback
        self.max_characters = require_count("Reflective", "max_characters", max_characters, 4_000)
        self.fallbacks = 0

    def judge(self, item: ItemView, pool: Pool) -> Judgement | Work:
        """Ask the model once the item has evidence, and do what it says."""
        if item.evidence is None or (item.staleness <= self.max_staleness and not item.unfounded):
            return self.accept()
        if isinstance(item.answer, Answer):
            return self._said(item.answer, pool)
        if item.answer is not None:
            return self._fall_back(f"no verdict, {type(item.answer).__name__}: {item.answer}")
        if item.patches >= self.max_patches:
            return self._fall_back(f"stale again after {item.patches} patches")
        return Work(partial(self._read, item, pool.entries))

    def _said(self, answer: Answer, pool: Pool) -> Judgement:
        if answer.verdict is Verdict.DISCARD:
            return self.discard(f"read and discarded: {answer.reason}")
        if answer.verdict is Verdict.ACCEPT:
            return self.accept(f"read and accepted: {answer.reason}")
        if answer.artifact == best_entry(pool.entries).artifact:
            return self.discard(f"read, and nothing of it is left to change: {answer.reason}")
        return self.patch(answer.artifact, f"read and patched: {answer.reason}")

    def _fall_back(self, why: str) -> Judgement:
        self.fallbacks += 1
        return self.accept(why) if self.fallback == "accept" else self.discard(why)

    def _read(self, item: ItemView, entries: Sequence[PoolEntry], ask: Ask | None) -> Answer:
        """Ask the model. Runs in a slot."""
        if ask is None:
            raise UsageError("the host has no reflection model to read stale proposals: name another staleness policy")
        evidence = item.evidence
        assert evidence is not None  # noqa: S101 - judge asks only then
        return ask_verdict(
            ask,
            parent=entries[evidence.parent - 1].artifact,
            proposal=evidence.artifact,
            current=best_entry(entries).artifact,
            feedback=evidence.feedback,
            history=[_history(entry, entries) for entry in entries[item.version :]],
            max_characters=self.max_characters,
        )


def _history(entry: PoolEntry, entries: Sequence[PoolEntry]) -> HistoryEntry:
    """What one admitted artifact changed, against its first parent."""
    parent = entries[entry.parents[0] - 1] if entry.parents else entries[0]
    fixed = [str(example) for example, score in entry.scores.items() if score > parent.scores.get(example, score)]
    return HistoryEntry(parent.artifact, entry.artifact, entry.score - parent.score, fixed)
