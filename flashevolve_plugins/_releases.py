"""Stages that policies let go before their last sample has ended: handed on, stopped, or admitted provisionally."""

from __future__ import annotations

from dataclasses import replace
from math import fsum
from typing import TYPE_CHECKING, Any

from flashevolve_plugins import _events as ev
from flashevolve_plugins._bodies import OpenItem, Partial
from flashevolve_plugins._decisions import view_of
from flashevolve_plugins._errors import PluginError, UsageError
from flashevolve_plugins._given_up import GIVEN_UP
from flashevolve_plugins._item import Kind, State
from flashevolve_plugins._model import Discarded, PoolEntry, Terminal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flashevolve_plugins._bodies import OpenItems
    from flashevolve_plugins._calls import Calls
    from flashevolve_plugins._item import Item
    from flashevolve_plugins._model import ItemView, Progress, Stage
    from flashevolve_plugins._policies import Policies, Release
    from flashevolve_plugins._pool import Pool
    from flashevolve_plugins._scheduler import Scheduler


LOOKS = 100  # at a stage, at most


class Releases:
    """Asks the policies about stages that run. All on the caller's thread.

    Args:
        scheduler: whose items they are.
        policies: who decides.
        pool: the pool.
        items: the items under way.
        calls: the samples under way.
    """

    def __init__(self, scheduler: Scheduler, policies: Policies, pool: Pool, items: OpenItems, calls: Calls) -> None:
        self._scheduler, self._policies, self._pool = scheduler, policies, pool
        self._items, self._calls = items, calls
        self._keys: dict[int, int] = {}
        self._withdrawn: dict[int, str] = {}  # admitted provisionally and not confirmed, and why

    def key(self, item: int) -> int:
        """What calls of an item's stage are known by: its number, but for a tail, or once it has left one."""
        return self._keys.get(item, item)

    def why_not(self, item: int) -> str:
        """Why an artifact that was admitted provisionally was not confirmed; empty if it was."""
        return self._withdrawn.get(item, "")

    def look(self, number: int, index: int, stage: Stage) -> Iterable[ev.Event]:
        """Ask about a stage of which a sample has ended, while the Scheduler does not know of that yet."""
        item = self._scheduler.items[number]
        last = not item.waiting and item.running == {index}
        total = len(stage.samples)
        ended = total - len(item.running) - sum(map(len, item.waiting.values())) + 1
        if ended % max(1, total // LOOKS):
            return
        if last or item.state is not State.RUNNING or item.failed or item.kind is Kind.JOB or stage.progress is None:
            return
        opened = self._items[number]
        try:
            progress = replace(stage.progress(opened.results), hands_on=stage.hands_on)
            view = view_of(self._scheduler, number, stage)
            if stage.commits and number not in self._pool.provisional:
                yield from self._admit(number, view, progress)
            release = self._policies.release_stage(view, progress, self._pool)
            if release is None:
                return
            _require_possible(number, stage, release)
        except PluginError as error:
            opened.error = error
            self.withdraw(number)
            yield ev.StageStopped(number, str(error), failed=True)
            return
        if release.stops:
            opened.partial = _known(progress)
            self.withdraw(number)
            yield ev.StageStopped(number, release.reason)
        else:
            yield from self._hand_on(item)

    def withdraw(self, number: int) -> None:
        """An item's artifact is built on no more: its validation is over, or will not confirm it."""
        self._pool.provisional.pop(number, None)

    def owner(self, number: int, key: int) -> int:
        """To whom a call of an item belongs by now: to the item, or to a tail of it."""
        if self.key(number) == key:
            return number
        return next(tail for tail in self._scheduler.items[number].tails if self._keys[tail] == key)

    def _admit(self, number: int, view: ItemView, progress: Progress) -> Iterable[ev.Event]:
        if self._policies.admit_provisional(view, progress, self._pool):
            known = _known(progress)
            entry = PoolEntry(0, progress.artifact, _mean(known), progress.parents, number, known)
            self._pool.admit_provisionally(entry)
            yield ev.Provisional(number)

    def confirm(self, number: int, stage: Stage) -> PluginError | None:
        """Look again at what was admitted provisionally, once all is known of it; what the policy raised, if it did."""
        assert stage.progress is not None  # noqa: S101 - else it had not been admitted
        opened, before = self._items[number], self._pool.provisional[number]
        progress = stage.progress(opened.results)
        try:
            confirmed = self._policies.admit_provisional(view_of(self._scheduler, number, stage), progress, self._pool)
        except PluginError as error:
            opened.error = error
            return error
        if not confirmed:
            self._withdrawn[number] = (
                f"item {number}, which it was made from, had {before.score:.3f} on part of the validation and has "
                f"{_mean(_known(progress)):.3f} on all of it"
            )
        return None

    def _hand_on(self, item: Item) -> Iterable[ev.Event]:
        """What waits and runs of the stage belongs to a tail from now on."""
        tail, opened, key = self._scheduler.next_number(), self._items[item.number], self.key(item.number)
        self._calls.hand_over(key, item.running, tail)
        self._keys[tail], self._keys[item.number] = key, self._scheduler.next_number()
        partial = Partial(opened.results)
        rest = OpenItem(None, opened.born, opened.started, results=opened.results, begun=True)
        self._items[tail], opened.results, stage = rest, partial, item.stage

        def ended(answer: Any) -> Iterable[ev.Event]:
            if rest.gone is not None:  # no answer of the program's, but none at all
                opened.gone = rest.gone
                answer = Discarded(Terminal.FAILED, GIVEN_UP.format(stage.name, rest.gone.message), stage.name)
            return partial.over(answer)

        rest.answered = ended
        yield ev.StageReleased(item.number, tail)

    def ended(self, number: int) -> None:
        """An item has ended."""
        self._keys.pop(number, None)
        self.withdraw(number)


def _mean(scores: dict[Any, float]) -> float:
    return fsum(scores.values()) / max(1, len(scores))


def _known(progress: Progress) -> dict[Any, float]:
    pairs = zip(progress.examples, progress.scores, strict=True)
    return {example: score for example, score in pairs if score is not None}


def _require_possible(item: int, stage: Stage, release: Release) -> None:
    if not release.stops and not stage.hands_on:
        wrong = UsageError(f"it handed on {stage.name}, of which every result is needed: there it can only stop")
        raise PluginError("the releasing policy", "flashevolve_release_stage", f"item {item}", wrong)
