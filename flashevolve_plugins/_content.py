"""A digest of what a value holds, the same in every process: results are found again by content, never by position."""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
import textwrap
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # of an object that does not say what it is
_PLAIN = (str, int, float, bool, bytes, type(None))
_OF_PICKLE = ("__reduce__", "__reduce_ex__", "__getstate__")
_MOST_LAYERS = 100  # of what wraps a function; some objects have every attribute that they are asked for


def digest(*values: Any) -> bytes:
    """32 bytes that differ where the values differ, whatever the process, the addresses and the order of keys.

    Args:
        values: anything. Objects count as their class and attributes, functions as their source.
    """
    made = hashlib.sha256()
    for piece in _pieces(values, ()):
        made.update(len(piece).to_bytes(8, "big"))
        made.update(piece)
    return made.digest()


def _pieces(value: Any, inside: tuple[int, ...]) -> Iterator[bytes]:
    """The value, flattened. ``inside``: what contains it, by identity."""
    if isinstance(value, _PLAIN):
        yield f"{type(value).__name__}:{value!r}".encode("utf-8", "surrogatepass")
        return
    if id(value) in inside:
        yield b"itself %d levels up" % (len(inside) - inside.index(id(value)))
        return
    inside = (*inside, id(value))
    if isinstance(value, (bytearray, memoryview)):
        yield type(value).__name__.encode() + bytes(value)
    elif isinstance(value, (list, tuple)):
        yield b"sequence of %d" % len(value)
        for each in value:
            yield from _pieces(each, inside)
    elif isinstance(value, Mapping):
        yield b"mapping of %d" % len(value)
        for key, each in sorted((_joined(key, inside), _joined(each, inside)) for key, each in value.items()):
            yield key + each
    elif isinstance(value, AbstractSet):
        yield b"set of %d" % len(value)
        yield from sorted(_joined(each, inside) for each in value)
    else:
        yield from _of_object(value, inside)


def _joined(value: Any, inside: tuple[int, ...]) -> bytes:
    made = hashlib.sha256()
    for piece in _pieces(value, inside):
        made.update(len(piece).to_bytes(8, "big"))
        made.update(piece)
    return made.digest()


def _of_object(value: Any, inside: tuple[int, ...]) -> Iterator[bytes]:
    kind = type(value)
    yield f"{kind.__module__}.{kind.__qualname__}".encode()
    if isinstance(value, type) or inspect.isroutine(value):
        yield describe(value).encode("utf-8", "surrogatepass")
    elif is_dataclass(value):
        yield from _pieces({each.name: getattr(value, each.name) for each in fields(value)}, inside)
    elif getattr(kind, "__array__", None) is not None and hasattr(value, "tobytes"):  # an array: its text is shortened
        kept = getattr(value, "dtype", None)
        yield repr((getattr(value, "shape", ()), str(kept))).encode()
        if getattr(kept, "hasobject", False):  # its bytes are addresses
            yield from _pieces(value.tolist(), inside)
        else:
            yield value.tobytes()
    elif held := _held(value):
        yield from _pieces(held, inside)
    else:
        yield without_addresses(repr(value)).encode("utf-8", "surrogatepass")


def _held(value: Any) -> Any:
    """What an object is made of: its attributes, or what it would give to pickle where it says so or has no dict."""
    kind = type(value)
    own = any(getattr(kind, name, None) is not getattr(object, name, None) for name in _OF_PICKLE)
    if own or not getattr(value, "__dict__", None):
        with suppress(Exception):  # it cannot be pickled
            made = value.__reduce_ex__(4)
            if isinstance(made, str):
                return made
            _, arguments, state, items, pairs = (*made, None, None, None)[:5]
            given, pieces = [each for each in arguments if each is not kind], [*(items or ()), *(pairs or ())]
            if given or pieces or state is not None:
                return given, state, pieces
    return getattr(value, "__dict__", None)


def without_addresses(text: str) -> str:
    """What objects say of themselves, the same in every process."""
    return _ADDRESS.sub("", text)


def describe(function: Any) -> str:
    """A function's or class's name, and a digest of its source where there is one; comments and layout do not count."""
    for _ in range(_MOST_LAYERS):
        if isinstance(function, partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):  # decorated
            function = function.__wrapped__
        else:
            break
    if not (isinstance(function, type) or inspect.isroutine(function)):
        function = type(function)
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', repr(type(function)))}"
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError):  # a lambda inside an expression, or typed into a prompt
        return name
    return f"{name} {hashlib.sha256(ast.dump(tree).encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


class Contents:
    """Digests of a run's examples. Each is taken once, when it is first seen: a metric may change its example later.

    Args:
        content: what counts of an example.
    """

    def __init__(self, content: Callable[[Any], Any] = lambda example: example) -> None:
        self._known = lru_cache(maxsize=65_536)(lambda example: digest(content(example.value)))

    def of(self, example: Any) -> bytes:
        """The example's digest."""
        return self._known(_Same(example))


class _Same:
    """Equal to itself alone, for as long as it lives."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)
