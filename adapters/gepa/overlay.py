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
    class and instance; a ``property`` among them works as one.

    Args:
        target: any object with an instance dictionary.
        attributes: names to values.
    """
    members = {
        name: value if isinstance(value, property) else property(lambda _self, value=value: value)
        for name, value in attributes.items()
    }
    kind = type(target)
    stand_in = types.new_class(kind.__name__, (kind,), exec_body=lambda body: body.update(members))
    stand_in.__qualname__, stand_in.__module__ = kind.__qualname__, kind.__module__
    made = object.__new__(stand_in)
    made.__dict__ = target.__dict__
    return made
