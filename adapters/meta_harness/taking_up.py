"""What a run keeps so that the same call goes on after a kill or a stop: proposals that were made, jobs that ended."""

from __future__ import annotations

import logging
import pickle
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._errors import UsageError
from flashevolve_plugins._keeping import Keeper, Pickled, pickled
from flashevolve_plugins._run_dir import require_trusted
from flashevolve_plugins._store import FILE, Store
from flashevolve_plugins.adapters.meta_harness.host import KeepingHost

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashevolve_plugins._flash import Flash
    from flashevolve_plugins._keeping import Kept
    from flashevolve_plugins.adapters.meta_harness.host import HarnessHost, Job, Proposal

logger = logging.getLogger("flashevolve_plugins")

RUN = "run"


@contextmanager
def opened(host: HarnessHost, flash: Flash, run_dir: str) -> Iterator[TakingUp | None]:
    """What is kept in a run's directory; ``None`` for a host that keeps all that it can itself, and in lockstep.

    Args:
        host: the run; it takes up what the directory holds.
        flash: the settings.
        run_dir: the run's directory, which is this run's alone.

    Raises:
        UsageError: the file cannot be used, others may write it, or it belongs to another run.
    """
    if flash.lockstep or not isinstance(host, KeepingHost):
        yield None
        return
    if not flash.trust_run_dir:
        require_trusted(run_dir, [FILE])
    store = Store(run_dir)
    try:
        yield TakingUp(store, host, flash, run_dir)
    finally:
        store.close()


class TakingUp:
    """Between a session and the run's store. All on the caller's thread.

    Args:
        store: the file.
        host: the run.
        flash: the settings.
        run_dir: for messages.
    """

    def __init__(self, store: Store, host: KeepingHost, flash: Flash, run_dir: str) -> None:
        self.keeper, self._store, self._host = Keeper(store), store, host
        self._with_results = flash.record == "full"
        self._own = host.fingerprint()
        self._again: deque[tuple[int, Any]] = deque()
        kept = store.run.get(RUN)
        if kept is not None and not kept["over"]:
            self._take_up(kept["of"], run_dir, anyway=flash.resume == "any")
        going_on = {row for row, _ in self._again}
        for row in store.items:
            if row.number not in going_on:
                self.keeper.drop(row.number)
        store.items = []
        self._note(over=False)

    def _take_up(self, kept: dict[str, str], run_dir: str, *, anyway: bool) -> None:
        differing = sorted(name for name, value in self._own.items() if kept.get(name) != value)
        if differing and not anyway:
            raise UsageError(
                f"run_dir={run_dir!r} was left in the middle of a run with another {' and '.join(differing)}: name "
                "another directory, or pass Flash(resume='any') to go on all the same."
            )
        recipes = {}
        for row in self._store.items:
            with suppress(Exception):  # what it was made of is no longer there: its proposal is paid for again
                recipes[row.number] = pickle.loads(row.recipe)  # noqa: S301 - the directory is trusted
        self._again.extend((row, recipes[row]) for row in self._host.take_up(recipes))
        logger.warning(
            "Taking up the run in %s: %s of %s candidates are over, and %s go on where they were.",
            run_dir,
            self._host.done,
            self._host.total,
            len(self._again),
        )

    @property
    def goes_on(self) -> bool:
        """Whether something is left that was made and has not ended."""
        return bool(self._again)

    def begin(self, number: int, version: int) -> tuple[Proposal, int]:
        """Begin the next of it as this item: the proposal, and its row."""
        row, recipe = self._again.popleft()
        return self._host.begin_taken_up(number, version, recipe), row

    @property
    def spent(self) -> int:
        """Candidates whose proposals are paid for."""
        return self._host.done + len(self._again)

    def _note(self, *, over: bool) -> None:
        self._store.put_run(RUN, {"of": self._own, "over": over})

    def over(self) -> None:
        """The run came to its end: the next one in the directory begins anew."""
        self._note(over=True)
        self.keeper.give_up()
        self.keeper.saved()
        self._store.forget_loose()

    def begun(self, proposal: Proposal, row: int | None = None) -> None:
        """A proposal is under way; ``row`` says as what it was before."""
        self.keeper.open(proposal.number, self._recipe(proposal), row)

    def changed(self, proposal: Proposal) -> None:
        """It was made, or is made again."""
        self.keeper.change(proposal.number, self._recipe(proposal))

    def changing(self, proposal: Proposal) -> None:
        """Its files are about to change: in between, it is of no use."""
        self.keeper.change(proposal.number, b"")
        self._store.flush()

    def ended(self, proposal: Proposal, *, goes_on: bool = False) -> None:
        """The host's directory holds what it came to; ``goes_on`` says that it was cancelled."""
        self.keeper.told([proposal.number], {}, goes_on=goes_on)
        self.keeper.saved()

    def _recipe(self, proposal: Proposal) -> bytes:
        try:
            return pickled(self._host.recipe(proposal))
        except Exception:  # noqa: BLE001 - whatever a proposer's own object raises as it is pickled
            return b""

    def kept(self, job: Job) -> Kept | None:
        """How a job's result is kept."""
        return None if job.key is None or not self._with_results else Pickled(job.key)
