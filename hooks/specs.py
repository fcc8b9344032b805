"""Every hook: when it fires, and on which thread. All fire on the thread that called the host, one at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from flashevolve_plugins._model import ItemRecord, ItemView, PoolEntry
    from flashevolve_plugins._policies import Judgement
    from flashevolve_plugins._pool import Pool
    from flashevolve_plugins._snapshot import Snapshot
    from flashevolve_plugins.hooks.registry import AdapterRegistry, PolicyRegistry

PROJECT = "flashevolve"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def flashevolve_register_policies(registry: PolicyRegistry) -> None:
    """Register staleness policies by name.

    Fires once per process, on the thread that first asks for a policy.

    Args:
        registry: where to add them.
    """


@hookspec
def flashevolve_register_adapters(registry: AdapterRegistry) -> None:
    """Register adapters by the host package they watch.

    Fires once per process, on the thread that first imports a host or makes a ``Flash``.

    Args:
        registry: where to add them.
    """


@hookspec(firstresult=True)
def flashevolve_judge_stale(item: ItemView, pool: Pool) -> Judgement | None:
    """Decide whether an item made from an older pool goes on. The first result that is not ``None`` wins.

    Fires on the caller's thread before a sample of the item starts, whenever the pool has changed since the item was
    born or last judged; for the last time before its validation. If no plugin answers, the item goes on. A plugin that
    raises fails the item.

    Args:
        item: the item, with its staleness.
        pool: all admitted artifacts; do not change it.
    """


@hookspec
def flashevolve_run_started(snapshot: Snapshot) -> None:
    """Observe that a run is about to offer its first item. Fires on the caller's thread.

    Args:
        snapshot: the statistics at that moment.
    """


@hookspec
def flashevolve_stage_started(item: int, stage: str) -> None:
    """Observe that the first sample of an item's stage started. Fires on the caller's thread.

    Args:
        item: the item's number.
        stage: the stage's name.
    """


@hookspec
def flashevolve_stage_finished(item: int, stage: str) -> None:
    """Observe that every sample of an item's stage ended. Fires on the caller's thread.

    Args:
        item: the item's number.
        stage: the stage's name.
    """


@hookspec
def flashevolve_pool_updated(entry: PoolEntry) -> None:
    """Observe that an artifact entered the pool and its host knows. Fires on the caller's thread.

    Args:
        entry: the new entry.
    """


@hookspec
def flashevolve_item_ended(record: ItemRecord) -> None:
    """Observe the terminal record of an item, once per item. Fires on the caller's thread, after its host was told.

    Args:
        record: the record.
    """


@hookspec
def flashevolve_snapshot(snapshot: Snapshot) -> None:
    """Observe the run's statistics, at most twice a second. Fires on the caller's thread.

    Args:
        snapshot: the statistics now.
    """


@hookspec
def flashevolve_run_finished(snapshot: Snapshot) -> None:
    """Observe that the run is over. Fires on the caller's thread.

    Args:
        snapshot: the last statistics.
    """
