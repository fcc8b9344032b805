"""Staleness policies: the base class, and the two that only look at the number (paper, section on Async modes)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._errors import UsageError
from flashevolve_plugins._model import Verdict
from flashevolve_plugins._policies import Judgement, Work
from flashevolve_plugins.hooks.specs import hookimpl

if TYPE_CHECKING:
    from flashevolve_plugins._model import ItemView
    from flashevolve_plugins._pool import Pool

DEFAULT_MAX_STALENESS = 0


class StalenessPolicy(ABC):
    """Decides whether a stale item goes on.

    Called by the driver, on the thread that called the host, never two calls at once. ``item`` is a copy and ``pool``
    is to be read only: change neither. Keep state in ``self``: a run makes its own policy, unless you hand it one.

    Policies compose: ``a & b`` accepts what both accept, ``a | b`` what either accepts.
    """

    @abstractmethod
    def judge(self, item: ItemView, pool: Pool) -> Judgement | Work:
        """Judge an item whose staleness is at least 1.

        Args:
            item: the item, with its staleness in pool versions.
            pool: all admitted artifacts; ``pool.since(item.version)`` is what came since the item was born.

        Returns:
            :meth:`accept`, :meth:`discard`, :meth:`patch`, or work to be done first: the item is judged again then,
            with what the work gave as ``item.answer``.
        """

    @staticmethod
    def accept(reason: str = "") -> Judgement:
        """The item goes on.

        Args:
            reason: why, in one clause, where there is something to say; users read it.
        """
        return Judgement(Verdict.ACCEPT, reason)

    @staticmethod
    def discard(reason: str) -> Judgement:
        """The item ends here.

        Args:
            reason: why, in one clause; users read it.
        """
        return Judgement(Verdict.DISCARD, reason)

    @staticmethod
    def patch(artifact: Any, reason: str) -> Judgement:
        """The item goes on with another artifact, which passes the gate again. Only where ``item.evidence`` is there.

        Args:
            artifact: made from the best artifact of the pool.
            reason: why, in one clause; users read it.
        """
        return Judgement(Verdict.PATCH, reason, artifact)

    @hookimpl
    def flashevolve_judge_stale(self, item: ItemView, pool: Pool) -> Judgement | Work:
        """Answer the hook with :meth:`judge`."""
        return self.judge(item, pool)

    def __and__(self, other: StalenessPolicy) -> StalenessPolicy:
        """Accept what both accept."""
        return _Both(self, other)

    def __or__(self, other: StalenessPolicy) -> StalenessPolicy:
        """Accept what either accepts."""
        return _Either(self, other)


class _Composed(StalenessPolicy):
    """Asks two policies, each with the answer to its own work alone."""

    _needs_both: bool

    def __init__(self, first: StalenessPolicy, second: StalenessPolicy) -> None:
        for each in (first, second):
            if hasattr(each, "flashevolve_merge_batch"):
                raise UsageError(
                    f"{type(each).__name__} decides what leaves the merge queue and judges nothing stale: "
                    "it does not compose with & and |."
                )
        self._first, self._second = first, second
        self._asked: dict[int, StalenessPolicy] = {}

    def judge(self, item: ItemView, pool: Pool) -> Judgement | Work:
        asked = self._asked.pop(item.number, None) if item.answer is not None else None
        if asked is not self._second:  # else the first has judged before the second asked for its work
            judgement = self._ask(self._first, item, pool, answered=asked is self._first)
            if isinstance(judgement, Work) or _accepts(judgement) is not self._needs_both:
                return judgement
        return self._ask(self._second, item, pool, answered=asked is self._second)

    def _ask(self, policy: StalenessPolicy, item: ItemView, pool: Pool, *, answered: bool) -> Judgement | Work:
        judgement = policy.judge(item if answered else replace(item, answer=None), pool)
        if isinstance(judgement, Work):
            self._asked[item.number] = policy
        return judgement


class _Both(_Composed):
    _needs_both = True


class _Either(_Composed):
    _needs_both = False


def _accepts(judgement: Judgement | Work) -> bool:
    return isinstance(judgement, Judgement) and judgement.verdict is Verdict.ACCEPT


class Full(StalenessPolicy):
    """Full Async: accepts everything."""

    def judge(self, item: ItemView, pool: Pool) -> Judgement:
        """Accept."""
        del item, pool
        return self.accept()


class Guarded(StalenessPolicy):
    """Guarded Async: goes on while the staleness is at most ``max_staleness``, else discards.

    It also discards what was made from a provisional artifact that was not confirmed.

    Args:
        max_staleness: pool versions an item may lag behind.

    Raises:
        UsageError: ``max_staleness`` is not a whole number of at least 0.
    """

    def __init__(self, max_staleness: int = DEFAULT_MAX_STALENESS) -> None:
        self.max_staleness = require_count("Guarded", "max_staleness", max_staleness, 0)

    def judge(self, item: ItemView, pool: Pool) -> Judgement:
        """Compare the staleness with the bound."""
        del pool
        if item.unfounded:
            return self.discard(item.unfounded)
        if item.staleness <= self.max_staleness:
            return self.accept()
        return self.discard(f"stale by {item.staleness}, more than max_staleness={self.max_staleness}")


def require_count(policy: str, option: str, value: object, least: int) -> int:
    """The value of an option that is a whole number.

    Args:
        policy: the policy's class, for the message.
        option: the option's name.
        value: what was given.
        least: the smallest value that works.

    Raises:
        UsageError: it is no whole number of at least ``least``.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{policy}({option}={value!r}) must be a whole number of at least {least}.")
    return value
