"""gepa's own adapter for one-component programs, so that all candidates of a step are evaluated side by side.

As it stands, gepa's ``DefaultAdapter`` evaluates the candidates of a step one after the other, which would make a
weaker rival of it than need be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dspy
from gepa.adapters.default_adapter.default_adapter import DefaultAdapter
from gepa.core.adapter import EvaluationBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from gepa.lm import LM


class SideBySideAdapter(DefaultAdapter):
    """Evaluates on one pool of threads, whatever the number of candidates.

    Args:
        lm: the task's model.
        metric: dspy's metric, so that every host is scored alike.
        slots: requests at once.
    """

    def __init__(self, lm: LM, metric: Callable[..., Any], slots: int) -> None:
        super().__init__(lm, max_litellm_workers=slots)
        self._lm = lm
        self._metric = metric

    def evaluate(self, batch: list[Any], candidate: dict[str, str], capture_traces: bool = False) -> Any:  # noqa: FBT001, FBT002 - the host's signature
        """Evaluate one candidate."""
        del capture_traces
        return self.batch_evaluate([(candidate, batch)])[0]

    def batch_evaluate(self, items: list[tuple[dict[str, str], list[Any]]]) -> list[Any]:
        """Evaluate several candidates, each on its batch."""
        requests = [
            [{"role": "system", "content": candidate["instruction"]}, {"role": "user", "content": example.question}]
            for candidate, batch in items
            for example in batch
        ]
        answers = iter(self._lm.batch_complete(requests, max_workers=self.max_litellm_workers))
        return [self._scored(batch, [next(answers) for _ in batch]) for _, batch in items]

    def _scored(self, batch: list[Any], answers: list[str]) -> Any:
        outputs, scores, traces = [], [], []
        for example, answer in zip(batch, answers, strict=True):
            result = self._metric(example, dspy.Prediction(answer=answer))
            outputs.append({"full_assistant_response": answer})
            scores.append(result.score)
            traces.append(
                {
                    "data": {"input": example.question, "additional_context": {}, "answer": ""},
                    "full_assistant_response": answer,
                    "feedback": result.feedback,
                }
            )
        return EvaluationBatch(outputs=outputs, scores=scores, trajectories=traces)
