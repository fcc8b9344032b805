"""Lets infrastructure failures pass code of a host that takes every exception for the failure of an example."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, TypeVar

from flashevolve_plugins._failures import infrastructure

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import ParamSpec

    P = ParamSpec("P")
R = TypeVar("R")


class _PassingError(BaseException):
    """Passes the host's ``except Exception``.

    Args:
        error: what was raised.
    """

    def __init__(self, error: Exception) -> None:
        self.error = error
        super().__init__(error)


def let_through(error: Exception) -> None:
    """Raise what passes the host, if the error says nothing of an example."""
    if infrastructure(error) is not None:
        raise _PassingError(error)


def passing(function: Callable[P, R]) -> Callable[P, R]:
    """A function of the user's whose infrastructure failures pass the host that calls it."""

    @functools.wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        try:
            return function(*arguments, **named)
        except Exception as error:
            let_through(error)
            raise

    return call


def caught(function: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
    """Call a function of the host's, and raise what passed it as what it was."""
    try:
        return function(*arguments, **named)
    except _PassingError as met:
        raise met.error from met.error.__cause__
