"""Every hook: when it fires, and on which thread. All fire on the thread that called the host, one at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashevolve_plugins._model import ItemRecord, ItemView, PoolEntry, Progress
    from flashevolve_plugins._policies import Batch, ExampleView, Judgement, Plan, Release, Work, Workers
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
def flashevolve_judge_stale(item: ItemView, pool: Pool) -> Judgement | Work | None:
    """Decide whether an item made from an older pool goes on. The first result that is not ``None`` wins.

    Fires on the caller's thread before a sample of the item starts, whenever the pool has changed since the item was
    born or last judged, and before each of its stages where ``item.unfounded`` says that its parent, provisional then,
    was not confirmed; for the last time before its validation. If no plugin answers, the item goes on. A plugin that
    raises fails the item.

    Work runs in a slot of the host's reflection. Then the hook fires again, with its result as ``item.answer``; work
    that gives ``None`` fails the item.

    Args:
        item: the item, with its staleness.
        pool: all admitted artifacts; do not change it.
    """


@hookspec(firstresult=True)
def flashevolve_merge_batch(waiting: Sequence[ItemView], pool: Pool, last: bool) -> Batch | None:  # noqa: FBT001 - pluggy calls by name
    """Decide what leaves the merge queue. The first result that is not ``None`` wins.

    Where a plugin of the run implements this hook, an item that passed its gate waits in the queue instead of going to
    its validation. Fires on the caller's thread when a validation may start and the seed is in the pool, after every
    change: an item came to wait, an item ended, an artifact entered the pool. If no plugin answers, nothing leaves. A
    plugin that raises stops the run, whose state is kept.

    Args:
        waiting: the items that wait, oldest first, with their evidence; at least one.
        pool: all admitted artifacts; do not change it.
        last: whether nothing else is under way, and nothing more will be offered until something leaves: the run is
            about to end, or the items in the queue fill ``max_items``. If nothing leaves, all that waits is discarded.
    """


@hookspec(firstresult=True)
def flashevolve_release_stage(item: ItemView, progress: Progress, pool: Pool) -> Release | None:
    """Decide whether a stage that runs is left before its last sample has ended. The first result not ``None`` wins.

    Fires on the caller's thread after every sample of a stage that evaluates, while others of it wait or run; of one
    with more than 200 samples after every hundredth part of them. Samples that have started are paid for. If no plugin
    answers, the stage goes on. A plugin that raises fails the item.

    Args:
        item: the item.
        progress: what is known by now.
        pool: all admitted artifacts; do not change it.
    """


@hookspec(firstresult=True)
def flashevolve_admit_provisional(item: ItemView, progress: Progress, pool: Pool) -> bool | None:
    """Decide whether an artifact may be built on before its validation has ended. The first result not ``None`` wins.

    Fires on the caller's thread after every sample of a validation, until the answer is ``True``; and once more when
    the last one has ended: ``True`` then confirms the artifact. If no plugin answers, it is not admitted before. A
    plugin that raises fails the item.

    The artifact enters the pool when its validation has ended, confirmed or not. What was made from it waits for that,
    and where it is not confirmed, goes to the staleness policy with ``item.unfounded``.

    Args:
        item: the item.
        progress: what is known by now.
        pool: all admitted artifacts, the provisional ones beside them; do not change it.
    """


@hookspec(firstresult=True)
def flashevolve_plan(snapshot: Snapshot) -> Plan | None:
    """Decide how much may be under way. The first result that is not ``None`` wins.

    Fires on the caller's thread before the first item is offered and after every item that ended. If no plugin answers,
    things stay as they are. A plugin that raises stops the run, whose state is kept.

    Args:
        snapshot: the statistics now: what is left of the budget, what is in flight, what came of it.
    """


@hookspec(firstresult=True)
def flashevolve_control(snapshot: Snapshot) -> Workers | None:
    """Decide how many items may be at work in each stage. The first result that is not ``None`` wins.

    Fires on the caller's thread before the run's first sample, then once per control period of the driver's clock: the
    attribute ``period``, in seconds, of the plugin that is asked first, 10 if it has none. If no plugin answers, things
    stay as they are. A plugin that raises stops the run, whose state is kept.

    Args:
        snapshot: the statistics now: workers, items at work and items that have passed, by stage, and what waits.
    """


@hookspec(firstresult=True)
def flashevolve_order_samples(stage: str, examples: Sequence[ExampleView], pool: Pool) -> Sequence[int] | None:
    """Decide in which order the samples of a validation start. The first result that is not ``None`` wins.

    Fires on the caller's thread when a validation's samples are about to be made, the seed's included, once for each
    artifact; not in lockstep, and not where the host's adapter evaluates whole batches. Every example runs in any case,
    and the host gets the results in its own order. If no plugin answers, samples start in that order. A plugin that
    raises fails the item.

    The answer holds the position of each example in ``examples`` once, the first to start first.

    Args:
        stage: the stage's name.
        examples: what is known of each, in the host's order.
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
    """Observe that every sample of an item's stage ended, or that it was handed on. Fires on the caller's thread.

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
