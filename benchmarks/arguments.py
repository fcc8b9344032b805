"""Command-line options that ``flashevolve demo`` and ``flashevolve bench`` share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flashevolve_plugins import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable


def add_given_server(parser: argparse.ArgumentParser, url: str, *, simulated: str | None = None) -> None:
    """Add the options that name a server of the user's, its model and a task.

    Args:
        parser: where to add them.
        url: the option for the server's base URL.
        simulated: the value that means the simulated server, also the default.
    """
    what = "base URL of an OpenAI-compatible server"
    parser.add_argument(url, default=simulated, help=f"{what}, instead of the simulated one")
    parser.add_argument("--model", help="the model's name on that server")
    parser.add_argument("--data", help="JSON-lines file: question and answer (GSM8K), or context and target (Formula)")
    parser.add_argument("--max-tokens", type=int, default=8000, help="tokens of an answer at most (%(default)s)")


def require_given_server(url: str, values: Iterable[object]) -> bool:
    """Whether a server was given; all of what it needs, or nothing.

    Args:
        url: the option for the server's base URL.
        values: what was given for the URL, the model and the data, ``None`` where nothing was.

    Raises:
        UsageError: only some were given.
    """
    given = [value is not None for value in values]
    if any(given) and not all(given):
        raise UsageError(f"{url}, --model and --data go together: a server, the name of its model, and a file.")
    return all(given)


def require_counts(options: argparse.Namespace, *names: str) -> None:
    """Check that numbers are 1 or more.

    Args:
        options: the options.
        names: of those whose value is a number, a list of numbers, or ``None``.

    Raises:
        UsageError: one is not.
    """
    for name in names:
        value = getattr(options, name)
        for each in value if isinstance(value, list) else [value]:
            if each is not None and each < 1:
                raise UsageError(f"--{name.replace('_', '-')}={each} must be at least 1.")


def require_folder(name: str, path: str) -> None:
    """Check that a file can be saved.

    Args:
        name: the option.
        path: the file.

    Raises:
        UsageError: its folder does not exist.
    """
    if not Path(path).resolve().parent.is_dir():
        raise UsageError(f"{name}={path}: there is no such folder to save the figures in.")
