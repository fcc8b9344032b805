"""How ``dspy.GEPA``'s adapter evaluates under flash: example by example, on a program shared by its examples."""

from __future__ import annotations

import random
import threading
from contextlib import contextmanager
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import dspy
from dspy.utils.exceptions import AdapterParseError

from flashevolve_plugins._content import describe, without_addresses
from flashevolve_plugins._errors import BackendError
from flashevolve_plugins._redact import register_secrets_of
from flashevolve_plugins.adapters.dspy.awaiting import awaited_metric, is_async_program, metric_on
from flashevolve_plugins.adapters.dspy.callbacks import LOGGER, tell_evaluation
from flashevolve_plugins.adapters.dspy.frozen import freeze, thaw
from flashevolve_plugins.adapters.dspy.samples import ExampleEvaluator, merge
from flashevolve_plugins.adapters.gepa.overlay import overlay

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from gepa.core.adapter import EvaluationBatch

    from flashevolve_plugins._event_loop import EventLoop
    from flashevolve_plugins._flash import Granularity
    from flashevolve_plugins.adapters.dspy.samples import OnFailure

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
        caching = [str(model.model) for model in _task_models(adapter) if getattr(model, "cache", False) is True]
        #: What would answer the second rollout of an example as the first; empty if nothing is known to.
        self.remembers = f"cache=True lets the model {caching[0]} keep its answers" if caching else ""
        register_secrets_of(*_task_models(adapter), adapter.reflection_lm)
        self.asynchronous = is_async_program(adapter.student)
        self._examples = ExampleEvaluator(adapter)
        self._lock = threading.Lock()
        self.feedback_calls = 0
        self._started = self._raised = 0
        self._alarm_after: int | None = ALARM_AFTER

    def dataset_adapter(self, item: int) -> Any:
        """The adapter with a generator of the item's own, whatever other items draw meanwhile."""
        own = {"rng": random.Random(f"{self._seed}:{item}"), "feedback_map": self._adapter.feedback_map}
        return overlay(self._adapter, own)

    def running(self, loop: EventLoop) -> AbstractContextManager[None]:
        """Metrics may be ``async def``."""
        if self.asynchronous:
            self._examples.ask = metric_on(loop, self._adapter.metric_fn)
        return awaited_metric(self._adapter, loop, self._count_feedback)

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

    def evaluate(self, candidate: dict[str, str], batch: list[Any], *, capture_traces: bool) -> Any:
        """Evaluate a candidate on examples, on the calling thread; of an async program, give the coroutine that does.

        Raises:
            BackendError: the first examples all raised.
        """
        if self.asynchronous:
            return self._await_all(candidate, batch, capture_traces=capture_traces)
        return self.merge([self._evaluate(candidate, example, capture_traces=capture_traces) for example in batch])

    async def _await_all(self, candidate: dict[str, str], batch: list[Any], *, capture_traces: bool) -> EvaluationBatch:
        return self.merge([await self._aevaluate(candidate, each, capture_traces=capture_traces) for each in batch])

    def _evaluate(self, candidate: dict[str, str], example: Any, *, capture_traces: bool) -> EvaluationBatch:
        with self._watching() as on_failure:
            return self._examples.evaluate(candidate, example, capture_traces=capture_traces, on_failure=on_failure)

    async def _aevaluate(self, candidate: dict[str, str], example: Any, *, capture_traces: bool) -> EvaluationBatch:
        with self._watching() as on_failure:
            return await self._examples.aevaluate(
                candidate, example, capture_traces=capture_traces, on_failure=on_failure
            )

    @contextmanager
    def _watching(self) -> Iterator[OnFailure | None]:
        """Notice if the first examples all raise.

        Raises:
            BackendError: they did.
        """
        if self._alarm_after is None:
            yield None
            return
        with self._lock:
            self._started += 1
            watched = self._started <= (self._alarm_after or 0)
        failures: list[tuple[str, Exception]] = []
        try:
            yield lambda *failure: failures.append(failure)
        except Exception:  # it will be tried again
            with self._lock:
                self._started -= 1
            raise
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
                f"({type(error).__name__}: {error}): correct the {kind}{_hint(error)}, then run again. Nothing else "
                "was spent."
            ) from error

    def merge(self, parts: Sequence[EvaluationBatch]) -> EvaluationBatch:
        """Join the parts of one batch, in order."""
        return merge(parts)

    def freeze(self, candidate: dict[str, str], batch: list[Any], evaluation: EvaluationBatch) -> bytes | None:
        """The evaluation, in which predictors and examples are named."""
        return freeze(partial(self._examples.named_predictors, candidate), batch, evaluation)

    def thaw(self, candidate: dict[str, str], batch: list[Any], frozen: bytes) -> EvaluationBatch:
        """The evaluation again, with the candidate's predictors and these examples."""
        return thaw(partial(self._examples.named_predictors, candidate), batch, frozen)

    def content(self, example: Any) -> Any:
        """Its fields and which of them are inputs, without dspy's marks: its data sets give a random one each time."""
        if not isinstance(example, dspy.Example):
            return example
        return type(example).__name__, dict(example.items()), example._input_keys

    def identity(self) -> tuple[Any, Any, Any]:
        """The student's class and the fields of its predictors, the metric's source, and the models' names."""
        student = self._adapter.student
        program = [(name, *_shape(predictor)) for name, predictor in student.named_predictors()]
        models = [getattr(model, "model", None) for model in _models(self._adapter)]
        return (describe(type(student)), program), describe(self._adapter.metric_fn), models


def _hint(error: Exception) -> str:
    """What may be wrong with it: some code runs on one thread only."""
    return " (several threads call it at once, none of them the main one)" if "thread" in str(error).lower() else ""


def _has_builtin_proposers(adapter: Any) -> bool:
    """Whether only dspy's own proposers write texts: a user's may not expect several calls at once."""
    builtin = getattr(adapter, "_builtin_instruction_proposer", adapter.custom_instruction_proposer is None)
    return bool(builtin) and getattr(adapter, "custom_code_proposer", None) is None


def _models(adapter: Any) -> list[Any]:
    """The run's models, as far as they are known."""
    return [*_task_models(adapter), adapter.reflection_lm]


def _task_models(adapter: Any) -> list[Any]:
    """The models that programs are run with, as far as they are known."""
    own = [getattr(predictor, "lm", None) for _, predictor in adapter.student.named_predictors()]
    return [dspy.settings.lm, *own]


def _shape(predictor: Any) -> tuple[str, Any]:
    """A predictor's class and the fields of its signature; its instructions are the candidate's."""
    fields = getattr(getattr(predictor, "signature", None), "fields", {})
    types = [(name, without_addresses(str(field.annotation))) for name, field in fields.items()]
    return type(predictor).__name__, types


def _base_urls(adapter: Any) -> list[str]:
    """Base URLs that the run's models name themselves."""
    models = _models(adapter)
    settings = [getattr(model, "kwargs", None) or {} for model in models if model is not None]
    found = [each.get("api_base") or each.get("base_url") for each in settings]
    return [url for url in found if isinstance(url, str)]
