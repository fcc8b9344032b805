"""Intervals for pairs of runs with the same seed, and spreads."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

#: 97.5 % quantiles of Student's t with 1, 2, ... 30 degrees of freedom.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


class Interval(NamedTuple):
    """A mean and its 95 % interval, Student's t on the pairs; one pair has no interval: its ends are ``None``."""

    mean: float
    low: float | None
    high: float | None


class Spread(NamedTuple):
    """What values range over."""

    low: float
    mean: float
    median: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Lowest, mean, median and highest of one or more values."""
    return Spread(min(values), statistics.fmean(values), statistics.median(values), max(values))


def interval(values: Sequence[float]) -> Interval:
    """The mean of one or more values, with its interval."""
    mean, count = statistics.fmean(values), len(values)
    if count == 1:
        return Interval(mean, None, None)
    quantile = _T[count - 2] if count - 2 < len(_T) else 1.96 + 2.4 / (count - 1)
    half = quantile * statistics.stdev(values) / math.sqrt(count)
    return Interval(mean, mean - half, mean + half)


def ratio(pairs: Sequence[tuple[float, float]]) -> Interval:
    """The geometric mean of one over the other, with its interval: Student's t on the logarithms."""
    return Interval(*(None if end is None else math.exp(end) for end in interval([math.log(a / b) for a, b in pairs])))  # type: ignore[arg-type]
