"""How ``gepa.optimize_anything``'s adapter evaluates under flash: as its user declared with the host's own options."""

from __future__ import annotations

import inspect
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from flashevolve_plugins.adapters.gepa.evaluation import PlainEvaluator

if TYPE_CHECKING:
    from collections.abc import Callable

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
        return PlainEvaluator(
            adapter, "serial", slots, name="batch_evaluator", alternatives=("batch",), scorers=_scorers(adapter)
        )
    return PlainEvaluator(
        adapter,
        "example" if adapter.parallel else "serial",
        slots,
        name=f"EngineConfig(parallel={adapter.parallel})",
        calls_per_example=1 if refiner is None else 1 + refiner.max_refinements,
        scorers=_scorers(adapter),
    )


def _scorers(adapter: Any) -> list[Callable[..., Any]]:
    """The user's own functions, out of what the host has wrapped around them."""
    alone, together = adapter.evaluator, adapter._batch_evaluator
    with suppress(AttributeError, TypeError):
        alone = inspect.getclosurevars(alone._wrapped).nonlocals.get("evaluator_fn", alone)
    return [each for each in (alone, getattr(together, "_fn", together)) if each is not None]
