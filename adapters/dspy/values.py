"""What metrics return and how they leave: what counts as the host counts it, and what no run can use."""

from __future__ import annotations

import logging
import threading
from typing import Any

import dspy

from flashevolve_plugins._errors import UsageError
from flashevolve_plugins._redact import shown
from flashevolve_plugins.adapters.gepa.scores import as_number

logger = logging.getLogger("flashevolve_plugins")


def usable(metric: Any, value: Any) -> Any:
    """A metric's value as the host takes it, and a number of another library as Python's own.

    Args:
        metric: the metric.
        value: what it returned.

    Raises:
        UsageError: the host's sum of the scores would raise on it.
    """
    try:
        if isinstance(value, dspy.Prediction):
            as_number(value.score)
            return value
        return as_number(value)
    except (TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"The metric {_name(metric)} returned {shown(value)}, which holds no number: return a number, or "
            "dspy.Prediction(score=..., feedback=...). What was found before is kept."
        ) from error


class Exits:
    """Calls of ``sys.exit`` by programs and metrics: the example's failure, told once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told = False

    def as_error(self, kind: str, raised: SystemExit) -> Exception:
        """What the example's failure is told as."""
        error = RuntimeError(f"sys.exit({shown(raised.code, 100)}) was called")
        error.__cause__ = raised
        with self._lock:
            told, self._told = self._told, True
        if not told:
            logger.warning(
                "The %s called sys.exit(%s), which is its example's failure here: let it raise an exception "
                "instead. This is said once.",
                kind,
                shown(raised.code, 100),
            )
        return error


def _name(metric: Any) -> str:
    return getattr(metric, "__name__", None) or type(metric).__name__
