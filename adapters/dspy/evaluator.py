"""How ``dspy.GEPA``'s adapter evaluates under flash: example by example, on a program shared by its examples."""

from __future__ import annotations

import random
import threading
from copy import copy
from typing import TYPE_CHECKING, Any

import dspy
from dspy.utils.exceptions import AdapterParseError

from flashevolve_plugins._errors import BackendError
from flashevolve_plugins.adapters.dspy.awaiting import awaited_metric
from flashevolve_plugins.adapters.dspy.callbacks import LOGGER, tell_evaluation
from flashevolve_plugins.adapters.dspy.samples import ExampleEvaluator, merge
from flashevolve_plugins.adapters.gepa.overlay import overlay

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from gepa.core.adapter import EvaluationBatch

    from flashevolve_plugins._flash import Granularity

ALARM_AFTER = 10  # examples, the first ones: if all of them raise, nothing will ever work


class DspyEvaluator:
    """The :class:`~flashevolve_plugins.adapters.gepa.evaluation.Evaluator` of a ``DspyAdapter``.

    Args:
        adapter: the host's live adapter.
    """

    granularity: Granularity = "example"
    concurrent_datasets = True
    offers_early = False  # in trials through a server, runs ended lower with it; see the benchmarks
    name = ""
    alternatives: Sequence[Granularity] = ()
    calls_per_example = 1
    batch_evaluate = None
    loggers = (LOGGER,)

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter
        self._seed = copy(adapter.rng).random()
        self.slots: int = adapter.num_threads or dspy.settings.num_threads or 8
        self.concurrent_proposals = _has_builtin_proposers(adapter)
        self.urls: Sequence[str] = tuple(_base_urls(adapter))
        self._examples = ExampleEvaluator(adapter)
        self._lock = threading.Lock()
        self.feedback_calls = 0
        self._started = self._raised = 0
        self._alarm_after: int | None = ALARM_AFTER

    def dataset_adapter(self, item: int) -> Any:
        """The adapter with a generator of the item's own, whatever other items draw meanwhile."""
        own = {"rng": random.Random(f"{self._seed}:{item}"), "feedback_map": self._adapter.feedback_map}
        return overlay(self._adapter, own)

    def running(self) -> AbstractContextManager[None]:
        """Metrics may be ``async def``."""
        return awaited_metric(self._adapter, self._count_feedback)

    def _count_feedback(self) -> None:
        with self._lock:
            self.feedback_calls += 1

    def tell(
        self, candidate: dict[str, str], batch: list[Any], evaluation: EvaluationBatch, *, capture_traces: bool
    ) -> None:
        """Fire dspy's evaluation callbacks for a whole stage."""
        results = getattr(evaluation, "results", ())
        if results:
            traced = capture_traces or self._examples.traces_always
            program = self._examples.build(candidate, traced=traced) if dspy.settings.callbacks else None
            tell_evaluation(self._adapter, program, batch, results, traced=traced)

    def evaluate(self, candidate: dict[str, str], batch: list[Any], *, capture_traces: bool) -> EvaluationBatch:
        """Evaluate a candidate on examples, on the calling thread.

        Raises:
            BackendError: the first examples all raised.
        """
        return self.merge([self._evaluate(candidate, example, capture_traces=capture_traces) for example in batch])

    def _evaluate(self, candidate: dict[str, str], example: Any, *, capture_traces: bool) -> EvaluationBatch:
        if self._alarm_after is None:
            return self._examples.evaluate(candidate, example, capture_traces=capture_traces)
        with self._lock:
            self._started += 1
            watched = self._started <= (self._alarm_after or 0)
        failures: list[tuple[str, Exception]] = []
        part = self._examples.evaluate(
            candidate, example, capture_traces=capture_traces, on_failure=lambda *failure: failures.append(failure)
        )
        raised = [failure for failure in failures if not isinstance(failure[1], AdapterParseError)]
        with self._lock:
            if not raised:
                self._alarm_after = None  # something works
            self._raised += bool(raised and watched)
            alarm = self._alarm_after is not None and self._raised >= self._alarm_after
        if alarm:
            kind, error = raised[-1]
            raise BackendError(
                f"Every one of the first {self._raised} examples raised in the {kind} "
                f"({type(error).__name__}: {error}): correct the {kind}, then run again. Nothing else was spent."
            ) from error
        return part

    def merge(self, parts: Sequence[EvaluationBatch]) -> EvaluationBatch:
        """Join the parts of one batch, in order."""
        return merge(parts)


def _has_builtin_proposers(adapter: Any) -> bool:
    """Whether only dspy's own proposers write texts: a user's may not expect several calls at once."""
    builtin = getattr(adapter, "_builtin_instruction_proposer", adapter.custom_instruction_proposer is None)
    return bool(builtin) and getattr(adapter, "custom_code_proposer", None) is None


def _base_urls(adapter: Any) -> list[str]:
    """Base URLs that the run's models name themselves."""
    models = [dspy.settings.lm, adapter.reflection_lm]
    models += [predictor.lm for _, predictor in adapter.student.named_predictors()]
    settings = [getattr(model, "kwargs", None) or {} for model in models if model is not None]
    found = [each.get("api_base") or each.get("base_url") for each in settings]
    return [url for url in found if isinstance(url, str)]
