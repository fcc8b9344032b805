"""What comes out of a user's evaluation: scores that a run can use, or one sentence that says why not."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from math import isfinite
from numbers import Real
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._errors import BackendError, UsageError
from flashevolve_plugins._event_loop import awaited
from flashevolve_plugins._redact import shown
from flashevolve_plugins.adapters.gepa.overlay import overlay

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gepa.core.adapter import EvaluationBatch

    from flashevolve_plugins.adapters.gepa.evaluation import Evaluator

logger = logging.getLogger("flashevolve_plugins")


def as_number(score: Any) -> Any:
    """A score as Python's own kind of number, where it is one of another library; anything else as it is.

    Raises:
        TypeError: it is no single number.
        ValueError: it cannot be read as one.
    """
    if type(score) in {float, int, bool}:
        return score
    dimensions: Any = getattr(score, "ndim", None)
    if score is None or isinstance(score, (str, bytes)) or dimensions:
        raise TypeError(f"{type(score).__name__} is no number")
    number = float(score)
    return score if isinstance(score, Real) and not hasattr(score, "item") else number


class UsableScores:
    """Looks at every evaluation of one run, on the slot's own thread or on the event loop.

    - A score that is NaN or infinite is the example's failure: it becomes the adapter's ``failure_score``, else 0.
    - What is no number, or not one for each example, is raised: no run can use it.
    - A call of ``sys.exit`` is raised as an error of the adapter's.

    Args:
        evaluator: the run's.
        adapter: the host's adapter.
    """

    def __init__(self, evaluator: Evaluator, adapter: Any) -> None:
        self._inner = evaluator
        self._name = type(adapter).__name__
        self._failure = 0.0
        with suppress(TypeError, ValueError):
            self._failure = as_number(getattr(adapter, "failure_score", 0.0))
        self._together = evaluator.batch_evaluate
        self._lock = threading.Lock()
        self._said: set[str] = set()
        self._failed = 0
        asynchronous = evaluator.asynchronous
        attributes: dict[str, Any] = {"evaluate": self._await if asynchronous else self._evaluate}
        if self._together is not None:
            attributes["batch_evaluate"] = self._await_together if asynchronous else self._evaluate_together
        #: The evaluator that the run uses.
        self.evaluator: Evaluator = overlay(evaluator, attributes)

    def report(self) -> None:
        """Say how many scores were none, once the run is over."""
        if self._failed > 1:
            logger.warning("%s scores were NaN or infinite, and counted as %s.", self._failed, self._failure)

    def _evaluate(self, candidate: dict[str, str], batch: list[Any], *, capture_traces: bool) -> EvaluationBatch:
        before = [_contents(example) for example in batch]
        try:
            evaluation = self._inner.evaluate(candidate, batch, capture_traces=capture_traces)
        except SystemExit as error:
            raise self._exited(error) from error
        self._notice_changes(batch, before)
        return self._usable(evaluation, len(batch))

    async def _await(self, candidate: dict[str, str], batch: list[Any], *, capture_traces: bool) -> EvaluationBatch:
        before = [_contents(example) for example in batch]
        try:
            evaluation = await self._inner.evaluate(candidate, batch, capture_traces=capture_traces)
        except SystemExit as error:
            raise self._exited(error) from error
        self._notice_changes(batch, before)
        return self._usable(evaluation, len(batch))

    async def _await_together(self, items: list[tuple[dict[str, str], list[Any]]]) -> list[EvaluationBatch]:
        assert self._together is not None  # noqa: S101 - else nobody calls it
        try:
            evaluations: list[EvaluationBatch] = await awaited(self._together(items))
        except SystemExit as error:
            raise self._exited(error) from error
        return self._all_usable(evaluations, items)

    def _evaluate_together(self, items: list[tuple[dict[str, str], list[Any]]]) -> list[EvaluationBatch]:
        assert self._together is not None  # noqa: S101 - else nobody calls it
        try:
            evaluations = list(self._together(items))
        except SystemExit as error:
            raise self._exited(error) from error
        return self._all_usable(evaluations, items)

    def _all_usable(
        self, evaluations: list[EvaluationBatch], items: list[tuple[dict[str, str], list[Any]]]
    ) -> list[EvaluationBatch]:
        if len(evaluations) != len(items):
            raise UsageError(
                f"{self._name}.batch_evaluate gave {len(evaluations)} evaluations for {len(items)} batches: it must "
                "give one for each, in order. What was found before is kept."
            )
        return [self._usable(each, len(batch)) for each, (_, batch) in zip(evaluations, items, strict=True)]

    def _usable(self, evaluation: EvaluationBatch, examples: int) -> EvaluationBatch:
        scores, outputs = getattr(evaluation, "scores", None), getattr(evaluation, "outputs", None)
        if scores is None or outputs is None:
            raise UsageError(
                f"{self._name} gave {type(evaluation).__name__} for an evaluation: it must give an EvaluationBatch "
                "with outputs and scores. What was found before is kept."
            )
        for name, found in (("scores", scores), ("outputs", outputs)):
            if len(found) != examples:
                raise UsageError(
                    f"{self._name} gave {len(found)} {name} for {examples} examples: it must give one for each, in "
                    "order. What was found before is kept."
                )
        usable = [self._score(score) for score in scores]
        if any(one is not other for one, other in zip(usable, scores, strict=True)):
            evaluation.scores = usable
        return evaluation

    def _score(self, score: Any) -> Any:
        try:
            number = as_number(score)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"{self._name} gave the score {shown(score)}, which is no number: it must give a finite number for "
                "every example. What was found before is kept."
            ) from error
        if isfinite(number):
            return number
        with self._lock:
            self._failed += 1
        self._say_once(
            "%s gave the score %s, which counts as %s, an example's failure: let it give a finite number%s. This is "
            "said once.",
            self._name,
            number,
            self._failure,
            "" if self._failure else ", or set failure_score on it",
        )
        return self._failure

    def _exited(self, error: SystemExit) -> BackendError:
        called = f"sys.exit({shown(error.code, 100)})"
        return BackendError(f"{self._name} called {called} while it evaluated: let it raise an exception instead.")

    def _notice_changes(self, batch: Sequence[Any], before: Sequence[dict[Any, Any] | None]) -> None:
        for example, contents in zip(batch, before, strict=True):
            if contents is not None and not _is_same(contents, _contents(example) or {}):
                self._say_once(
                    "%s or what it calls changed an example while it was evaluated: samples share their examples, many "
                    "at once, so scores may depend on their order: let it change a copy. This is said once.",
                    self._name,
                )

    def _say_once(self, sentence: str, *arguments: Any) -> None:
        with self._lock:
            if sentence in self._said:
                return
            self._said.add(sentence)
        logger.warning(sentence, *arguments)


def _contents(example: Any) -> dict[Any, Any] | None:
    """What an example holds, where that is cheap to tell: a ``dict``, or a ``dspy.Example``."""
    held = example if type(example) is dict else getattr(example, "_store", None)
    return dict(held) if isinstance(held, dict) else None


def _is_same(before: dict[Any, Any], after: dict[Any, Any]) -> bool:
    return before.keys() == after.keys() and all(before[name] is after[name] for name in before)
