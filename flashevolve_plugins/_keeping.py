"""Keeps what samples gave until the host has it, and gives it again, once, when a run is taken up."""

from __future__ import annotations

import logging
import pickle
import threading
from collections import defaultdict, deque
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from flashevolve_plugins._model import Sample
    from flashevolve_plugins._store import Result, Store

logger = logging.getLogger("flashevolve_plugins")


class Kept(Protocol):
    """How a sample's result is kept."""

    @property
    def key(self) -> bytes:
        """What it is the result of: the same for the same content, whatever its place."""
        ...

    def freeze(self, result: Any) -> bytes | None:
        """The result as bytes; ``None`` if it is not worth keeping, as what failed. Runs in the sample's slot."""
        ...

    def thaw(self, frozen: bytes) -> Any:
        """The result again. Runs in the sample's slot."""
        ...


@dataclass(frozen=True)
class Pickled:
    """A result that pickle can keep. One that is an exception, or that the test refuses, is not worth it.

    Args:
        key: what it is the result of.
        worth: whether a result is worth keeping.
    """

    key: bytes
    worth: Callable[[Any], bool] | None = None

    def freeze(self, result: Any) -> bytes | None:
        """The result as bytes."""
        if isinstance(result, Exception) or (self.worth is not None and not self.worth(result)):
            return None
        return pickled(result)

    def thaw(self, frozen: bytes) -> Any:
        """The result again."""
        return pickle.loads(frozen)  # noqa: S301 - the directory is trusted, or nothing of it is loaded


def pickled(value: Any) -> bytes:
    """The value as pickle writes it, or cloudpickle where pickle cannot and it is installed."""
    try:
        return pickle.dumps(value, protocol=5)
    except Exception:
        if find_spec("cloudpickle") is None:
            raise
        return bytes(import_module("cloudpickle").dumps(value))


class Keeper:
    """Between the driver and the store. Its methods are called on the caller's thread unless they say otherwise.

    Args:
        store: the file.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = threading.Lock()
        self._again: defaultdict[bytes, deque[Result]] = defaultdict(deque)
        for result in store.results:
            self._again[result.key].append(result)
        #: Metric calls behind the results that nobody has asked for again yet.
        self.unserved = sum(each.spent for each in store.results)
        self._rows: dict[int, int] = {}  # item -> its row
        self._paid: dict[int, int] = {}  # row -> metric calls behind its results
        self._told: list[int] = []  # rows that the host was told of, and may not have saved
        self._useless: list[int] = []  # results
        self._warned = False

    # -- items ------------------------------------------------------------------------------------------------------

    def open(self, item: int, recipe: bytes, row: int | None = None) -> None:
        """An item begins.

        Args:
            item: its number in this run.
            recipe: what its adapter needs to begin it again.
            row: the store's row, if it is begun again.
        """
        self._rows[item] = self.store.put_item(recipe) if row is None else row
        self._paid.setdefault(self._rows[item], 0)

    def calls_of(self, row: int) -> int:
        """Metric calls behind an item's results from before, as far as nobody has asked for them again."""
        return sum(each.spent for waiting in self._again.values() for each in waiting if each.item == row)

    def unserved_of(self, item: int) -> int:
        """The same, of an item that is begun again."""
        row = self._rows.get(item)
        return self.calls_of(row) if self.unserved and row is not None else 0

    def drop(self, row: int) -> None:
        """Forget an item from before, and its results."""
        self.unserved -= self.calls_of(row)
        for key, waiting in self._again.items():
            self._again[key] = deque(each for each in waiting if each.item != row)
        self.store.forget([row])

    def change(self, item: int, recipe: bytes) -> None:
        """More is known of what the item needs."""
        if item in self._rows:
            self.store.change_item(self._rows[item], recipe)

    def row(self, item: int) -> int | None:
        """The item's row."""
        return self._rows.get(item)

    def told(self, items: Iterable[int], told: Any, *, goes_on: bool) -> None:
        """The host has been told how these items ended.

        Args:
            items: their numbers.
            told: how to see later whether the host's state file contains that.
            goes_on: whether they are begun again when the run is taken up, as what was cancelled.
        """
        for item in items:
            row = self._rows.get(item)
            if row is None:
                continue
            self.store.tell_item(row, {**told, "goes_on": goes_on})
            if not goes_on:
                self._told.append(row)
                self._rows.pop(item)

    def saved(self) -> None:
        """The host's state file contains all it has been told."""
        told, self._told = self._told, []
        self.store.forget(told)
        with self._lock:
            for row in told:
                self._paid.pop(row, None)
        useless, self._useless = self._useless, []
        self.store.forget_results(useless)

    @property
    def open_calls(self) -> int:
        """Metric calls behind results that the host has not been told of for good."""
        with self._lock:
            told = set(self._told)
            return self.unserved + sum(calls for row, calls in self._paid.items() if row not in told)

    def give_up(self) -> None:
        """Nobody will ask again for what is unserved."""
        self.unserved = 0
        self._useless += [each.number for waiting in self._again.values() for each in waiting]
        self._again.clear()

    # -- samples ----------------------------------------------------------------------------------------------------

    def keeping(self, item: int, sample: Sample) -> Sample:
        """The sample, whose result is kept; or, where it is known from before, one that gives it at once."""
        kept, row = sample.kept, self._rows.get(item)
        assert kept is not None  # noqa: S101 - the driver asks only then
        result = self._take(kept.key, row)
        if result is None:
            return replace(sample, call=_keeping(sample, lambda value: self._put(row, kept, sample, value)))
        self.unserved -= result.spent
        self._count(row, result.spent)
        self.store.move_result(result.number, row)
        call = _thawing(kept, result.value, sample, self._report)
        return replace(sample, call=call, seconds=None if sample.seconds is None else float, took=None)

    def _take(self, key: bytes, row: int | None = None) -> Result | None:
        """A result from before; the row's own, if it has one, since each counts on those that it paid for."""
        with self._lock:
            waiting = self._again.get(key)
            if not waiting:
                return None
            found = next((each for each in waiting if each.item == row), waiting[0])
            waiting.remove(found)
            return found

    def _count(self, row: int | None, calls: int) -> None:
        with self._lock:
            if row in self._paid:  # else its item is over, and this is of a call that was abandoned
                self._paid[row] += calls

    def asking(self, ask: Callable[[str], str], key: Callable[[str], bytes]) -> Callable[[str], str]:
        """A call of a model whose answers are kept. The result runs in slots.

        Args:
            ask: from a prompt to the answer.
            key: from a prompt to what names it.
        """

        def asked(prompt: str) -> str:
            result = self._take(key(prompt))
            if result is not None:
                self._useless.append(result.number)
                return result.value.decode("utf-8", "surrogatepass")
            answer = ask(prompt)
            if isinstance(answer, str):
                self.store.put_result(None, key(prompt), answer.encode("utf-8", "surrogatepass"), 0)
            return answer

        return asked

    def _put(self, row: int | None, kept: Kept, sample: Sample, value: Any) -> None:
        """Runs in the sample's slot."""
        spent = sample.cost if sample.spent is None else sample.spent(value)
        try:
            frozen = kept.freeze(value)
        except Exception as error:  # noqa: BLE001 - whatever a user's object raises as it is pickled
            self._report(f"A result cannot be kept ({type(error).__name__}: {' '.join(str(error).split())[:200]})")
            return
        if frozen is not None:
            self._count(row, spent)
            self.store.put_result(row, kept.key, frozen, spent)

    def _report(self, problem: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("%s: where the run is taken up, it is paid for again. This is said once.", problem)


def _keeping(sample: Sample, put: Callable[[Any], None]) -> Callable[[], Any]:
    left = [put]  # a try that was given up and returns after all may be the second one to end

    def keep(result: Any) -> None:
        first = None
        with suppress(IndexError):
            first = left.pop()
        if first is not None:
            first(result)

    if sample.asynchronous:

        async def awaited() -> Any:
            result = await sample.call()
            keep(result)
            return result

        return awaited

    def called() -> Any:
        result = sample.call()
        keep(result)
        return result

    return called


def _thawing(kept: Kept, frozen: bytes, sample: Sample, report: Callable[[str], None]) -> Callable[[], Any]:
    def thawed() -> tuple[Any, bool]:
        with suppress(Exception):  # another version of a class, an object of a script that is no longer there
            return kept.thaw(frozen), True
        report("A result of the interrupted run cannot be read")
        return None, False

    if sample.asynchronous:

        async def awaited() -> Any:
            result, known = thawed()
            return result if known else await sample.call()

        return awaited

    def called() -> Any:
        result, known = thawed()
        return result if known else sample.call()

    return called
