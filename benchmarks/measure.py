"""Language models that keep count of their requests in flight, and metrics that count their calls."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import dspy
from gepa.lm import LM

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashevolve_plugins.benchmarks.bench.observer import Gauge


class CountingLM(dspy.LM):
    """A ``dspy.LM`` that counts.

    Args:
        gauge: the count.
        arguments: those of ``dspy.LM``.
        options: those of ``dspy.LM``.
    """

    def __init__(self, gauge: Gauge, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._gauge = gauge

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Send one request."""
        self._gauge.change(1)
        try:
            return super().__call__(*args, **kwargs)
        finally:
            self._gauge.change(-1)

    def __deepcopy__(self, memo: Any) -> CountingLM:
        return self  # every copy of the program shares one count


class CountingGepaLM(LM):
    """A ``gepa.lm.LM`` that counts, its batches as well.

    Args:
        gauge: the count.
        arguments: those of ``gepa.lm.LM``.
        options: those of ``gepa.lm.LM``.
    """

    def __init__(self, gauge: Gauge, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._gauge = gauge

    def __call__(self, prompt: Any) -> str:
        """Send one request."""
        self._gauge.change(1)
        try:
            return str(super().__call__(prompt))
        finally:
            self._gauge.change(-1)

    def batch_complete(self, messages_list: list[Any], max_workers: int = 10, **kwargs: Any) -> list[str]:
        """Send many requests, as many at once as the host's own method does."""
        del kwargs
        with ThreadPoolExecutor(max_workers) as pool:
            return list(pool.map(self, messages_list))


class CountingMetric:
    """A metric of dspy that counts the calls that score an example; those that only ask for feedback are others.

    Args:
        metric: the metric.
    """

    def __init__(self, metric: Callable[..., Any]) -> None:
        self._metric = metric
        self._lock = threading.Lock()
        self.calls = 0

    def __call__(self, gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        """Score, and count."""
        if pred_name is None:
            with self._lock:
                self.calls += 1
        return self._metric(gold, pred, trace, pred_name, pred_trace)
