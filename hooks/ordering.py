"""Policies that say in which order the samples of a validation start. Each runs all of them, whatever the order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import takewhile
from math import isnan
from statistics import fmean
from typing import TYPE_CHECKING

from flashevolve_plugins._errors import UsageError
from flashevolve_plugins.hooks.specs import hookimpl
from flashevolve_plugins.hooks.staleness import require_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashevolve_plugins._policies import ExampleView
    from flashevolve_plugins._pool import Pool


class SampleOrder(ABC):
    """Orders the samples of a validation: ``Flash(plugins=[Reorder()])``.

    Called by the driver, on the thread that called the host, never two calls at once. What it is given is to be read
    only. The same history gets the same answer.
    """

    @abstractmethod
    def order(self, examples: Sequence[ExampleView], pool: Pool) -> Sequence[int]:
        """Say in which order they start.

        Args:
            examples: what is known of each, in the host's order.
            pool: all admitted artifacts.

        Returns:
            The position of each in ``examples`` once, the first to start first.
        """

    @hookimpl
    def flashevolve_order_samples(self, examples: Sequence[ExampleView], pool: Pool) -> Sequence[int]:
        """Answer the hook with :meth:`order`."""
        return self.order(examples, pool)


class Reorder(SampleOrder):
    """What passed in the last validations in a row goes behind the rest (paper, section on validation-set reordering).

    So the examples that start first still tell candidates apart.

    Args:
        window: validations in a row.
        passed: the score from which on an example has passed.

    Raises:
        UsageError: an option that cannot work.
    """

    def __init__(self, window: int = 3, passed: float = 1.0) -> None:
        self.window = require_count("Reorder", "window", window, 1)
        score: object = passed
        if isinstance(score, bool) or not isinstance(score, (int, float)) or isnan(score):
            raise UsageError(f"Reorder(passed={passed!r}) must be a score, such as 1.0.")
        self.passed = passed

    def order(self, examples: Sequence[ExampleView], pool: Pool) -> Sequence[int]:
        """In the host's order, first those that did not pass so often."""
        del pool
        passed = [self._has_passed(each) for each in examples]
        return sorted(range(len(examples)), key=lambda place: passed[place])

    def _has_passed(self, example: ExampleView) -> bool:
        newest_first = reversed(tuple(example.scores.values()))
        return len([*takewhile(lambda score: score >= self.passed, newest_first)]) >= self.window


class LongestFirst(SampleOrder):
    """What took longest in validations before starts first, so that a validation does not end with waiting for it.

    An example that has not run yet counts as the mean of the others.
    """

    def order(self, examples: Sequence[ExampleView], pool: Pool) -> Sequence[int]:
        """By the seconds that they took, the longest first."""
        del pool
        known = [each.seconds for each in examples if each.seconds is not None]
        usual = fmean(known) if known else 0.0
        seconds = [usual if each.seconds is None else each.seconds for each in examples]
        return sorted(range(len(examples)), key=lambda place: -seconds[place])
