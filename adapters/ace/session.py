"""One run of a host: which item comes next, and the one place where the live playbook changes."""

from __future__ import annotations

import logging
from collections import deque
from math import nan
from typing import TYPE_CHECKING

from flashevolve_plugins._connection import require_connections
from flashevolve_plugins._driver import LATER
from flashevolve_plugins._errors import BackendError, FlashEvolveError
from flashevolve_plugins._model import PoolEntry, Terminal
from flashevolve_plugins.adapters.ace.entries import Entries, following
from flashevolve_plugins.adapters.ace.host import View
from flashevolve_plugins.adapters.ace.items import extra_body, merge_body, turn_body

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashevolve_plugins._bodies import Body, Ended
    from flashevolve_plugins._driver import Driver
    from flashevolve_plugins._model import ItemRecord
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
        self.view = View(driver.pool.version, host.view(), Entries(host.entries()))
        self.failures = 0
        self.first_failure = ""
        self._state = state
        self._bound = bound
        self._lockstep = lockstep
        self._urls = host.urls if check_connection and not lockstep else ()
        done = state.done if state is not None else set()
        self._turns = deque(turn for turn in host.turns if turn.number not in done)
        self._extras: deque[Extra] = deque()
        self._open: dict[int, Turn] = {}  # item -> its turn
        self._applied: dict[int, Lesson] = {}  # turn's number -> what is in the playbook, until its item ends
        self._lessons: dict[int, Lesson] = {}  # item -> what waits in the merge queue
        self._failing: list[tuple[Turn, ItemRecord]] = []  # what failed since the last success
        self._broken: Exception | None = None  # what the host raised as it was told
        self._warned = False
        self._last_end = driver.now()
        #: Whether the playbook is just being changed: what stands in it then belongs in no file.
        self.applying = False

    # -- offers -----------------------------------------------------------------------------------------------------

    def source(self, number: int) -> Body | None:
        """The next item's body: what is due beside the turns first."""
        self._extras.extend(self.host.extras())
        if not self._open and not (self._turns and self._may_begin(self._turns[0])):
            self.settle_failures()  # nothing will show any more whose fault they were
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
        """Change the live playbook on behalf of an item, and tell the host; whether anything changed."""
        self.applying = True
        try:
            changed = self.host.apply(lessons, delta)
            for lesson in lessons:
                self._tell(lesson)
        except Exception:
            self.applying = False  # a host that raises has changed nothing
            raise
        self.applying = False
        if self._state is not None:
            self._state.note([lesson.turn for lesson in lessons], self.host)
        if not changed:
            return False
        version = self.driver.pool.version + 1
        entries = following(self.view.entries, self.host.entries())
        self.view = View(version, self.host.view(), entries)
        self.driver.publish(number, [PoolEntry(version, entries, nan, (version - 1,), number)])
        return True

    def _tell(self, lesson: Lesson) -> None:
        self._applied[lesson.turn.number] = lesson
        try:
            self.host.tell(lesson)
        except Exception as error:  # noqa: BLE001 - the lesson is applied; the run ends when its item does
            self._broken = self._broken or error

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
        if self._broken is not None:
            raise self._broken
        lesson = self._applied.pop(turn.number, None)
        if lesson is not None:
            self.settle_failures()
            if ended.record.error is not None:
                self._warn_of_policy(ended.record)
            self.host.call_back(lesson)
        elif ended.record.terminal is not Terminal.CANCELLED:
            self._failed(turn, ended)
        return True

    def settle_failures(self) -> None:
        """What failed so far is over. Until a success, it may be the server's fault, and a resume tries again."""
        failing, self._failing = self._failing, []
        for turn, record in failing:
            self.host.failed(turn, record.error, record.reason)
        if self._state is not None and failing and self.host.keeps_failures:
            self._state.note([turn for turn, _ in failing], self.host)

    def _warn_of_policy(self, record: ItemRecord) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "Item %s: %s. The rest of its delta is applied. This is said once.", record.number, record.error
            )

    def require_all_begun(self) -> None:
        """Every sample has had its turn.

        Raises:
            FlashEvolveError: some never began.
        """
        if self._turns:
            raise FlashEvolveError(
                f"The run ended before {len(self._turns)} of {len(self.host.turns)} samples had begun: if it was "
                "resumed, resume it with the options that it began with."
            )

    def _failed(self, turn: Turn, ended: Ended) -> None:
        error = ended.record.error
        if error is not None and self.host.raises and self._lockstep:
            raise error
        self.failures += 1
        self.first_failure = self.first_failure or ended.record.reason
        self._failing.append((turn, ended.record))
        if self._lockstep:
            self.settle_failures()
        if len(self._failing) == ALARM_AFTER and not self._lockstep:
            raise BackendError(
                f"{ALARM_AFTER} samples in a row failed ({ended.record.reason}): correct that, or lower "
                "max_concurrency if the server limits requests, then run again. What was learned before is kept."
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
