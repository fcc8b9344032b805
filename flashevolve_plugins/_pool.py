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
        #: What was admitted on part of its validation and is neither confirmed nor removed yet, by its item's number,
        #: oldest first. Its entries have the version 0 and no scores but those of that part.
        self.provisional: dict[int, PoolEntry] = {}

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

    def admit_provisionally(self, entry: PoolEntry) -> None:
        """Let an artifact stand beside the pool until its validation has ended. For the driver alone."""
        assert entry.item is not None  # noqa: S101 - only items are validated
        self.provisional[entry.item] = entry

    def append(self, entries: Iterable[PoolEntry]) -> None:
        """Admit artifacts. For the driver alone."""
        self._entries.extend(entries)
