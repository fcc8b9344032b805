"""How ``gepa.optimize_anything``'s adapter evaluates under flash: as its user declared with the host's own options."""

from __future__ import annotations

from typing import Any

from flashevolve_plugins.adapters.gepa.evaluation import PlainEvaluator

UNBOUNDED = 32  # slots where max_workers=None lets the host start a thread per example


def anything_evaluator(adapter: Any) -> PlainEvaluator:
    """The evaluator of an ``OptimizeAnythingAdapter``.

    - ``parallel=True``: example by example, ``max_workers`` at once. The host's own thread pools are not used: it
      starts none for a single example.
    - ``parallel=False``: one batch at a time.
    - a ``batch_evaluator``: all pairs of a stage in one call, one call at a time unless the run says ``"batch"``. With
      a refiner the host calls it example by example, so that ``parallel`` decides.

    Args:
        adapter: the host's adapter.
    """
    refiner = adapter.refiner_config
    slots = adapter.max_workers or UNBOUNDED
    if adapter._batch_evaluator is not None and refiner is None:
        return PlainEvaluator(adapter, "serial", slots, name="batch_evaluator", alternatives=("batch",))
    return PlainEvaluator(
        adapter,
        "example" if adapter.parallel else "serial",
        slots,
        name=f"EngineConfig(parallel={adapter.parallel})",
        calls_per_example=1 if refiner is None else 1 + refiner.max_refinements,
    )
