"""An evaluation as bytes, without what belongs to the process: predictors, their signatures, models and examples.

Predictors and examples are named instead, so that no key of a model gets into a file, and what is read later is made
of the program and the examples of that time.
"""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any

import dspy
from dspy.clients.base_lm import BaseLM

from flashevolve_plugins.adapters.dspy.samples import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Predictors = Callable[[], Mapping[str, Any]]


def freeze(predictors: Predictors, examples: Sequence[Any], batch: Any) -> bytes:
    """The batch as bytes.

    Args:
        predictors: gives those of the candidate's program, by name.
        examples: the batch's.
        batch: the host's batch.

    Raises:
        pickle.PicklingError: it holds a model, or a module that is no predictor of the program.
    """
    written = io.BytesIO()
    _Pickler(written, predictors, examples).dump({name: getattr(batch, name, ()) for name in _PARTS})
    return written.getvalue()


def thaw(predictors: Predictors, examples: Sequence[Any], frozen: bytes) -> Batch:
    """The batch again.

    Args:
        predictors: gives those of the candidate's program, by name.
        examples: the batch's.
        frozen: what :func:`freeze` gave.
    """
    return Batch(**_Unpickler(io.BytesIO(frozen), predictors, examples).load())


_PARTS = ("outputs", "scores", "trajectories", "objective_scores", "num_metric_calls", "results")


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, predictors: Predictors, examples: Sequence[Any]) -> None:
        super().__init__(file, protocol=5)
        self._predictors = predictors
        self._places = {id(example): place for place, example in enumerate(examples)}

    def persistent_id(self, value: Any) -> tuple[str, Any] | None:
        """The name of what is not written."""
        if id(value) in self._places:
            return "example", self._places[id(value)]
        if isinstance(value, dspy.Module):
            return "predictor", self._name(value)
        if isinstance(value, BaseLM):
            raise pickle.PicklingError("a model is not written to a file")
        if isinstance(value, type) and issubclass(value, dspy.Signature):
            return "signature", None  # of a prediction's completions, where nobody reads it
        return None

    def _name(self, module: Any) -> str:
        """A predictor's name: its program may have been built anew since, so it is known by its signature."""
        signature = getattr(module, "signature", None)
        for name, predictor in self._predictors().items():
            if predictor is module or (signature is not None and signature.equals(predictor.signature)):
                return name
        raise pickle.PicklingError(f"{type(module).__name__} is no predictor of the program")


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, predictors: Predictors, examples: Sequence[Any]) -> None:
        super().__init__(file)
        self._predictors, self._examples = predictors, examples

    def persistent_load(self, named: tuple[str, Any]) -> Any:
        """What was named."""
        kind, name = named
        if kind == "example":
            return self._examples[name]
        return self._predictors()[name] if kind == "predictor" else None
