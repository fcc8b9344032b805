"""Who uses flash: the ``with`` blocks of this context, the process default, and the hosts that learn ``executor=``."""

from __future__ import annotations

import os
import warnings
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._errors import UnknownNameError, UsageError
from flashevolve_plugins._post_import import watch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashevolve_plugins._flash import Flash

GROUP = "flashevolve_plugins"
DISABLE_VARIABLE = "FLASHEVOLVE_DISABLE"

#: The ``with Flash(...)`` blocks around the running code, innermost last. ``None`` switches flash off inside.
_blocks: ContextVar[tuple[Flash | None, ...]] = ContextVar("flashevolve_blocks", default=())
_process_default: list[Flash] = []
_watching: list[bool] = []


class _NotGiven:
    """The default of ``executor=``: neither flash nor ``None`` was asked for."""

    def __repr__(self) -> str:
        return "None"

    def __reduce__(self) -> str:
        """Stay the one object when copied or pickled."""
        return "NOT_GIVEN"


NOT_GIVEN: Any = _NotGiven()


def disabled() -> bool:
    """Whether ``FLASHEVOLVE_DISABLE`` turns everything off: set, and neither empty nor ``0``."""
    return os.environ.get(DISABLE_VARIABLE, "") not in {"", "0"}


def current() -> Flash | None:
    """The flash that a host run starting here and now uses, or ``None`` for the host's own loop."""
    if disabled():
        return None
    blocks = _blocks.get()
    if blocks:
        return blocks[-1]
    return _process_default[-1] if _process_default else None


@contextmanager
def using(flash: Flash | None) -> Iterator[None]:
    """Let host runs inside use ``flash``; ``None``: their own loop."""
    token = _blocks.set((*_blocks.get(), flash))
    try:
        yield
    finally:
        _blocks.reset(token)


def push(flash: Flash) -> None:
    """Enter a ``with`` block."""
    _blocks.set((*_blocks.get(), flash))


def pop(flash: Flash) -> None:
    """Leave the innermost ``with`` block of ``flash``."""
    blocks = _blocks.get()
    for position in range(len(blocks) - 1, -1, -1):
        if blocks[position] is flash:
            _blocks.set(blocks[:position] + blocks[position + 1 :])
            return


@contextmanager
def process_default(flash: Flash) -> Iterator[None]:
    """Let every host run of this process use ``flash``, whatever thread it starts on."""
    _process_default.append(flash)
    try:
        yield
    finally:
        _process_default.remove(flash)


def resolve(executor: Any) -> Flash | None:
    """What an ``executor=`` argument means.

    Args:
        executor: ``None``, ``"flash"`` or a :class:`Flash`.

    Raises:
        UnknownNameError: anything else.
    """
    from flashevolve_plugins._flash import Flash  # noqa: PLC0415 - a cycle otherwise

    if executor is None or isinstance(executor, Flash):
        return executor
    if executor == "flash":
        return Flash()
    if executor is Flash:
        raise UsageError("executor=Flash is the class: write executor=Flash().")
    raise UnknownNameError("executor", executor, ["flash"])


def watch_hosts() -> None:
    """Teach each host ``executor=`` once it is imported; at once if it has been."""
    if not _watching:
        _watching.append(True)
        watch(_host_packages, _host_imported)


def _host_packages() -> frozenset[str]:
    """An adapter's entry point is named after the package it watches, so that nothing has to be loaded before."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow to import

    return frozenset(point.name for point in entry_points(group=GROUP))


def _host_imported(package: str) -> None:
    from flashevolve_plugins.hooks.manager import installed  # noqa: PLC0415 - only when a host is there

    adapter = installed().adapters.get(package)
    if adapter is None:
        return
    try:
        adapter.install()
    except Exception as error:  # noqa: BLE001 - importing the host must go on
        warnings.warn(
            f"{package} does not learn executor=, since this version is not one of {adapter.supported}"
            f" ({type(error).__name__}: {error}).",
            RuntimeWarning,
            stacklevel=2,
        )
