"""How ``dspy.GEPA``'s adapter evaluates under flash: example by example, on a program shared by its examples."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import dspy
from dspy.utils.exceptions import AdapterParseError
from flashevolve_plugins._errors import BackendError
from flashevolve_plugins.adapters.dspy.samples import ExampleEvaluator, merge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashevolve_plugins._flash import Granularity
    from gepa.core.adapter import EvaluationBatch

ALARM_AFTER = 10  # examples that all raise, and none before them that did not


class DspyEvaluator:
    """The :class:`~flashevolve_plugins.adapters.gepa.evaluation.Evaluator` of a ``DspyAdapter``.

    Args:
        adapter: the host's live adapter.
    """

    granularity: Granularity = "example"

    def __init__(self, adapter: Any) -> None:
        self.slots: int = adapter.num_threads or dspy.settings.num_threads or 8
        self.concurrent_proposals = _has_builtin_proposers(adapter)
        self.urls: Sequence[str] = tuple(_base_urls(adapter))
        self._examples = ExampleEvaluator(adapter)
        self._lock = threading.Lock()
        self._evaluated = self._raised = 0
        self._alarm_after: int | None = ALARM_AFTER

    def expect(self, examples: int) -> None:
        """The first evaluation has this many examples: if all of them raise, nothing will ever work."""
        self._alarm_after = min(ALARM_AFTER, examples)

    def evaluate(self, candidate: dict[str, str], batch: list[Any], *, capture_traces: bool) -> EvaluationBatch:
        """Evaluate a candidate on examples, on the calling thread.

        Raises:
            BackendError: every example so far raised.
        """
        parts = [
            self._examples.evaluate(candidate, example, capture_traces=capture_traces, on_failure=self._on_failure)
            for example in batch
        ]
        if self._alarm_after is not None:
            with self._lock:
                self._evaluated += len(batch)
                if self._evaluated > self._raised:
                    self._alarm_after = None  # something works
        return self.merge(parts)

    def merge(self, parts: Sequence[EvaluationBatch]) -> EvaluationBatch:
        """Join the parts of one batch, in order."""
        return merge(parts)

    def _on_failure(self, kind: str, error: Exception) -> None:
        if self._alarm_after is None or isinstance(error, AdapterParseError):
            return
        with self._lock:
            self._raised += 1
            raised = self._raised
        if raised >= self._alarm_after:
            raise BackendError(
                f"Every one of the first {raised} examples raised in the {kind} ({type(error).__name__}: {error}): "
                f"correct the {kind}, then run again. Nothing else was spent."
            ) from error


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
