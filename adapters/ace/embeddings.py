"""Embeddings of playbook entries, each asked for once."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class KeptEmbeddings:
    """An embedder that keeps what it was given, so that a text is embedded once in a run.

    Args:
        embedder: the host's: from texts to their vectors.
    """

    def __init__(self, embedder: Callable[[Sequence[str]], Any]) -> None:
        self._embedder = embedder
        self._kept: dict[str, Any] = {}

    def prepare(self, texts: Sequence[str]) -> None:
        """Embed these, in a slot. What fails now is tried again when it is needed."""
        with suppress(Exception):
            self(texts)

    def __call__(self, texts: Sequence[str]) -> list[Any]:
        """The vectors of the texts, in order."""
        new = [text for text in dict.fromkeys(texts) if text not in self._kept]
        if new:
            self._kept.update(zip(new, self._embedder(new), strict=True))
        return [self._kept[text] for text in texts]
