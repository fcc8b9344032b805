"""The host's page of the candidate tree, in which what a model wrote stays text.

The host puts the candidates into a script of the page as JSON, where the words that end a script would end it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flashevolve_plugins.adapters.gepa.overlay import overlay

FILE = "candidate_tree.html"
BEGIN, END = "const NODES = ", "\nconst DOT = `"  # around the candidates; no text of theirs has a newline of its own


def draw_tree(engine: Any, state: Any) -> None:
    """Have the host draw the tree for its tracker and its directory, and tell what it cannot draw.

    Args:
        engine: the host's engine.
        state: the host's state.
    """
    overlay(engine, {"experiment_tracker": _Page(engine), "run_dir": None})._log_candidate_tree(state)


class _Page:
    """Stands in for the host's tracker.

    Args:
        engine: the host's engine.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def log_html(self, page: str, *, key: str) -> None:
        """Log the page, and write it to the directory."""
        page = text_alone(page)
        self._engine.experiment_tracker.log_html(page, key=key)
        if self._engine.run_dir is not None:
            (Path(self._engine.run_dir) / FILE).write_text(page, encoding="utf-8")


def text_alone(page: str) -> str:
    """The page, without a tag among its candidates.

    Args:
        page: the host's.

    Raises:
        ValueError: it is made in another way.
    """
    begin = page.index(BEGIN)
    end = page.index(END, begin)
    return page[:begin] + page[begin:end].replace("<", "\\u003c") + page[end:]
