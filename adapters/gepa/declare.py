"""What kinds of host adapters are declared for what they can evaluate at once. Needs no host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashevolve_plugins.adapters.gepa.evaluation import Evaluator

_declared: list[tuple[Callable[[Any], bool], Callable[[Any], Evaluator]]] = []


def declare(matches: Callable[[Any], bool], make: Callable[[Any], Evaluator]) -> None:
    """Declare how a kind of host adapter evaluates.

    Args:
        matches: whether an adapter is of that kind.
        make: its evaluator for one run.
    """
    _declared.append((matches, make))


def declared_evaluator(adapter: Any) -> Evaluator | None:
    """The evaluator of a declared kind of adapter, or ``None``."""
    return next((make(adapter) for matches, make in _declared if matches(adapter)), None)
