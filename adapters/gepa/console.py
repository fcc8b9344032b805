"""One progress line instead of the host's hundreds: keeps the host's progress lines off the console, and only there."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from gepa.logging.logger import Logger, StdOutLogger

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@contextmanager
def quiet_console(logger: Any, names: Sequence[str] = ()) -> Iterator[None]:
    """Keep the lines of a run's logger off the console for the length of the block.

    gepa's default loggers, which print, print nothing; the one of a run directory still writes its file. A logger on
    top of Python's logging, as dspy's, gets every line at its own level; only the plain stream handlers above it drop
    what is below a warning. Any other logger is left as it is.

    Args:
        logger: the host's logger.
        names: further Python loggers to treat like it, if it is on top of one.
    """
    if type(logger) in {StdOutLogger, Logger}:
        logger.log = partial(_to_file, getattr(logger, "file_handle", None))  # on the instance
        try:
            yield
        finally:
            vars(logger).pop("log", None)  # two runs at once may share a logger
        return
    target = getattr(logger, "logger", None)
    if not isinstance(target, logging.Logger):
        yield
        return
    loggers = [target, *map(logging.getLogger, names)]
    drops = [(handler, _Drop(each.name)) for each in loggers for handler in _consoles(each)]
    for handler, drop in drops:
        handler.addFilter(drop)
    try:
        yield
    finally:
        for handler, drop in drops:
            handler.removeFilter(drop)


def _to_file(file: Any, *words: Any, **_: Any) -> None:
    if file is not None:
        print(*words, file=file, flush=True)


class _Drop(logging.Filter):
    """Drops what one logger says below a warning."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is shown."""
        return record.levelno >= logging.WARNING or not super().filter(record)


def _consoles(logger: logging.Logger) -> Iterator[logging.Handler]:
    """The plain stream handlers that a logger's records reach."""
    found: logging.Logger | None = logger
    while found is not None:
        yield from (handler for handler in found.handlers if type(handler) is logging.StreamHandler)
        found = found.parent if found.propagate else None
