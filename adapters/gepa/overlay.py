"""An object that stands in for another one, with some attributes of its own, and leaves the other one untouched."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def overlay(target: Any, attributes: Mapping[str, Any]) -> Any:
    """Stand in for ``target``.

    The result is an instance of the target's class, under the same class name, and shares the target's instance
    dictionary, so that state written through one is seen through the other. ``attributes`` take precedence over both
    class and instance; a ``property`` among them works as one. A target that is not made like that (with slots, or of a
    class that must make its instances itself) is stood in for by an object that looks all other attributes up in it.

    Args:
        target: any object.
        attributes: names to values.
    """
    members = {name: value if isinstance(value, property) else _constant(value) for name, value in attributes.items()}
    kind: Any = type(target)
    shares = kind.__new__ is object.__new__ and not any(vars(base).get("__slots__") for base in kind.__mro__)
    base = kind if shares and hasattr(target, "__dict__") else _Delegate
    stand_in = types.new_class(kind.__name__, (base,), exec_body=lambda body: body.update(members))
    stand_in.__qualname__, stand_in.__module__ = kind.__qualname__, kind.__module__
    made: Any = object.__new__(stand_in)
    if base is _Delegate:
        object.__setattr__(made, "_target", target)
    else:
        made.__dict__ = target.__dict__
    return made


def _constant(value: Any) -> property:
    return property(lambda _self: value)


class _Delegate:
    """Looks every attribute that it does not have itself up in another object."""

    _target: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._target, name, value)
