"""One example of a dspy batch, evaluated alone and at little cost.

`DspyAdapter.evaluate` sets up threads, a progress bar and a patched program for every batch. Here an example runs on
the thread that asks, and its batch of one equals the host's (dspy's gepa_utils, gepa_flex_utils, bootstrap_trace,
parallelizer), but:

- dspy 3.3.1 leaves raising examples out of a traced batch, which shifts the scores behind them. Here, as in later
  versions, the example keeps its place: output None, the failure score, no trajectory.
- Evaluation callbacks do not fire: they belong to a whole stage, and each batch carries what they are told of it.
- A slow example is not started again after two minutes. Batches of one candidate share a program.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import accumulate
from logging import ERROR, WARNING
from types import MethodType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import dspy
from dspy.dsp.utils.settings import thread_local_overrides
from dspy.primitives.code_interpreter import CodeInterpreterError
from dspy.teleprompt.bootstrap_trace import FailedPrediction
from dspy.teleprompt.gepa.gepa_flex_utils import _metric_scoring_kwargs
from dspy.utils.exceptions import AdapterParseError, LMError
from dspy.utils.usage_tracker import UsageTracker
from gepa.core.adapter import EvaluationBatch

from flashevolve_plugins._event_loop import ForeignLoopError, awaited
from flashevolve_plugins._failures import infrastructure
from flashevolve_plugins._redact import log
from flashevolve_plugins.adapters.dspy.awaiting import is_async_program
from flashevolve_plugins.adapters.dspy.values import Exits, usable

if TYPE_CHECKING:
    from flashevolve_plugins.adapters.dspy.callbacks import Result

Kind = Literal["program", "metric"]
Pair: TypeAlias = tuple[Any, list[Any]]
OnFailure = Callable[[Kind, Exception], None]

_failures = logging.getLogger("dspy.utils.parallelizer")  # where dspy's users look for failing examples
_builds = logging.getLogger("dspy.teleprompt.gepa.gepa_utils")
_EXAMPLES_PER_PROGRAM = 256  # then built anew: every module of a program keeps a history of its LM calls
_kept: ContextVar[list[Exception]] = ContextVar("kept")  # what a traced program gave back as a failed prediction


@dataclass(eq=False)
class Batch(EvaluationBatch[Any, Any]):
    """The host's batch.

    Args:
        results: what the host's `Evaluate` would give for its examples; empty where it would not have been called.
    """

    results: Sequence[Result] = ()


@dataclass
class _Built:
    """The program of one candidate, or the reason why there is none."""

    program: Any = None
    error: Exception | None = None
    uses: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class ExampleEvaluator:
    """Evaluates single examples for one live dspy adapter; safe to call from many threads at once."""

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter
        self._slots: Callable[..., _Built] = lru_cache(maxsize=16)(lambda *_: _Built())
        self._lock = threading.Lock()
        self._exits = Exits()
        self.asynchronous = is_async_program(adapter.student)
        #: The metric for the programs' coroutines; whoever runs them says so.
        self.ask: Callable[..., Any] | None = None
        self.traces_always = bool(getattr(adapter, "_flex_paths", ()))  # a metric of Flex code may ask for the trace

    def build(self, candidate: Mapping[str, str], *, traced: bool = False) -> Any:
        """Return the candidate's program, shared by its examples, or None where its source does not build.

        Args:
            candidate: component name to text.
            traced: whether the program is the one that gives pairs of a prediction and its trace.
        """
        return self._built(candidate, traced=traced)[0]

    def named_predictors(self, candidate: Mapping[str, str]) -> dict[str, Any]:
        """The predictors of the candidate's program that gives traces; none where its source does not build."""
        program = self.build(candidate, traced=True)
        return dict(program.named_predictors()) if hasattr(program, "named_predictors") else {}

    def evaluate(
        self, candidate: Mapping[str, str], example: Any, *, capture_traces: bool, on_failure: OnFailure | None = None
    ) -> Batch:
        """Evaluate one example on the calling thread, under the dspy settings in force there.

        Args:
            candidate: component name to text.
            example: a `dspy.Example` with its inputs named.
            capture_traces: whether `trajectories` is a list, of one or (where the example raised) none.
            on_failure: told, on this thread, what raised and with which exception; what is kept as a failed
                prediction counts too.

        Raises:
            UsageError: the metric's value can't be summed (None, text), with which the host ends too.
            Exception: an infrastructure failure of the program or the metric: the example has not been tried.
        """
        if self.asynchronous:
            raise TypeError("An async program is evaluated on an event loop, by aevaluate.")
        return _at_once(self.aevaluate(candidate, example, capture_traces=capture_traces, on_failure=on_failure))

    async def aevaluate(
        self, candidate: Mapping[str, str], example: Any, *, capture_traces: bool, on_failure: OnFailure | None = None
    ) -> Batch:
        """Evaluate one example as :meth:`evaluate` does; of an async program's, await program and metric."""
        report = on_failure or (lambda _kind, _error: None)
        with self._own_usage():
            traced = capture_traces or self.traces_always
            program, error = self._built(candidate, traced=traced)
            if error is not None:
                report("program", error)
                return self._batch(None, None, [] if capture_traces else None)
            batch = await self._run(program, example, report, traced=traced)
            if not capture_traces:
                batch.trajectories = None
            return batch

    async def _run(self, program: Any, example: Any, report: OnFailure, *, traced: bool) -> Batch:
        metric = self.ask or self._adapter.metric_fn  # no longer awaited once the run is over
        running: Kind = "program"
        kept: list[Exception] = []
        token = _kept.set(kept)
        try:
            output = await self._call(program, example)
            prediction, trace = output if traced else (output, [])
            running = "metric"
            score, told = await self._score(metric, example, (prediction, trace if traced else None), report)
        except (Exception, SystemExit) as raised:
            if _is_the_runs(raised):  # says nothing of the example, which is tried again
                raise
            error = raised if isinstance(raised, Exception) else self._exits.as_error(running, raised)
            trace = None if traced else error
            log(_failures, ERROR, "No score for %s: its %s raised %r", example, running, error, exc_info=trace)
            report(running, error)
            failure = dspy.Prediction(), self._adapter.failure_score
            return self._batch(None if traced else failure[0], None, [] if traced else None, (example, *failure))
        finally:
            _kept.reset(token)
            for each in kept:
                report("program", each)
        score, told = usable(metric, score), usable(metric, told)
        data = {"example": example, "prediction": prediction, "trace": trace, "example_ind": 0, "score": score}
        return self._batch(prediction, score, [data] if traced else None, (example, output, told))

    async def _call(self, program: Any, example: Any) -> Any:
        return await awaited(program.acall(**example.inputs())) if self.asynchronous else program(**example.inputs())

    async def _score(self, metric: Any, example: Any, output: tuple[Any, Any], report: OnFailure) -> tuple[Any, Any]:
        """The score of a prediction with its trace, if there is one, and what the host's `Evaluate` takes for it."""
        (prediction, trace), failure = output, self._adapter.failure_score
        traced = trace is not None
        failed = traced and isinstance(prediction, FailedPrediction)
        if not self.traces_always:
            if failed:
                score = prediction.format_reward or failure
            else:
                score = await self._given(metric(example, prediction, *[None] * traced))
            return score, score
        if failed:
            return failure, prediction.format_reward or failure
        try:
            return await self._given(metric(example, prediction, **_metric_scoring_kwargs(metric, trace))), True
        except Exception as error:
            if _is_the_runs(error):
                raise
            # As above, but the example keeps its trace.
            log(_failures, ERROR, "No score for %s: its metric raised %r", example, error)
            report("metric", error)
            return failure, True

    async def _given(self, score: Any) -> Any:
        return await score if self.ask is not None else score

    def _batch(self, output: Any, score: Any, trajectories: list[Any] | None, *results: Result) -> Batch:
        return Batch(**vars(self._adapter._make_evaluation_batch([output], [score], trajectories)), results=results)

    def _built(self, candidate: Mapping[str, str], *, traced: bool) -> tuple[Any, Exception | None]:
        with self._lock:
            built = self._slots(frozenset(candidate.items()), traced)
        with built.lock:
            if built.uses % _EXAMPLES_PER_PROGRAM == 0:
                try:
                    built.program = self._adapter.build_program(dict(candidate))
                    if traced:
                        (_await_pairs if self.asynchronous else _give_pairs)(built.program, self._failed(built.program))
                except (SyntaxError, CodeInterpreterError) as error:
                    told = "A candidate does not build, its examples get the failure score: %s"
                    log(_builds, WARNING, told, error)
                    built.error = error
            built.uses += 1
            return built.program, built.error

    def _failed(self, program: Any) -> Callable[..., Pair]:
        failure_score = self._adapter.failure_score
        return partial(_failed_pair, program, failure_score, keeps_crashes=self.traces_always)

    def _own_usage(self) -> Any:
        """Give this example a usage tracker of its own where one is in force: each of the host's threads has one.

        What it counts is lost, as in the host. A copy of the one in force, as the host makes it, could be taken while
        a reflection adds to that.
        """
        tracker = thread_local_overrides.get().get("usage_tracker")
        if not tracker or (self._adapter.num_threads or dspy.settings.num_threads) == 1:
            return nullcontext()
        return dspy.context(usage_tracker=UsageTracker())


def _is_the_runs(error: BaseException) -> bool:
    """Whether it says nothing of the example: the server's, or of a client that belongs to another event loop."""
    return isinstance(error, ForeignLoopError) or infrastructure(error) is not None


def _at_once(coroutine: Coroutine[Any, Any, Batch]) -> Batch:
    """What a coroutine that awaits nothing gives: one code evaluates programs of both kinds."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return cast("Batch", end.value)
    raise AssertionError


def _give_pairs(program: Any, failed: Callable[..., Pair]) -> None:
    """Let a program give its prediction together with the trace, as the host does while it captures traces.

    Args:
        program: patched in place.
        failed: the pair of inputs and what they raised; raises what is no prediction.
    """
    forward = object.__getattribute__(program, "forward")

    def traced_forward(_itself: Any, **inputs: Any) -> Pair:
        with dspy.context(trace=[]):
            try:
                return forward(**inputs), dspy.settings.trace.copy()
            except Exception as error:  # noqa: BLE001  (some are predictions)
                return failed(inputs, error)

    program.forward = MethodType(traced_forward, program)


def _await_pairs(program: Any, failed: Callable[..., Pair]) -> None:
    """The same for an async program."""
    aforward = object.__getattribute__(program, "aforward")

    async def traced_aforward(_itself: Any, **inputs: Any) -> Pair:
        with dspy.context(trace=[]):
            try:
                return await aforward(**inputs), dspy.settings.trace.copy()
            except Exception as error:  # noqa: BLE001  (some are predictions)
                return failed(inputs, error)

    program.aforward = MethodType(traced_aforward, program)


def _failed_pair(
    program: Any,
    failure_score: float,
    inputs: dict[str, Any],
    error: Exception,
    *,
    keeps_crashes: bool,
) -> Pair:
    """A failed prediction, with the trace, where the host makes one of what a program raised.

    Args:
        program: the program.
        failure_score: of an output that the adapter cannot parse.
        inputs: what it was called with.
        error: what it raised; raised again if it is none.
        keeps_crashes: whether whatever else the program raises is a failed prediction too; not so an LM's error.
    """
    if isinstance(error, AdapterParseError):
        author = next((each for each in program.predictors() if each.signature == error.signature), None)
        # The host keeps no trace where no predictor has the signature, nor (by a slip of its arithmetic)
        # where some fields were parsed: such an example fails.
        if author is None or error.parsed_result:
            raise error
        _kept.get([]).append(error)
        failed = FailedPrediction(error.lm_response, format_reward=failure_score)
        return failed, [*dspy.settings.trace, (author, inputs, failed)]
    if isinstance(error, LMError) or not keeps_crashes or _is_the_runs(error):
        raise error
    _kept.get([]).append(error)
    log(_failures, WARNING, "The program raised %r: this is what the reflection is shown", error)
    return FailedPrediction(f"{type(error).__name__}: {error}"), dspy.settings.trace.copy()


def merge(batches: Sequence[Any]) -> Batch:
    """Join batches, in order, into the one that the host would have made of all their examples."""
    starts = accumulate((len(batch.outputs) for batch in batches), initial=0)
    trajectories = [
        {**data, "example_ind": start + data["example_ind"]}
        for start, batch in zip(starts, batches, strict=False)
        for data in batch.trajectories or ()
    ]
    objectives = [named for batch in batches for named in batch.objective_scores or [{} for _ in batch.outputs]]
    calls = [len(b.outputs) if b.num_metric_calls is None else b.num_metric_calls for b in batches]
    return Batch(
        outputs=[output for batch in batches for output in batch.outputs],
        scores=[score for batch in batches for score in batch.scores],
        trajectories=None if all(batch.trajectories is None for batch in batches) else trajectories,
        objective_scores=objectives if any(objectives) else None,
        num_metric_calls=None if all(batch.num_metric_calls is None for batch in batches) else sum(calls),
        results=[result for batch in batches for result in getattr(batch, "results", ())],
    )
