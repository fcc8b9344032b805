"""One run of a host: which item comes next, and the one place where the live playbook changes."""

from __future__ import annotations

import logging
from collections import deque
from math import nan
from typing import TYPE_CHECKING

from flashevolve_plugins._connection import require_connections
from flashevolve_plugins._driver import LATER
from flashevolve_plugins._errors import BackendError
from flashevolve_plugins._model import PoolEntry, Terminal
from flashevolve_plugins.adapters.ace.host import View
from flashevolve_plugins.adapters.ace.items import extra_body, merge_body, turn_body

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flashevolve_plugins._bodies import Body
    from flashevolve_plugins._driver import Driver, Ended
    from flashevolve_plugins._policies import Batch
    from flashevolve_plugins.adapters.ace.host import Delta, Extra, Lesson, PlaybookHost, Turn
    from flashevolve_plugins.adapters.ace.resume import StateFile

logger = logging.getLogger("flashevolve_plugins")

ALARM_AFTER = 10  # failures in a row
SILENT = 10.0  # seconds without the end of a call, after which the servers are asked whether they are there


class Session:
    """Offers turns, applies deltas, tells the host.

    Args:
        host: the host's run.
        driver: the driver, whose pool holds the playbook as it was at the start.
        state: where the run is kept for a resume, if it is kept.
        bound: deltas of earlier epochs that a sample may lag behind, or ``None`` for any number.
        lockstep: whether all is as in the host's own loop; then what its loop raises is raised, and no server is asked.
        check_connection: whether silent servers are asked.
    """

    def __init__(  # noqa: PLR0913 - by name alone
        self,
        host: PlaybookHost,
        driver: Driver,
        state: StateFile | None,
        *,
        bound: int | None,
        lockstep: bool,
        check_connection: bool,
    ) -> None:
        self.host = host
        self.driver = driver
        self.holds = driver.scheduler.holds
        self.view = View(driver.pool.version, host.view(), host.entries())
        self.failures = 0
        self._state = state
        self._bound = bound
        self._lockstep = lockstep
        self._urls = host.urls if check_connection and not lockstep else ()
        done = state.done if state is not None else set()
        self._turns = deque(turn for turn in host.turns if turn.number not in done)
        self._extras: deque[Extra] = deque()
        self._open: dict[int, Turn] = {}  # item -> its turn
        self._untold: dict[int, Lesson] = {}  # turn's number -> what is in the playbook, and the host was not told
        self._lessons: dict[int, Lesson] = {}  # item -> what waits in the merge queue
        self._failed_in_a_row = 0
        self._last_end = driver.now()

    # -- offers -----------------------------------------------------------------------------------------------------

    def source(self, number: int) -> Body | None:
        """The next item's body: what is due beside the turns first."""
        self._extras.extend(self.host.extras())
        if self._extras:
            return extra_body(self._extras.popleft())
        if not self._turns:
            return LATER if self._open else None
        turn = self._turns[0]
        if not self._may_begin(turn):
            return LATER  # type: ignore[no-any-return]
        self._open[number] = self._turns.popleft()
        return turn_body(self, number, turn)

    def _may_begin(self, turn: Turn) -> bool:
        before = sum(each.epoch < turn.epoch for each in self._open.values())
        return (self._bound is None or before <= self._bound) and self.host.may_begin(turn)

    def merge(self, number: int, batch: Batch) -> Body:
        """The body of a curation of what waits in the queue."""
        return merge_body(self, number, [self._lessons[member] for member in batch.members])

    def hold(self, number: int, lesson: Lesson) -> None:
        """A lesson comes to wait."""
        self._lessons[number] = lesson

    # -- the playbook -----------------------------------------------------------------------------------------------

    def apply(self, number: int, lessons: Sequence[Lesson], delta: Delta) -> bool:
        """Change the live playbook on behalf of an item; whether anything changed."""
        changed = self.host.apply(lessons, delta)
        self._untold.update((lesson.turn.number, lesson) for lesson in lessons)
        if not changed:
            return False
        version = self.driver.pool.version + 1
        entries: Mapping[str, str] = self.host.entries()
        if entries == self.view.entries:  # counters alone: many versions share one mapping
            entries = self.view.entries
        self.view = View(version, self.host.view(), entries)
        self.driver.publish(number, [PoolEntry(version, entries, nan, (version - 1,), number)])
        return True

    # -- ends -------------------------------------------------------------------------------------------------------

    def tell(self, ended: Ended) -> bool:
        """Tell the host of an item that is over; whether statistics count it.

        Raises:
            BackendError: nothing but failures.
        """
        self._last_end = self.driver.now()
        turn = self._open.pop(ended.number, None)
        self._lessons.pop(ended.number, None)
        if turn is None:
            if ended.record.error is not None and not ended.record.members:
                raise ended.record.error  # what the host makes of an extra's results, in its own loop as well
            return bool(ended.record.members)
        lesson = self._untold.get(turn.number)
        if lesson is not None:
            self._tell(lesson)
            self._failed_in_a_row = 0
            self.host.call_back(lesson)
        elif ended.record.terminal is not Terminal.CANCELLED:
            self._failed(turn, ended)
            if self._state is not None:
                self._state.note(turn, self.host, told=False)
        return True

    def _tell(self, lesson: Lesson) -> None:
        del self._untold[lesson.turn.number]
        self.host.tell(lesson)
        if self._state is not None:
            self._state.note(lesson.turn, self.host, told=True)

    def abandon(self) -> None:
        """The run ends early: tell the host of all that is in the playbook."""
        for lesson in tuple(self._untold.values()):
            self._tell(lesson)

    def _failed(self, turn: Turn, ended: Ended) -> None:
        error = ended.record.error
        if error is not None and self.host.raises and self._lockstep:
            raise error
        self.failures += 1
        self._failed_in_a_row += 1
        self.host.failed(turn, error, ended.record.reason)
        if self._failed_in_a_row == ALARM_AFTER and not self._lockstep:
            raise BackendError(
                f"{ALARM_AFTER} samples in a row failed ({ended.record.reason}): correct that, then run again. "
                "The playbook keeps what was learned before."
            ) from error

    def tick(self) -> None:
        """Ask for servers that have been silent, so that a dead one does not keep the run waiting.

        Raises:
            BackendError: one is not there.
        """
        now = self.driver.now()
        if self._urls and now - self._last_end > SILENT:
            self._last_end = now
            try:
                require_connections(self._urls)
            except BackendError as error:
                raise BackendError(
                    f"Nothing has come for {SILENT:.0f} seconds, and no server answers at {', '.join(self._urls)}: "
                    "start it, then run again. The playbook keeps what was learned before."
                ) from error
