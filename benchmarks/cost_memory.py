"""What ended items leave behind: objects of ours, memory that our code took, and results that the host did not keep."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gepa.core.adapter import EvaluationBatch

import flashevolve_plugins
from flashevolve_plugins.benchmarks.cost_figures import Figure
from flashevolve_plugins.benchmarks.cost_pool import Adapter, optimize
from flashevolve_plugins.hooks import hookimpl

if TYPE_CHECKING:
    from flashevolve_plugins._flash import Clock
    from flashevolve_plugins._model import ItemRecord

ITEMS = (200, 1_200)  # ended items between which growth is measured
SLOTS = 16
PACKAGE = "flashevolve_plugins"
ADMITTED = frozenset({"PoolEntry"})  # one per admitted artifact, by design


class Payload:
    """An output or a trace of one example, which can be watched."""


class Watched(Adapter):
    """Whose outputs and traces are watched.

    Args:
        accepted: share of the proposals that beat their parent.
    """

    def __init__(self, accepted: float) -> None:
        super().__init__(accepted)
        self.alive: weakref.WeakSet[Payload] = weakref.WeakSet()

    def evaluate(self, batch: list[Any], candidate: dict[str, str], *, capture_traces: bool = False) -> Any:
        """Score every example."""
        scores = super().evaluate(batch, candidate).scores
        outputs, inner = [Payload() for _ in batch], [Payload() for _ in batch]
        self.alive.update([*outputs, *inner])
        traces = [{"payload": each, "feedback": ""} for each in inner] if capture_traces else None
        return EvaluationBatch(outputs=outputs, scores=scores, trajectories=traces)


class Growth:
    """Counts at two numbers of ended items, and then ends the run: a plugin, and a stopper of the host's.

    Args:
        adapter: whose payloads are watched.
        items: the two numbers.
    """

    def __init__(self, adapter: Watched, items: tuple[int, int]) -> None:
        self._adapter = adapter
        self._items = items
        self._ended = 0
        self.objects: list[int] = []
        self.payloads: list[int] = []
        self.bytes: list[int] = []

    @hookimpl
    def flashevolve_item_ended(self, record: ItemRecord) -> None:
        """Count."""
        del record
        self._ended += 1
        if self._ended not in self._items:
            return
        gc.collect()
        self.objects.append(sum(_is_ours(type(each)) for each in gc.get_objects()))
        self.payloads.append(len(self._adapter.alive))
        if tracemalloc.is_tracing():
            ours = tracemalloc.Filter(inclusive=True, filename_pattern=f"{Path(flashevolve_plugins.__file__).parent}/*")
            benchmarks = tracemalloc.Filter(inclusive=False, filename_pattern=f"*{PACKAGE}/benchmarks/*")
            traces = tracemalloc.take_snapshot().filter_traces((ours, benchmarks))
            self.bytes.append(sum(each.size for each in traces.traces))

    def __call__(self, state: Any) -> bool:
        """Whether the run is over."""
        del state
        return self._ended >= self._items[1]

    def per_item(self, counts: list[int]) -> float:
        """How much a count grew per ended item."""
        first, last = self._items
        return (counts[1] - counts[0]) / (last - first)


def _is_ours(kind: type) -> bool:
    module = getattr(kind, "__module__", "")
    return isinstance(module, str) and module.split(".")[0] == PACKAGE and kind.__name__ not in ADMITTED


def grow(clock: Clock, items: tuple[int, int] = ITEMS, accepted: float = 0.05) -> tuple[Growth, int]:
    """Run until so many items have ended.

    Args:
        clock: ``"local"`` for threads, or ``"virtual"``.
        items: two numbers of ended items.
        accepted: share of the proposals that enter the pool.

    Returns:
        What was counted, and the payloads that are alive once the run is over.
    """
    adapter = Watched(accepted)
    growth = Growth(adapter, items)
    optimize(adapter, slots=SLOTS, clock=clock, plugins=[growth], stop_callbacks=[growth], track_best_outputs=False)
    gc.collect()
    return growth, len(adapter.alive)


def measure(items: tuple[int, int] = ITEMS) -> list[Figure]:
    """Growth per ended item, on threads and in virtual time.

    Args:
        items: two numbers of ended items.
    """
    figures = []
    for clock in ("local", "virtual"):
        growth, left = grow(clock, items)
        figures += [
            Figure(f"{clock}: objects of ours left per ended item", growth.per_item(growth.objects), at_most=0.05),
            Figure(f"{clock}: outputs and traces left per ended item", growth.per_item(growth.payloads), at_most=0.05),
            Figure(f"{clock}: outputs and traces left by the whole run", left, at_most=0),
        ]
    tracemalloc.start()
    try:
        growth, _ = grow("virtual", items)
    finally:
        tracemalloc.stop()
    name = "memory taken by our code and kept, per ended item, 5 % accepted"
    return [*figures, Figure(name, growth.per_item(growth.bytes), "bytes")]
