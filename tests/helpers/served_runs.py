"""Runs of dspy.GEPA and gepa.optimize through a real server, with what is needed to see that nothing was lost.

No honest score is 0, so a score of 0 is a call that failed and was scored all the same.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flashevolve_plugins import BackendError, Flash
from flashevolve_plugins.benchmarks.server import LatencyModel, ServerSettings, SimulatedServer
from flashevolve_plugins.benchmarks.server.faults import Faults

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no request for a price list

BUDGET = 40
THREADS = 4
CLIENT_TIMEOUT = 120.0  # seconds; what hangs ends with its server


@dataclass
class Served:
    """What a run did.

    Args:
        scored: metric calls that the budget counts.
        charged: metric calls that the budget was charged.
        scores: all validation scores.
        error: what ended it, if it did not end by itself.
        last: its last statistics.
    """

    scored: int = 0
    charged: int = 0
    scores: list[float] = field(default_factory=list)
    error: BaseException | None = None
    last: Any = None

    @property
    def lost(self) -> int:
        """Calls that were charged without a score or scored without an answer, and a run that came to nothing."""
        zeros = sum(score == 0 for score in self.scores)
        return zeros + abs(self.charged - self.scored) + (self.error is None and not self.scores)


@contextmanager
def serving(*requests: int, **faults: Any) -> Iterator[SimulatedServer]:
    """A server that answers at once, and wrongly at these requests."""
    wrong = Faults(requests=requests, **faults) if faults else None
    with SimulatedServer(ServerSettings(latency=LatencyModel(time_scale=0), faults=wrong)) as server:
        try:
            yield server
        finally:
            server.kill()  # at once, whatever hangs


def flash(**settings: Any) -> Flash:
    return Flash(progress=False, staleness="best-first", **settings)


def _score(answer: str) -> float:
    return 0.25 + len(answer) % 50 / 100


class _Counter:
    def __init__(self, watch: Callable[[int], None]) -> None:
        self._lock, self._watch, self.count = threading.Lock(), watch, 0

    def add(self) -> None:
        with self._lock:
            self.count += 1
            count = self.count
        self._watch(count)


def run_dspy(url: str, executor: Flash, *, watch: Callable[[int], None] = lambda _: None, **options: Any) -> Served:
    """Run dspy.GEPA through a server; ``watch`` is told of each metric call's number."""
    import dspy

    counter = _Counter(watch)

    def metric(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        del gold, trace, pred_trace
        if pred_name is None:
            counter.add()
        return dspy.Prediction(score=_score(str(pred.answer)), feedback="longer")

    lm_options = {"max_tokens": options.pop("max_tokens", 4000)}
    lm = dspy.LM(
        "openai/simulated",
        api_base=url,
        api_key="none",
        cache=False,
        num_retries=0,
        timeout=CLIENT_TIMEOUT,
        **lm_options,
    )
    examples = [dspy.Example(question=f"case {n}").with_inputs("question") for n in range(14)]
    settings: dict[str, Any] = {"max_metric_calls": BUDGET, "num_threads": THREADS, "track_stats": True, **options}
    optimizer = dspy.GEPA(metric=metric, reflection_lm=lm, executor=executor, **settings)
    found = Served()
    try:
        with dspy.context(lm=lm):
            made = optimizer.compile(dspy.Predict("question -> answer"), trainset=examples[:6], valset=examples[6:])
    except BackendError as error:
        found.error = error
    else:
        results = made.detailed_results
        found.scores = [score for scores in results.val_subscores for score in scores.values()]
        assert results.total_metric_calls == executor.last_run.spent
    return _finish(found, counter, executor)


def run_gepa(url: str, executor: Flash, *, watch: Callable[[int], None] = lambda _: None, **options: Any) -> Served:
    """The same with gepa.optimize, its default adapter, and litellm."""
    import gepa
    import litellm
    from gepa.adapters.default_adapter.default_adapter import DefaultAdapter, EvaluationResult
    from gepa.lm import LM

    litellm.suppress_debug_info = True
    counter = _Counter(watch)

    def evaluator(data: Any, response: str) -> EvaluationResult:
        del data
        counter.add()
        return EvaluationResult(score=_score(response), feedback="longer", objective_scores=None)

    client = {"api_base": url, "api_key": "none", "timeout": CLIENT_TIMEOUT}
    adapter = DefaultAdapter("openai/simulated", evaluator, THREADS, litellm_batch_completion_kwargs=client)
    adapter._lm.num_retries = 0
    cases = [{"input": f"case {n}", "answer": "x", "additional_context": {}} for n in range(14)]
    settings: dict[str, Any] = {"max_metric_calls": BUDGET, "display_progress_bar": False, **options}
    found = Served()
    try:
        result = gepa.optimize(
            seed_candidate={"prompt": "Answer."},
            trainset=cases[:6],
            valset=cases[6:],
            adapter=adapter,
            reflection_lm=LM("openai/simulated", num_retries=0, **client),
            executor=executor,
            logger=_Silent(),
            **settings,
        )
    except BackendError as error:
        found.error = error
    else:
        found.scores = [score for scores in result.val_subscores for score in scores.values()]
        assert result.total_metric_calls == executor.last_run.spent
    return _finish(found, counter, executor)


def _finish(found: Served, counter: _Counter, executor: Flash) -> Served:
    found.last, found.scored = executor.last_run, counter.count
    found.charged = executor.last_run.spent
    return found


class _Silent:
    def log(self, message: str) -> None:
        """Nothing."""


HOSTS = {"dspy.GEPA": run_dspy, "gepa.optimize": run_gepa}
