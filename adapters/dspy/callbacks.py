"""dspy's evaluation callbacks: fired once for a stage, whatever became of its examples meanwhile."""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any, TypeAlias

import dspy
from dspy.evaluate.evaluate import Evaluate, EvaluationResult
from dspy.teleprompt.bootstrap_trace import FailedPrediction
from dspy.utils.callback import with_callbacks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: One row of an evaluation: example, prediction (with its trace in a pair, if there is one) and score.
Result: TypeAlias = tuple[Any, Any, Any]

LOGGER = "dspy.evaluate.evaluate"
_logger = logging.getLogger(LOGGER)


def tell_evaluation(adapter: Any, program: Any, batch: list[Any], results: Sequence[Result], *, traced: bool) -> None:
    """Say and log of a finished evaluation what the host's `DspyAdapter.evaluate` would have said and logged.

    Args:
        adapter: the host's live adapter.
        program: the candidate's program.
        batch: its examples.
        results: what became of them, in order.
        traced: whether the program gave pairs of a prediction and its trace.
    """
    size = adapter.reflection_minibatch_size
    metadata = {"metric_key": "eval_full"} if size is None or len(batch) > size else {"disable_logging": True}
    settings = {"devset": batch, "failure_score": adapter.failure_score}
    if traced:
        metric = None if getattr(adapter, "_flex_paths", ()) else adapter.metric_fn
        threads = adapter.num_threads or dspy.settings.num_threads
        evaluate = Evaluate(
            **settings,
            num_threads=threads,
            display_progress=True,
            provide_traceback=False,
            max_errors=len(batch) * 10,
        )
        _giving(results)(
            evaluate, program, metric=_metric_of_pairs(metric, adapter.failure_score), callback_metadata=metadata
        )
    else:
        evaluate = Evaluate(
            **settings,
            metric=adapter.metric_fn,
            num_threads=adapter.num_threads,
            provide_traceback=True,
            max_errors=len(batch) * 100,
        )
        _giving(results)(evaluate, program)


def _giving(results: Sequence[Result]) -> Callable[..., Any]:
    """An `Evaluate.__call__` whose results are known."""

    def evaluate(itself: Evaluate, *_: Any, **__: Any) -> EvaluationResult:
        reached, most = sum(score for *_, score in results), len(itself.devset)
        _logger.info("Average Metric: %s / %s (%s%%)", reached, most, round(100 * reached / most, 1))
        return EvaluationResult(score=round(100 * reached / most, 2), results=list(results))

    evaluate.__signature__ = inspect.signature(Evaluate.__call__)  # type: ignore[attr-defined]
    return with_callbacks(evaluate)  # type: ignore[no-any-return]


def _metric_of_pairs(metric: Callable[..., Any] | None, failure_score: float) -> Callable[..., Any]:
    """The metric of a program that gives pairs of a prediction and its trace."""

    def metric_of_pairs(example: Any, pair: tuple[Any, Any], trace: Any = None) -> Any:
        prediction, _ = pair
        if isinstance(prediction, FailedPrediction):
            return prediction.format_reward or failure_score
        return metric(example, prediction, trace) if metric else True

    return metric_of_pairs
