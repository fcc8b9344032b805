"""gepa's own adapter that evolves a whole dspy program, evaluated example by example as ``dspy.GEPA``'s is.

Its own ``evaluate`` cannot run at once: dspy's ``Evaluate`` clears the list of progress bars that all threads share.
(gepa also keeps a copy of dspy's adapter; it cannot evaluate without traces under the dspy versions we support.)
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from gepa.core.adapter import EvaluationBatch
from gepa.lm import LM

from flashevolve_plugins.adapters.dspy.evaluator import DspyEvaluator

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from flashevolve_plugins._event_loop import EventLoop


class FullProgramEvaluator(DspyEvaluator):
    """The evaluator of gepa's adapter for whole programs.

    Args:
        adapter: the host's live adapter.
    """

    def __init__(self, adapter: Any) -> None:
        self._host = adapter
        self._terms = _Terms(adapter)
        super().__init__(self._terms)

    def dataset_adapter(self, item: int) -> Any:
        """The adapter itself: it draws nothing, and calls no metric."""
        del item
        return self._host

    def running(self, loop: EventLoop) -> AbstractContextManager[None]:
        """The metric is called as it is."""
        del loop
        return nullcontext()

    def merge(self, parts: Sequence[EvaluationBatch]) -> EvaluationBatch:
        """Join the parts of one batch, in order. Of a candidate that does not build, the trace says why."""
        problem = next((part.trajectories for part in parts if isinstance(part.trajectories, str)), None)
        for part in parts:
            part.trajectories = None if isinstance(part.trajectories, str) else part.trajectories
        whole = super().merge(parts)
        whole.trajectories = problem or whole.trajectories
        return whole

    def _evaluate(self, candidate: dict[str, str], example: Any, *, capture_traces: bool) -> EvaluationBatch:
        part = super()._evaluate(candidate, example, capture_traces=capture_traces)
        part.trajectories = self._terms.problems.get(candidate["program"], part.trajectories)
        return part


class _Terms:
    """The adapter in the terms of dspy's, as far as evaluating examples asks for them.

    Args:
        host: the adapter.
    """

    reflection_minibatch_size = None

    def __init__(self, host: Any) -> None:
        self._host = host
        self.metric_fn, self.failure_score = host.metric_fn, host.failure_score
        self.num_threads, self.rng = host.num_threads, host.rng
        self.reflection_lm = host.reflection_lm
        self.student = SimpleNamespace(named_predictors=lambda: [("program", SimpleNamespace(lm=host.task_lm))])
        # Its proposer calls what it was given, which is a function of the user's unless it is gepa's own model.
        self.custom_instruction_proposer = None if isinstance(host.reflection_lm, LM) else host.reflection_lm
        #: Sources that do not build, and what the host says of them.
        self.problems: dict[str, str] = {}

    def build_program(self, candidate: dict[str, str]) -> Any:
        """The candidate's program.

        Raises:
            SyntaxError: there is none.
        """
        program, problem = self._host.build_program(candidate)
        if program is None:
            self.problems[candidate["program"]] = problem
            raise SyntaxError(problem)
        return program

    def _make_evaluation_batch(self, outputs: list[Any], scores: list[Any], trajectories: Any) -> EvaluationBatch:
        """The host's batch of one example."""
        score = self.failure_score if scores[0] is None else scores[0]
        return EvaluationBatch(outputs, [score["score"] if hasattr(score, "score") else score], trajectories)
