"""The entries of a playbook at one pool version. Thousands of versions share what they have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

MOST_CHANGES = 64  # since the version that is kept whole


class Entries(Mapping[str, str]):
    """Entry id to its text. Nobody changes it.

    Args:
        whole: the entries of an earlier version, as they were.
        changes: what has changed since; ``None`` for an entry that is gone.
    """

    def __init__(self, whole: Mapping[str, str], changes: Mapping[str, str | None] | None = None) -> None:
        self.whole, self.changes = whole, changes or {}

    def __getitem__(self, entry: str) -> str:
        """The text of an entry."""
        text = self.changes[entry] if entry in self.changes else self.whole[entry]
        if text is None:
            raise KeyError(entry)
        return text

    def __iter__(self) -> Iterator[str]:
        """The ids."""
        for entry in self.whole:
            if self.changes.get(entry, "") is not None:
                yield entry
        for entry, text in self.changes.items():
            if entry not in self.whole and text is not None:
                yield entry

    def __len__(self) -> int:
        """How many entries there are."""
        return sum(1 for _ in self)


def following(before: Entries, now: Mapping[str, str]) -> Entries:
    """The entries now, kept as what differs from those before; those themselves if nothing does.

    Args:
        before: the entries of the version before.
        now: all entries.
    """
    changes: dict[str, str | None] = {entry: text for entry, text in now.items() if before.get(entry) != text}
    changes.update((entry, None) for entry in before if entry not in now)
    if not changes:
        return before
    changes = {**before.changes, **changes}
    return Entries(now) if len(changes) > MOST_CHANGES else Entries(before.whole, changes)
