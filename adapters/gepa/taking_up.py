"""Taking up an interrupted run: what was paid for counts once, and what was under way is begun again at no cost."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._content import digest
from flashevolve_plugins._driver import LATER
from flashevolve_plugins._model import Terminal
from flashevolve_plugins.adapters.gepa import recipes as kinds
from flashevolve_plugins.adapters.gepa.keeping import Keeps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashevolve_plugins._bodies import Ended
    from flashevolve_plugins._keeping import Keeper
    from flashevolve_plugins.adapters.gepa.evaluation import Evaluator

logger = logging.getLogger("flashevolve_plugins")


class TakingUp:
    """What of a run is kept, from before and from now on. All on the caller's thread.

    An item's row is deleted once the host's state file contains what it was told of the item, which is seen by the
    iteration's entry in the host's trace.

    Args:
        keeper: between the driver and the store.
        state: the host's state file, if there is one.
        engine: the host's engine.
        evaluator: how its adapter evaluates.
        with_results: whether results are kept, which hold what programs were given and answered.
    """

    def __init__(self, keeper: Keeper, state: Any, engine: Any, evaluator: Evaluator, *, with_results: bool) -> None:
        self.keeper = keeper
        self.with_results = with_results
        self.keeps = Keeps(evaluator)
        self.has_state = state is not None
        self.candidates = () if state is None else tuple(state.program_candidates)
        self._trace = [] if state is None else state.full_program_trace
        self._again = kinds.Again(engine.reflective_proposer.trainset, self.keeps.contents)
        self._components: dict[int, kinds.Mutation] = {}  # item -> its recipe
        self._items: dict[int, int] = {}  # row -> the item that it is begun again as
        self._in_flight: set[int] = set()
        self._groups: list[tuple[int, list[int]]] = []  # the row of a merge, and those of what was merged
        self._regrouped: dict[frozenset[int], int] = {}  # the items that are merged together again -> the merge's row
        self._seed: int | None = None  # the row of its validation, if that was under way
        self._settled = False
        #: Whether the budget cannot pay for what is to be begun again.
        self.short = False
        #: Metric calls that the host's state counts although they are counted again as the host is told of them.
        self.counted_twice = self._sort(state)

    def _sort(self, state: Any) -> int:
        """Tell what the host's state contains from what it does not; metric calls that it counts of the latter."""
        store, counted = self.keeper.store, 0
        for row in store.items:
            contained = row.told is not None and self._contains(row.told)
            if contained and not row.told["goes_on"]:
                self.keeper.drop(row.number)
                continue
            if row.told is not None and not contained:
                store.tell_item(row.number, None)
            if contained:
                counted += self.keeper.calls_of(row.number)
            self._open(row.number, kinds.thawed(row.recipe))
        store.items = []
        stopped = store.run.get("stopped")
        if stopped and self._contains(stopped) and state.total_num_evals >= stopped["total"]:
            counted = stopped["open"]
        return counted

    def _open(self, row: int, recipe: Any) -> None:
        if isinstance(recipe, (kinds.Mutation, kinds.Merge)):
            self._again.recipes.append((row, recipe))
            return
        if isinstance(recipe, kinds.Queued):
            self._groups.append((row, recipe.members))
        elif self.has_state:
            self.keeper.store.forget_item(row)  # not its results
        else:
            self._seed = row

    def _contains(self, told: Any) -> bool:
        """Whether the host's state file contains what was told when its trace ended so."""
        if not self.has_state:
            return False
        at: int = told["i"]
        return at < 0 or (at < len(self._trace) and digest(self._trace[at]).hex() == str(told["trace"]))

    def tell(self) -> None:
        """Say what is taken up: nobody is to take an old result for a new one."""
        under_way = len(self._again.recipes)
        if not (self.has_state or under_way or self.keeper.unserved):
            return
        more = ""
        if under_way:
            calls = self.keeper.unserved
            more = (
                f" {under_way} proposals that were under way are begun again, with {calls} metric calls already paid."
            )
        logger.warning("Taking up the run in its directory: %s iterations are done.%s", len(self._trace), more)

    # -- what is begun ----------------------------------------------------------------------------------------------

    def next(self, number: int, candidates: Sequence[dict[str, str]], free: float, cost: int, shared: int) -> Any:
        """The next item to begin again, as item ``number``: its recipe and, for a mutation, its tasks.

        What it still has to pay, and what those before it have, must fit into what is left once all that was paid for
        is counted. Near the end of the budget each waits for those before it.

        Args:
            number: the item's.
            candidates: the host's.
            free: metric calls that are left, without those that were paid for before and will count.
            cost: what an item needs to be committed, in metric calls.
            shared: what of it items share with one another.

        Returns:
            ``None`` if there is none, ``LATER`` if it has to wait; for ever, if :attr:`short` says so.
        """
        found = self._again.next(candidates)
        if found is None:
            return None
        row, recipe, tasks = found
        if free + self.keeper.calls_of(row) < cost + (cost - shared) * len(self._in_flight):
            self._again.recipes.appendleft((row, recipe))
            self.short = not self._in_flight
            return LATER
        self.keeper.open(number, b"", row)
        self._items[row] = number
        self._in_flight.add(number)
        if isinstance(recipe, kinds.Mutation):
            self._components[number] = recipe
        return recipe, tasks

    def may_offer(self, free: float, cost: int) -> bool:
        """Whether something new may be offered, while what is begun again is under way."""
        return self._settled or not self._in_flight or free >= cost

    def settle(self) -> int:
        """Metric calls to count now: of what nobody will ask for again, once all that is begun again has ended.

        What could not begin for lack of budget keeps what it has paid for, for a run with more.
        """
        if self._settled or self._in_flight or self.short:
            return 0
        self._settled, calls = True, self.keeper.unserved
        for row, _ in self._again.recipes:
            self.keeper.drop(row)
        self._again.recipes.clear()
        for row in (*(group[0] for group in self._groups), *self._regrouped.values()):
            self.keeper.store.forget_item(row)
        self._groups.clear()
        self._regrouped.clear()
        self.keeper.give_up()
        return calls

    def opened(self, number: int, tasks: Sequence[Any]) -> None:
        """A new mutation begins."""
        recipe = self._components[number] = kinds.recipe_of(tasks, self.keeps.contents)
        self.keeper.open(number, kinds.frozen(recipe))

    def opened_merge(self, number: int, recipe: kinds.Merge) -> None:
        """A new merge of the host's begins."""
        self.keeper.open(number, kinds.frozen(recipe))

    def opened_queued(self, number: int, members: Sequence[int]) -> None:
        """A new merge of what waited in the queue begins."""
        rows = [row for row in map(self.keeper.row, members) if row is not None]
        self.keeper.open(number, kinds.frozen(kinds.Queued(rows)), self._regrouped.pop(frozenset(members), None))

    def opened_seed(self, number: int) -> None:
        """The seed's validation begins."""
        self.keeper.open(number, kinds.frozen(kinds.Seed()), self._seed)

    def components(self, number: int, position: int) -> list[str] | None:
        """What was chosen to be updated before the run was interrupted."""
        recipe = self._components.get(number)
        chosen = None if recipe is None else recipe.components
        return chosen[position] if chosen is not None and position < len(chosen) else None

    def chose(self, number: int, components: list[list[str]]) -> None:
        """These are chosen to be updated."""
        recipe = self._components.get(number)
        if recipe is not None and recipe.components is None and components:
            recipe.components = components
            self.keeper.change(number, kinds.frozen(recipe))

    # -- the merge queue --------------------------------------------------------------------------------------------

    def regroup(self, waiting: Sequence[int], last: bool) -> Sequence[int] | None:  # noqa: FBT001 - a callback
        """Let those be merged together again that were; wait while they are on their way."""
        for group in tuple(self._groups):
            row, rows = group
            items = [self._items.get(row) for row in rows]
            if all(item in waiting for item in items):
                self._groups.remove(group)
                together = [item for item in waiting if item in items]
                self._regrouped[frozenset(together)] = row
                return together
            pending = {row for row, _ in self._again.recipes}
            if any(
                row not in pending if item is None else item not in self._in_flight
                for row, item in zip(rows, items, strict=True)
            ):
                self._groups.remove(group)
                self.keeper.store.forget_item(group[0])  # not its results
        return None if self._groups and not last else waiting

    # -- what the host is told --------------------------------------------------------------------------------------

    def ended(self, number: int) -> None:
        """An item is over."""
        self._in_flight.discard(number)
        self._components.pop(number, None)

    def told(self, ended: Ended, state: Any) -> None:
        """The host has been told of an item, and its loop has come to the end of the iteration."""
        record = ended.record
        members = record.members if record.terminal is Terminal.COMMITTED else ()
        self.keeper.told((ended.number, *members), self._now(state), goes_on=record.terminal is Terminal.CANCELLED)

    def told_seed(self, number: int) -> None:
        """The host has the seed's validation."""
        self.keeper.told((number,), {"i": -1, "trace": ""}, goes_on=False)

    def stopped(self, state: Any) -> None:
        """The run ends, and the state that is saved now counts all that was spent."""
        stopped = {**self._now(state), "total": state.total_num_evals, "open": self.keeper.open_calls}
        self.keeper.store.put_run("stopped", stopped)

    def saved_at_the_end(self) -> None:
        """The host has saved its state for the last time."""
        self.keeper.saved()
        self.keeper.store.forget_loose()

    def _now(self, state: Any) -> dict[str, Any]:
        trace = state.full_program_trace
        return {"i": len(trace) - 1, "trace": digest(trace[-1]).hex() if trace else ""}
