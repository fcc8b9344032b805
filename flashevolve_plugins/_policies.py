"""What the executor asks of policies and tells to observers. ``flashevolve_plugins.hooks`` answers with plugins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from flashevolve_plugins._model import Verdict

if TYPE_CHECKING:
    from flashevolve_plugins._model import ItemRecord, ItemView, PoolEntry
    from flashevolve_plugins._pool import Pool
    from flashevolve_plugins._snapshot import Snapshot


@dataclass(frozen=True)
class Judgement:
    """A verdict and its reason in one clause."""

    verdict: Verdict
    reason: str = ""


class Policies(Protocol):
    """Decisions and observations of one run. All calls come from the thread that called the host, one at a time."""

    def judge_stale(self, item: ItemView, pool: Pool) -> Judgement:
        """Whether a stale item goes on. Raises PluginError when the policy raised."""
        ...

    def stage_started(self, item: int, stage: str) -> None:
        """The first sample of a stage of an item started."""
        ...

    def stage_finished(self, item: int, stage: str) -> None:
        """Every sample of a stage of an item ended."""
        ...

    def pool_updated(self, entry: PoolEntry) -> None:
        """An artifact entered the pool."""
        ...

    def item_ended(self, record: ItemRecord) -> None:
        """An item reached its terminal and its host has been told."""
        ...

    def run_started(self, snapshot: Snapshot) -> None:
        """The run is about to offer its first item."""
        ...

    def snapshot(self, snapshot: Snapshot) -> None:
        """The run's statistics, at most twice a second."""
        ...

    def run_finished(self, snapshot: Snapshot) -> None:
        """The run is over."""
        ...


class AcceptAll:
    """Full Async: nothing is ever too stale, and nobody looks on."""

    def judge_stale(self, item: ItemView, pool: Pool) -> Judgement:
        """Accept."""
        del item, pool
        return Judgement(Verdict.ACCEPT)

    def stage_started(self, item: int, stage: str) -> None:
        """Ignore."""

    def stage_finished(self, item: int, stage: str) -> None:
        """Ignore."""

    def pool_updated(self, entry: PoolEntry) -> None:
        """Ignore."""

    def item_ended(self, record: ItemRecord) -> None:
        """Ignore."""

    def run_started(self, snapshot: Snapshot) -> None:
        """Ignore."""

    def snapshot(self, snapshot: Snapshot) -> None:
        """Ignore."""

    def run_finished(self, snapshot: Snapshot) -> None:
        """Ignore."""
