"""The pool: every admitted artifact, append-only, with one writer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flashevolve_plugins._model import PoolEntry


class Pool:
    """All admitted artifacts in the order of their admission.

    Policies read it on the caller's thread; only the driver writes.
    """

    def __init__(self) -> None:
        self._entries: list[PoolEntry] = []

    @property
    def version(self) -> int:
        """The number of entries."""
        return len(self._entries)

    @property
    def entries(self) -> Sequence[PoolEntry]:
        """Every entry, oldest first."""
        return tuple(self._entries)

    def since(self, version: int) -> Sequence[PoolEntry]:
        """The entries that came after ``version``, oldest first."""
        return tuple(self._entries[version:])

    def append(self, entries: Iterable[PoolEntry]) -> None:
        """Admit artifacts. For the driver alone."""
        self._entries.extend(entries)
