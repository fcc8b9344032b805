"""How a host's adapter evaluates: what may run at once, and how pieces become the batch that the host would have."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gepa.adapters.default_adapter.default_adapter import DefaultAdapter
from gepa.core.adapter import EvaluationBatch, default_batch_evaluate

from flashevolve_plugins._errors import UnknownNameError, UsageError
from flashevolve_plugins.adapters.gepa.declare import declare, declared_evaluator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashevolve_plugins._flash import Granularity

logger = logging.getLogger("flashevolve_plugins")

DEFAULT_SLOTS = 8
GRANULARITIES = ("example", "batch", "serial")
#: A host adapter may carry this attribute to declare what it can do at once: "example", "batch" or "serial".
DECLARATION = "flashevolve_evaluate"


class Evaluator(Protocol):
    """Evaluates for one run. ``evaluate`` runs in a slot; the rest on the caller's thread."""

    granularity: Granularity
    #: The host's own number of evaluations at once.
    slots: int
    #: Whether the adapter's own proposer may be called from several threads at once.
    concurrent_proposals: bool
    #: Whether :meth:`dataset_adapter` gives adapters that may build reflective datasets at once.
    concurrent_datasets: bool
    #: Base URLs of the servers that the run will call, as far as they are known.
    urls: Sequence[str]

    def dataset_adapter(self, item: int) -> Any:
        """The adapter that builds an item's reflective datasets."""
        ...

    def evaluate(self, candidate: dict[str, str], batch: list[Any], *, capture_traces: bool) -> EvaluationBatch:
        """Evaluate a candidate on a batch."""
        ...

    def merge(self, parts: Sequence[EvaluationBatch]) -> EvaluationBatch:
        """Join the parts of one batch, in order."""
        ...


@dataclass
class PlainEvaluator:
    """Calls the adapter as the host does, on whole batches or on batches of one.

    Args:
        adapter: the host's adapter.
        granularity: what may run at once.
        slots: the host's own number of evaluations at once.
    """

    adapter: Any
    granularity: Granularity
    slots: int = DEFAULT_SLOTS
    concurrent_proposals: bool = False
    concurrent_datasets: bool = False
    urls: Sequence[str] = ()

    def dataset_adapter(self, item: int) -> Any:
        """The adapter itself: it may draw from a generator of its own."""
        del item
        return self.adapter

    def evaluate(self, candidate: dict[str, str], batch: list[Any], *, capture_traces: bool) -> EvaluationBatch:
        """Evaluate a candidate on a batch."""
        if not capture_traces:
            return self.adapter.evaluate(batch, candidate, capture_traces=False)
        batch_evaluate = getattr(self.adapter, "batch_evaluate", None)
        items = [(candidate, batch)]
        return (default_batch_evaluate(self.adapter, items) if batch_evaluate is None else batch_evaluate(items))[0]

    def merge(self, parts: Sequence[EvaluationBatch]) -> EvaluationBatch:
        """Join the parts of one batch, in order."""
        return merge_batches(parts)


def merge_batches(parts: Sequence[EvaluationBatch]) -> EvaluationBatch:
    """Join evaluation batches end to end. What one part lacks (traces, objective scores), the whole lacks."""
    if len(parts) == 1:
        return parts[0]
    traces = [part.trajectories for part in parts]
    objectives = [part.objective_scores for part in parts]
    calls = [part.num_metric_calls for part in parts]
    return EvaluationBatch(
        outputs=[output for part in parts for output in part.outputs],
        scores=[score for part in parts for score in part.scores],
        trajectories=None if None in traces else [trace for part in traces for trace in part],
        objective_scores=None if None in objectives else [scores for part in objectives for scores in part],
        num_metric_calls=None
        if all(count is None for count in calls)
        else sum(len(part.scores) if count is None else count for part, count in zip(parts, calls, strict=True)),
    )


# With a model of its own; a user's function in its place may not expect several calls at once.
declare(
    lambda adapter: type(adapter) is DefaultAdapter and adapter._lm is not None,
    lambda adapter: PlainEvaluator(adapter, "example", slots=adapter.max_litellm_workers),
)


def evaluator_for(adapter: Any, asked: Granularity | None, *, lockstep: bool = False) -> Evaluator:
    """The evaluator of a host adapter.

    Args:
        adapter: the host's adapter.
        asked: what the user's ``Flash(evaluate=...)`` says; it wins over what the adapter says of itself.
        lockstep: nothing runs at once anyway, so a declaration is neither missed nor read.

    Raises:
        UsageError: an adapter that we declare is asked to evaluate in another way.
        UnknownNameError: the adapter declares something else than the known granularities.
    """
    known = declared_evaluator(adapter)
    if known is not None:
        if asked not in {None, known.granularity}:
            raise UsageError(
                f"evaluate={asked!r} does not go with {type(adapter).__name__}, which evaluates {known.granularity} by "
                f"{known.granularity}: leave it out; max_concurrency bounds how many run at once."
            )
        return known
    declared = "serial" if lockstep else asked or getattr(adapter, DECLARATION, None)
    if declared is None:
        logger.warning(
            "%s does not say what it can evaluate at once, so its batches run one at a time: set %s = 'example' "
            "(or 'batch') on it, or pass Flash(evaluate='example'), if several threads may call its evaluate at once.",
            type(adapter).__name__,
            DECLARATION,
        )
        declared = "serial"
    if declared not in GRANULARITIES:
        raise UnknownNameError(f"{type(adapter).__name__}.{DECLARATION}", declared, GRANULARITIES)
    return PlainEvaluator(adapter, declared)
