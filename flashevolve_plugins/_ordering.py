"""In which order the samples of a validation start: what policies are shown of its examples, and what they answer."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from flashevolve_plugins._policies import ExampleView

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flashevolve_plugins._model import Sample, Stage
    from flashevolve_plugins._policies import Policies
    from flashevolve_plugins._pool import Pool

T = TypeVar("T")


class Examples:
    """What a run knows of the examples of its validations. All on the caller's thread.

    Args:
        policies: who orders them.
        pool: the pool, whose entries have the scores.
    """

    def __init__(self, policies: Policies, pool: Pool) -> None:
        self._policies, self._pool = policies, pool
        self._read = 0  # entries of the pool
        self._scores: defaultdict[Any, dict[int, float]] = defaultdict(dict)
        self._seconds: dict[Any, tuple[float, int]] = {}

    @property
    def ordered(self) -> bool:
        """Whether anybody orders them."""
        return self._policies.orders

    def _took(self, name: Any, seconds: float) -> None:
        total, samples = self._seconds.get(name, (0.0, 0))
        self._seconds[name] = total + seconds, samples + 1

    def _order(self, stage: str, names: Sequence[Any]) -> Sequence[int]:
        for entry in self._pool.since(self._read):
            for name, score in entry.scores.items():
                self._scores[name][entry.version] = score
        self._read = self._pool.version
        order = self._policies.order_samples(stage, [self._view(name) for name in names], self._pool)
        return range(len(names)) if order is None else order

    def arrange(self, stage: Stage, names: Sequence[Sequence[Any]], each: int = 1) -> tuple[Stage, list[int]]:
        """A validation's stage, its samples in the order in which they are to start.

        Args:
            stage: its samples in the host's order.
            names: of the examples of each artifact.
            each: samples of every example, one after the other.

        Returns:
            The stage, and what :func:`in_place` needs to put its results into the host's order.

        Raises:
            PluginError: a policy raised, or answered with no permutation.
        """
        order: list[int] = []
        samples: list[Sample] = []
        for one in names:
            start = len(order)
            for position in self._order(stage.name, one):
                took = partial(self._took, one[position])
                places = range(start + each * position, start + each * (position + 1))
                order.extend(places)
                samples.extend(replace(stage.samples[place], took=took) for place in places)
        return replace(stage, samples=tuple(samples)), order

    def _view(self, name: Any) -> ExampleView:
        total, samples = self._seconds.get(name, (0.0, 0))
        return ExampleView(name, MappingProxyType(self._scores[name]), total / samples if samples else None)


def wrong_order(order: Sequence[Any], examples: int) -> str:
    """What keeps an answer from being the positions of so many examples, each once; empty if nothing does."""
    if any(isinstance(each, bool) or not isinstance(each, int) for each in order):
        return "not all of its positions are whole numbers"
    if sorted(order) != list(range(examples)):
        return f"it must hold each position from 0 to {examples - 1} once"
    return ""


def in_place(values: Iterable[T], order: Sequence[int]) -> list[T]:
    """Values that came in an order, each back in its place.

    Args:
        values: one for each position of ``order``.
        order: a permutation.
    """
    placed = dict(zip(order, values, strict=True))
    return [placed[place] for place in range(len(order))]
