"""One example of a dspy batch, evaluated alone and at little cost.

`DspyAdapter.evaluate` sets up threads, a progress bar and a patched program for every batch. Here an example runs on
the thread that asks, and its batch of one equals the host's (dspy's gepa_utils, bootstrap_trace, parallelizer), but:

- dspy 3.3.1 leaves raising examples out of a traced batch, which shifts the scores behind them. Here, as in later
  versions, the example keeps its place: output None, the failure score, no trajectory.
- Evaluation callbacks do not fire (they belong to a stage). Module callbacks see the program's own prediction or
  parse error, not the host's pair of prediction and trace; a program that calls itself gets no such pair either.
- A slow example is not started again after two minutes. Batches of one candidate share a program.

What the host evaluates in another way (`dspy.Flex` code, an adapter or a program with an entry point of its own) goes
through the host's own `evaluate`, one example at a time; there its evaluation callbacks do fire.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy, deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Any, Literal, TypeAlias, cast

import dspy
from dspy.dsp.utils.settings import thread_local_overrides
from dspy.primitives.code_interpreter import CodeInterpreterError
from dspy.teleprompt.bootstrap_trace import FailedPrediction
from dspy.teleprompt.gepa.gepa_utils import DspyAdapter
from dspy.utils.exceptions import AdapterParseError
from gepa.core.adapter import EvaluationBatch

Batch: TypeAlias = "EvaluationBatch[Any, Any]"
Kind = Literal["program", "metric"]
OnFailure = Callable[[Kind, Exception], None]

_failures = logging.getLogger("dspy.utils.parallelizer")  # where dspy's users look for failing examples
_builds = logging.getLogger("dspy.teleprompt.gepa.gepa_utils")
_EXAMPLES_PER_PROGRAM = 256  # then built anew: every module of a program keeps a history of its LM calls


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
        self._slots = lru_cache(maxsize=16)(lambda _candidate: _Built())
        self._lock = threading.Lock()
        self._replaced = type(adapter).evaluate is not DspyAdapter.evaluate or "evaluate" in vars(adapter)
        self._host_only = bool(self._replaced or getattr(adapter, "_flex_paths", ()) or not adapter.metric_fn)

    def build(self, candidate: Mapping[str, str]) -> Any:
        """Return the candidate's program, shared by its examples, or None where its source does not build."""
        return self._built(candidate)[0]

    def evaluate(
        self, candidate: Mapping[str, str], example: Any, *, capture_traces: bool, on_failure: OnFailure | None = None
    ) -> Batch:
        """Evaluate one example on the calling thread, under the dspy settings in force there.

        Args:
            candidate: component name to text.
            example: a `dspy.Example` with its inputs named.
            capture_traces: whether `trajectories` is a list, of one or (where the example raised) none.
            on_failure: told, on this thread, what raised and with which exception; a kept parse failure counts too.

        Raises:
            TypeError, ValueError: the metric's value can't be summed (None, text, a coroutine), as in the host.

        """
        report = on_failure or (lambda _kind, _error: None)
        with self._own_usage():
            if self._host_only:
                return self._by_host(candidate, example, report, traced=capture_traces)
            program, error = self._built(candidate)
            if error is not None:
                report("program", error)
                return self._batch(None, None, [] if capture_traces else None)
            if capture_traces and type(program).__call__ not in (dspy.Module.__call__, dspy.Predict.__call__):
                return self._by_host(candidate, example, report, traced=capture_traces)
            return self._run(program, example, report, traced=capture_traces)

    def _run(self, program: Any, example: Any, report: OnFailure, *, traced: bool) -> Batch:
        running: Kind = "program"
        try:
            prediction, trace = self._call(program, dict(**example.inputs()), report, traced=traced)
            running = "metric"
            if traced and isinstance(prediction, FailedPrediction):
                score = prediction.format_reward or self._adapter.failure_score
            else:
                score = self._adapter.metric_fn(example, prediction, *([None] if traced else []))
        except Exception as error:  # noqa: BLE001  (whatever user code raises is the example's failure)
            _failures.error("No score for %s: its %s raised %r", example, running, error, exc_info=not traced)
            report(running, error)
            return self._batch(None, None, []) if traced else self._batch(dspy.Prediction(), None, None)
        format(round(sum([score]), 1), ".2f")  # raises on what the host's running average raises on
        data = {"example": example, "prediction": prediction, "trace": trace, "example_ind": 0, "score": score}
        return self._batch(prediction, score, [data] if traced else None)

    def _call(self, program: Any, inputs: dict[str, Any], report: OnFailure, *, traced: bool) -> tuple[Any, list[Any]]:
        if not traced:
            return program(**inputs), []
        with dspy.context(trace=[]):
            try:
                return program(**inputs), dspy.settings.trace.copy()
            except AdapterParseError as error:
                author = next((p for p in program.predictors() if p.signature == error.signature), None)
                # The host keeps no trace where no predictor has the signature, nor (by a slip of its arithmetic)
                # where some fields were parsed: such an example fails.
                if author is None or error.parsed_result:
                    raise
                report("program", error)
                failed = FailedPrediction(error.lm_response, format_reward=self._adapter.failure_score)
                return failed, [*dspy.settings.trace, (author, inputs, failed)]

    def _by_host(self, candidate: Mapping[str, str], example: Any, report: OnFailure, *, traced: bool) -> Batch:
        options = {} if self._replaced else {"num_threads": 1}  # one: then the host stays on this thread
        host = _watched(self._adapter, report)
        batch: Batch = host.evaluate([example], dict(candidate), capture_traces=traced, **options)
        return self._batch(None, None, []) if traced and not batch.outputs else batch

    def _batch(self, output: Any, score: Any, trajectories: list[Any] | None) -> Batch:
        return cast("Batch", self._adapter._make_evaluation_batch([output], [score], trajectories))

    def _built(self, candidate: Mapping[str, str]) -> tuple[Any, Exception | None]:
        with self._lock:
            built = self._slots(frozenset(candidate.items()))
        with built.lock:
            if built.uses % _EXAMPLES_PER_PROGRAM == 0:
                try:
                    built.program = self._adapter.build_program(dict(candidate))
                except (SyntaxError, CodeInterpreterError) as error:
                    _builds.warning("A candidate does not build, its examples get the failure score: %s", error)
                    built.error = error
            built.uses += 1
            return built.program, built.error

    def _own_usage(self) -> Any:
        """Give this example its own copy of the usage tracker in force, as each of the host's threads has one."""
        tracker = thread_local_overrides.get().get("usage_tracker")
        if not tracker or (self._adapter.num_threads or dspy.settings.num_threads) == 1:
            return nullcontext()
        return dspy.context(usage_tracker=deepcopy(tracker))


def merge(batches: Sequence[Batch]) -> Batch:
    """Join batches, in order, into the one that the host would have made of all their examples."""
    starts = accumulate((len(batch.outputs) for batch in batches), initial=0)
    trajectories = [
        {**data, "example_ind": start + data["example_ind"]}
        for start, batch in zip(starts, batches, strict=False)
        for data in batch.trajectories or ()
    ]
    objectives = [named for batch in batches for named in batch.objective_scores or [{} for _ in batch.outputs]]
    calls = [len(b.outputs) if b.num_metric_calls is None else b.num_metric_calls for b in batches]
    return EvaluationBatch(
        outputs=[output for batch in batches for output in batch.outputs],
        scores=[score for batch in batches for score in batch.scores],
        trajectories=None if all(batch.trajectories is None for batch in batches) else trajectories,
        objective_scores=objectives if any(objectives) else None,
        num_metric_calls=None if all(batch.num_metric_calls is None for batch in batches) else sum(calls),
    )


def _watched(adapter: Any, report: OnFailure) -> Any:
    """Return a twin of the adapter that reports what its own `evaluate` swallows."""

    @contextmanager
    def watch(kind: Kind, *seen: type[Exception]) -> Iterator[None]:
        try:
            yield
        except seen as error:
            report(kind, error)
            raise

    @watch("program", SyntaxError, CodeInterpreterError)
    def build_program(candidate: dict[str, str]) -> Any:
        program = adapter.build_program(candidate)
        # One batch of one example owns this program, so its forward may be wrapped.
        program.forward = watch("program", Exception)(object.__getattribute__(program, "forward"))
        return program

    twin = copy(adapter)
    twin.metric_fn = adapter.metric_fn and watch("metric", Exception)(adapter.metric_fn)
    twin.build_program = build_program
    return twin
