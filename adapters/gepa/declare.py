"""What kinds of host adapters are declared for what they can evaluate at once. Needs no host."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashevolve_plugins.adapters.gepa.evaluation import Evaluator

#: A host adapter may carry this attribute to declare what it can do at once: "example", "batch" or "serial".
DECLARATION = "flashevolve_evaluate"
EVALUATING = ("evaluate", "batch_evaluate")

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


def is_shipped(adapter: Any, module: str, name: str) -> bool:
    """Whether an adapter evaluates as gepa's own class of that name does, and says nothing else of itself.

    Args:
        adapter: any adapter. A subclass counts unless it evaluates in a way of its own.
        module: below ``gepa.adapters``. Not imported: whoever has an adapter of its class has imported it.
        name: the class.
    """
    kind = getattr(sys.modules.get(f"gepa.adapters.{module}"), name, None)
    if kind is None or not isinstance(adapter, kind) or getattr(adapter, DECLARATION, None) is not None:
        return False
    replaced = [each for each in EVALUATING if getattr(type(adapter), each, None) is not getattr(kind, each, None)]
    return not replaced and vars(adapter).keys().isdisjoint(EVALUATING)
