"""Processor time per example of a dspy program: the program's own, and what comes on top under flash and in the host.

The model answers at once and costs nothing, so that what is left is Python.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import wraps
from io import StringIO
from itertools import count
from typing import TYPE_CHECKING, Any

import dspy
from dspy.teleprompt.gepa.gepa_utils import DspyAdapter

from flashevolve_plugins import Flash
from flashevolve_plugins.benchmarks.cost_figures import Figure
from flashevolve_plugins.benchmarks.cost_stub import Stub

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CALLS = 3_000  # metric calls of each run
THREADS = 16
EXAMPLES = 50  # of each set
ONE_BY_ONE = 100  # examples that the host evaluates one by one
OVER_HTTP = 150  # requests
ANSWER = "[[ ## answer ## ]]\nforty-two\n\n[[ ## completed ## ]]"


class Model(dspy.LM):
    """Answers at once."""

    def __init__(self) -> None:
        super().__init__("none/none", cache=False)

    def __call__(self, *_args: Any, **_kwargs: Any) -> list[str]:
        """The same answer to everything."""
        return [ANSWER]


class Clock:
    """Adds up processor time over threads, as each thread counts its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.seconds = 0.0
        self.calls = 0

    def __deepcopy__(self, memo: Any) -> Clock:
        return self  # every copy of the program has the same one

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its time added."""

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            before = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                with self._lock:
                    self.seconds += time.thread_time() - before
                    self.calls += 1

        return call


class Program(dspy.Module):
    """One predictor. The time of its ``forward`` is the program's own.

    Args:
        clock: adds it up.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.answer = dspy.Predict(dspy.Signature("question -> answer", "Answer the question."))
        self._clock = clock

    def forward(self, **inputs: Any) -> Any:
        """Ask the predictor."""
        return self._clock.timed(self.answer)(**inputs)


@contextmanager
def _silence() -> Iterator[None]:
    """Keep dspy's progress bars off the console."""
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        yield


def _metric() -> Callable[..., Any]:
    rng = random.Random(0)

    def metric(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        del gold, pred, trace, pred_name, pred_trace
        return dspy.Prediction(score=rng.random(), feedback="Try harder.")

    return metric


def _examples(count: int) -> list[Any]:
    return [dspy.Example(question=f"question {number}").with_inputs("question") for number in range(count)]


def _proposer() -> Callable[..., dict[str, str]]:
    numbers = count()

    def propose(candidate: Any, reflective_dataset: Any, components_to_update: list[str]) -> dict[str, str]:
        del candidate, reflective_dataset
        return {name: f"Answer the question in way {next(numbers)}." for name in components_to_update}

    return propose


@dataclass(frozen=True)
class Cost:
    """Processor time per example of one run.

    Args:
        program: milliseconds, the program's own with its metric.
        on_top: milliseconds, all else.
        host_thread: milliseconds of that on the thread that called the host.
    """

    program: float
    on_top: float
    host_thread: float


def run(executor: Flash | None, calls: int) -> Cost:
    """Run ``dspy.GEPA`` once.

    Args:
        executor: ``None`` for the host's own loop.
        calls: metric calls.
    """
    clock, metric_clock = Clock(), Clock()
    optimizer = dspy.GEPA(
        metric=metric_clock.timed(_metric()),
        instruction_proposer=_proposer(),
        reflection_lm=Model(),
        max_metric_calls=calls,
        num_threads=THREADS,
        executor=executor,
        seed=0,
    )
    cpu, thread = time.process_time(), time.thread_time()
    with dspy.context(lm=Model()), _silence():
        optimizer.compile(Program(clock), trainset=_examples(EXAMPLES), valset=_examples(EXAMPLES))
    cpu, thread = time.process_time() - cpu, time.thread_time() - thread
    own = clock.seconds + metric_clock.seconds
    return Cost(*(1e3 * seconds / clock.calls for seconds in (own, cpu - own, thread)))


def one_by_one(examples: int) -> float:
    """Milliseconds on top of the program's own when the host evaluates batches of one, with traces."""
    clock = Clock()
    adapter = DspyAdapter(Program(clock), _metric(), {}, rng=random.Random(0), num_threads=THREADS)
    candidate = {"answer": "Answer the question."}
    with dspy.context(lm=Model()), _silence():
        before = time.process_time()
        for example in _examples(examples):
            adapter.evaluate([example], candidate, capture_traces=True)
        return 1e3 * (time.process_time() - before - clock.seconds) / examples


def over_http(requests: int) -> float:
    """Milliseconds of a ``dspy.LM`` call over HTTP, to a server that answers at once."""
    with Stub(0.0, ANSWER) as stub:
        model = dspy.LM("openai/none", api_base=stub.url, api_key="none", cache=False)
        model("The first one imports and connects.")
        before = time.process_time()
        for number in range(requests):
            model(f"question {number}")
        return 1e3 * (time.process_time() - before) / requests


def measure(calls: int = CALLS) -> list[Figure]:
    """The program, what flash and the host put on top, and the model call over HTTP.

    Args:
        calls: metric calls of each run.
    """
    logging.getLogger("dspy").setLevel(logging.ERROR)
    run(Flash(progress=False), 200)  # imports, and whatever else only happens once
    flash, host = run(Flash(progress=False, staleness="full"), calls), run(None, calls)
    return [
        Figure("dspy, per example: the program's own", flash.program, "ms"),
        Figure("dspy, per example: on top of it under flash", flash.on_top, "ms", at_most=1.0),
        Figure("of that, on the host's thread", flash.host_thread, "ms"),
        Figure("dspy, per example: on top of it in the host's own loop, in batches", host.on_top, "ms"),
        Figure("dspy, per example: on top of it when the host evaluates one by one", one_by_one(ONE_BY_ONE), "ms"),
        Figure("dspy, per request over HTTP: dspy's own", over_http(OVER_HTTP), "ms"),
    ]
