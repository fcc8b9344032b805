"""The merge queue: who waits in it, and when it is asked who leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashevolve_plugins import _events as ev
from flashevolve_plugins._errors import InvalidTransition

if TYPE_CHECKING:
    from collections.abc import Iterable, Sized


class MergeQueue:
    """Numbers of items; what becomes of the items themselves is up to the Scheduler.

    Args:
        validations: items that left it to be validated, alone or merged, at once at most.
    """

    def __init__(self, validations: int) -> None:
        self.validations = validations
        #: Numbers of the items that wait, oldest first.
        self.waiting: dict[int, None] = {}
        #: Whether anything has happened since it was last asked that its policy may care about.
        self.changed = False
        self._validating: set[int] = set()  # what left it and has not ended
        self._asked = self._last = False

    def consult(self, items: Sized, *, offering: bool) -> ev.ConsultQueue | None:
        """The question who leaves, when a validation may start, and something changed or nothing else will.

        Args:
            items: all items in flight.
            offering: whether another one may come.
        """
        if self._asked or len(self._validating) >= self.validations:
            return None
        last = not offering and len(self.waiting) == len(items)
        if not self.changed and not last:
            return None
        self.changed, self._asked, self._last = False, True, last
        return ev.ConsultQueue(tuple(self.waiting), last)

    # -- answers ----------------------------------------------------------------------------------------------------

    def take(self, numbers: Iterable[int], leader: int) -> None:
        """These leave, to be validated as item ``leader``."""
        self._answer()
        for number in numbers:
            del self.waiting[number]
        self._validating.add(leader)
        self.changed = True

    def wait(self) -> tuple[int, ...]:
        """Nothing leaves now. Gives those that nothing will ever take, if this was the last call."""
        left = tuple(self.waiting) if self._last else ()
        self._answer()
        return left

    def drop(self, number: int) -> None:
        """This one leaves for good, before the answer. If it was the last call, there will be another one."""
        del self.waiting[number]
        self._last = False

    def _answer(self) -> None:
        if not self._asked:
            raise InvalidTransition(0, "leave the merge queue: it was not consulted", ())
        self._asked = self._last = False

    # -- what happens to items --------------------------------------------------------------------------------------

    def add(self, number: int) -> None:
        """An item comes to wait, perhaps again: its merge failed, or it was patched after it was released."""
        self.waiting[number] = None
        self._validating.discard(number)
        self.changed = True

    def leave(self, number: int) -> None:
        """An item is to end, whether it waits or not."""
        self.waiting.pop(number, None)

    def ended(self, number: int) -> None:
        """An item has ended."""
        self._validating.discard(number)
        self.changed = True
