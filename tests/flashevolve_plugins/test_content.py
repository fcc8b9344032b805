"""Digests of content: equal where the content is, in every process, and only there."""

import io
import subprocess
import sys
import unittest.mock
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import pytest

from flashevolve_plugins._content import Contents, describe, digest


@dataclass
class Pair:
    a: int
    b: str


class Thing:
    def __init__(self, **what):
        self.__dict__.update(what)


def loop():
    made = []
    made.append(made)
    return made


DIFFERENT = [
    None, 0, 1, True, 1.0, "1", b"1", "", (), {}, set(), [1], [1, 2], [[1], 2], [[1, 2]], {"a": 1}, {"a": "1"},
    {1: "a"}, {"a": {"b": 1}}, {1, 2}, frozenset({1}), Pair(1, "b"), Pair(1, "c"), Thing(a=1), Thing(a=2), Thing(b=1),
    len, sorted, float("nan"), "\ud800", loop(),
]  # fmt: skip


def test_different_contents_have_different_digests():
    assert len({digest(value) for value in DIFFERENT}) == len(DIFFERENT)


def test_equal_contents_have_equal_digests_whatever_their_order_of_keys():
    assert digest({"a": 1, "b": [2]}) == digest({"b": (2,), "a": 1})
    assert digest({1, 2, 3}) == digest({3, 2, 1})
    assert digest(Thing(a={"x": 1})) == digest(Thing(a={"x": 1}))


def test_a_digest_is_the_same_in_another_process():
    code = (
        "from flashevolve_plugins._content import digest; print(digest({'b': {3, 'x', 1.5}, 'a': [None, len]}).hex())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == digest({"a": [None, len], "b": {1.5, "x", 3}}).hex()


class Array:
    """As numpy's: its text leaves out the middle of a long one."""

    dtype = "float64"

    def __init__(self, *values):
        self._values, self.shape = values, (len(values),)

    def __array__(self):
        raise NotImplementedError

    def __repr__(self):
        return f"array([{self._values[0]}, ..., {self._values[-1]}])"

    def tobytes(self):
        return bytes(self._values)


def test_a_shortened_text_does_not_make_two_arrays_the_same():
    assert repr(Array(0, 1, 0)) == repr(Array(0, 2, 0))
    assert digest(Array(0, 1, 0)) != digest(Array(0, 2, 0))
    assert digest(Array(0, 1, 0)) == digest(Array(0, 1, 0))


def test_an_example_keeps_the_digest_that_it_had_when_it_was_first_seen():
    contents, example = Contents(), {"question": 1}
    before = contents.of(example)
    example["question"] = 2
    assert contents.of(example) == before
    assert contents.of({"question": 2}) != before


def plain():
    def metric(_):
        return 1

    return metric


def commented():
    def metric(_):
        # a comment
        return 1

    return metric


def changed():
    def metric(_):
        return 2

    return metric


def test_a_function_is_known_by_its_source_without_comments():
    sources = [describe(make()).split()[-1] for make in (plain, commented, changed)]
    assert sources[0] == sources[1] != sources[2]
    assert describe(plain) == describe(partial(plain, 1))
    assert describe(Thing()) == describe(Thing)
    assert describe(type("Made", (), {})).endswith(".Made")  # nobody has its source


class Slotted:
    __slots__ = ("a",)

    def __init__(self, a):
        self.a = a


class Opaque:
    """Says by itself what it is, for pickle alone; its attribute is an object without a content."""

    def __init__(self, pixels):
        self.pixels, self.handle = pixels, object()

    def __getstate__(self):
        return bytes(self.pixels)

    @property
    def __dict__(self):
        return {"handle": self.handle}


@pytest.mark.parametrize("kind", [Slotted, memoryview, bytearray, io.BytesIO, Opaque])
def test_objects_without_attributes_are_told_apart_by_what_they_hold(kind):
    assert digest(kind(b"one")) == digest(kind(b"one")) != digest(kind(b"two"))


class OfObjects(Array):
    """An array of Python objects, whose bytes are addresses."""

    dtype = SimpleNamespace(hasobject=True)

    def tobytes(self):
        return str(id(self)).encode()

    def tolist(self):
        return list(self._values)


def test_an_array_of_objects_is_known_by_these_not_by_their_addresses():
    one, same, other = OfObjects(1, "a"), OfObjects(1, "a"), OfObjects(1, "b")
    assert digest(one) == digest(same) != digest(other)


class Endless:
    """Has every attribute that it is asked for, as a mock has."""

    def __getattr__(self, name):
        return Endless()


def test_an_object_with_every_attribute_is_described_in_the_end():
    assert describe(Endless()).startswith(f"{__name__}.Endless")
    assert describe(unittest.mock.MagicMock()).startswith("unittest.mock.MagicMock")
