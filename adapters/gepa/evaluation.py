"""How a host's adapter evaluates: what may run at once, and how pieces become the batch that the host would have."""

from __future__ import annotations

import logging
import pickle
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gepa.core.adapter import EvaluationBatch, default_batch_evaluate

from flashevolve_plugins._content import describe
from flashevolve_plugins._errors import UnknownNameError, UsageError
from flashevolve_plugins._event_loop import awaited, is_async
from flashevolve_plugins._keeping import pickled
from flashevolve_plugins.adapters.gepa.declare import DECLARATION, declared_evaluator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from flashevolve_plugins._event_loop import EventLoop
    from flashevolve_plugins._flash import Granularity

logger = logging.getLogger("flashevolve_plugins")

DEFAULT_SLOTS = 8
SCORERS = ("evaluator", "metric", "metric_fn")  # attributes of adapters that hold a function which scores
MEANINGS: dict[Granularity, str] = {
    "example": "example by example",
    "batch": "batch by batch",
    "serial": "one batch at a time",
}


class Evaluator(Protocol):
    """Evaluates for one run. ``evaluate`` runs in a slot; the rest on the caller's thread."""

    granularity: Granularity
    #: Whether ``evaluate`` gives coroutines, to be awaited on the run's event loop; lockstep does not ask.
    asynchronous: bool
    #: The host's own number of evaluations at once.
    slots: int
    #: Whether the adapter's own proposer may be called from several threads at once.
    concurrent_proposals: bool
    #: Whether :meth:`dataset_adapter` gives adapters that may build reflective datasets at once.
    concurrent_datasets: bool
    #: Whether proposals from the seed may be made while the seed is validated.
    offers_early: bool
    #: Base URLs of the servers that the run will call, as far as they are known.
    urls: Sequence[str]
    #: Names of Python loggers, beside the host's own, whose lines tell of progress.
    loggers: Sequence[str]
    #: What its user knows the adapter by; empty for its class's name.
    name: str
    #: What its user may ask for instead of ``granularity``.
    alternatives: Sequence[Granularity]
    #: Metric calls that one example takes at most, as the host counts them.
    calls_per_example: int
    #: Metric calls that reflective datasets have made so far, as far as they are known; no budget counts them.
    feedback_calls: int

    @property
    def batch_evaluate(self) -> Callable[[list[Any]], Any] | None:
        """The adapter's own evaluation of several (candidate, batch) pairs in one call, where batches stay whole.

        It gives a list of ``EvaluationBatch``, or where ``asynchronous`` a coroutine of one.
        """
        ...

    def running(self, loop: EventLoop) -> AbstractContextManager[None]:
        """Entered for the length of the run, lockstep or not, with the run's event loop."""
        ...

    def tell(
        self, candidate: dict[str, str], batch: list[Any], evaluation: EvaluationBatch, *, capture_traces: bool
    ) -> None:
        """The host's loop has come to an evaluation: say of it what the adapter's own would have said."""
        ...

    def dataset_adapter(self, item: int) -> Any:
        """The adapter that builds an item's reflective datasets."""
        ...

    def evaluate(self, candidate: dict[str, str], batch: list[Any], *, capture_traces: bool) -> Any:
        """Evaluate a candidate on a batch: an ``EvaluationBatch``, or where ``asynchronous`` a coroutine of one."""
        ...

    def merge(self, parts: Sequence[EvaluationBatch]) -> EvaluationBatch:
        """Join the parts of one batch, in order."""
        ...

    def freeze(self, candidate: dict[str, str], batch: list[Any], evaluation: EvaluationBatch) -> bytes | None:
        """An evaluation as bytes, for a run that is taken up; ``None`` if it is not worth keeping. Runs in a slot."""
        ...

    def thaw(self, candidate: dict[str, str], batch: list[Any], frozen: bytes) -> EvaluationBatch:
        """The evaluation again. Runs in a slot."""
        ...

    def content(self, example: Any) -> Any:
        """What counts of an example where it is compared with those of another process: a value that is digested."""
        ...

    def identity(self) -> tuple[Any, Any, Any]:
        """What the program, the metric and the models are, for a run that is taken up: values that are digested."""
        ...


@dataclass
class PlainEvaluator:
    """Calls the adapter as the host does, on whole batches or on batches of one.

    Args:
        adapter: the host's adapter.
        granularity: what may run at once.
        slots: the host's own number of evaluations at once.
        name: what its user knows the adapter by.
        alternatives: what its user may ask for instead of ``granularity``.
        calls_per_example: metric calls that one example takes at most.
        feedback_calls: none that we know of.
        asynchronous: whether the adapter's ``evaluate`` is a coroutine function; its ``batch_evaluate`` is used if it
            is one too.
        scorers: the user's functions that score, where the adapter holds them elsewhere than usual.
    """

    adapter: Any
    granularity: Granularity
    slots: int = DEFAULT_SLOTS
    concurrent_proposals: bool = False
    concurrent_datasets: bool = False
    offers_early: bool = True
    urls: Sequence[str] = ()
    loggers: Sequence[str] = ()
    name: str = ""
    alternatives: Sequence[Granularity] = ()
    calls_per_example: int = 1
    feedback_calls: int = 0
    asynchronous: bool = False
    scorers: Sequence[Callable[..., Any]] = ()

    @property
    def batch_evaluate(self) -> Callable[[list[Any]], Any] | None:
        """The adapter's own ``batch_evaluate``, where batches stay whole."""
        return None if self.granularity == "example" else self._batch_evaluate

    @property
    def _batch_evaluate(self) -> Callable[[list[Any]], Any] | None:
        own = getattr(self.adapter, "batch_evaluate", None)
        return own if is_async(own) == self.asynchronous else None

    def running(self, loop: EventLoop) -> AbstractContextManager[None]:
        """The adapter needs nothing around a run."""
        del loop
        return nullcontext()

    def tell(
        self, candidate: dict[str, str], batch: list[Any], evaluation: EvaluationBatch, *, capture_traces: bool
    ) -> None:
        """The adapter said what it says when it was called."""

    def dataset_adapter(self, item: int) -> Any:
        """The adapter itself: it may draw from a generator of its own."""
        del item
        return self.adapter

    def evaluate(self, candidate: dict[str, str], batch: list[Any], *, capture_traces: bool) -> Any:
        """Evaluate a candidate on a batch."""
        if self.asynchronous:
            return self._await(candidate, batch, capture_traces=capture_traces)
        if not capture_traces:
            return self.adapter.evaluate(batch, candidate, capture_traces=False)
        batch_evaluate = self._batch_evaluate
        items = [(candidate, batch)]
        return (default_batch_evaluate(self.adapter, items) if batch_evaluate is None else batch_evaluate(items))[0]

    async def _await(self, candidate: dict[str, str], batch: list[Any], *, capture_traces: bool) -> EvaluationBatch:
        if capture_traces and self._batch_evaluate is not None:
            return (await awaited(self._batch_evaluate([(candidate, batch)])))[0]
        return await awaited(self.adapter.evaluate(batch, candidate, capture_traces=capture_traces))

    def merge(self, parts: Sequence[EvaluationBatch]) -> EvaluationBatch:
        """Join the parts of one batch, in order."""
        return merge_batches(parts)

    def freeze(self, candidate: dict[str, str], batch: list[Any], evaluation: EvaluationBatch) -> bytes | None:
        """The evaluation, pickled."""
        del candidate, batch
        return pickled(evaluation)

    def thaw(self, candidate: dict[str, str], batch: list[Any], frozen: bytes) -> EvaluationBatch:
        """The evaluation again."""
        del candidate, batch
        evaluation: EvaluationBatch = pickle.loads(frozen)  # noqa: S301 - the directory is trusted
        return evaluation

    def content(self, example: Any) -> Any:
        """All of it."""
        return example

    def identity(self) -> tuple[Any, Any, Any]:
        """The adapter's class, which scores as well, the evaluator that it calls, and the name of its model."""
        model = getattr(self.adapter, "model", "")
        own = [getattr(self.adapter, name, None) for name in SCORERS]
        metric = [describe(each) for each in self.scorers or own if callable(each)]
        return describe(type(self.adapter)), metric, model if isinstance(model, str) else ""


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


def evaluator_for(
    adapter: Any, asked: Granularity | None, *, at_once: int | None = None, lockstep: bool = False
) -> Evaluator:
    """The evaluator of a host adapter.

    Args:
        adapter: the host's adapter.
        asked: what the user's ``Flash(evaluate=...)`` says; it wins over what the adapter says of itself.
        at_once: the user's ``Flash(max_concurrency=...)``.
        lockstep: nothing runs at once anyway, so a declaration is neither missed nor read.

    Raises:
        UsageError: an adapter that we declare is asked to evaluate in another way.
        UnknownNameError: the adapter declares something else than the known granularities.
    """
    known = declared_evaluator(adapter)
    if known is not None:
        _choose(known, known.name or type(adapter).__name__, asked, at_once, lockstep=lockstep)
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
    if declared not in MEANINGS:
        raise UnknownNameError(f"{type(adapter).__name__}.{DECLARATION}", declared, MEANINGS)
    return PlainEvaluator(adapter, declared, asynchronous=is_async(getattr(adapter, "evaluate", None)))


def _choose(evaluator: Evaluator, name: str, asked: Granularity | None, at_once: int | None, *, lockstep: bool) -> None:
    """Let a declared evaluator do what the user asks, or say what the user may ask for."""
    meaning, more = MEANINGS[evaluator.granularity], evaluator.alternatives
    if asked is not None and asked in more:
        evaluator.granularity = asked
    elif asked not in {None, evaluator.granularity}:
        remedy = f", or write evaluate={more[0]!r}" if more else ""
        if evaluator.granularity == "example":
            remedy = "; max_concurrency bounds how many run at once"
        raise UsageError(
            f"evaluate={asked!r} does not go with {name}, which evaluates {meaning}: leave it out{remedy}."
        )
    elif asked is None and more and evaluator.granularity == "serial" and not lockstep:
        logger.warning(
            "%s is called %s: pass Flash(evaluate=%r) if several threads may call it at once.", name, meaning, more[0]
        )
    elif evaluator.granularity == "serial" and at_once not in {None, 1}:
        logger.warning("%s evaluates %s, whatever max_concurrency=%s says.", name, meaning, at_once)
