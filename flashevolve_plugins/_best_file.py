"""``best.json``: the best artifact so far, written anew whenever there is a better one."""

from __future__ import annotations

import json
import logging
from copy import copy
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

from flashevolve_plugins._whole_file import plain, write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flashevolve_plugins._flash import Flash
    from flashevolve_plugins._model import PoolEntry

FILE = "best.json"

logger = logging.getLogger("flashevolve_plugins")
_hookimpl = pluggy.HookimplMarker("flashevolve")


def with_best_file(flash: Flash, run_dir: str | None, calls: Callable[[], int], known: Sequence[Any] = ()) -> Flash:
    """The settings for one run, whose best artifact is kept in its directory if it has one.

    Args:
        flash: the settings.
        run_dir: the directory.
        calls: metric calls spent so far.
        known: the artifacts of a run that is taken up.
    """
    if run_dir is None:
        return flash
    keeping = copy(flash)
    keeping.plugins = (*flash.plugins, BestFile(run_dir, calls, known))
    return keeping


class BestFile:
    """An observer like any third party's. What cannot be written is told once, and the run goes on.

    Args:
        run_dir: the run's directory.
        calls: metric calls spent so far.
        known: the artifacts of a run that is taken up, which are told anew: the file stays if it holds their best.
    """

    def __init__(self, run_dir: str, calls: Callable[[], int], known: Sequence[Any] = ()) -> None:
        self._path = Path(run_dir) / FILE
        self._calls = calls
        self._best = self._kept(known)
        self._reported = False

    def _kept(self, known: Sequence[Any]) -> float:
        """The score of the best that the file holds, if the run knows it."""
        try:
            best = json.loads(self._path.read_text(encoding="utf-8"))
            return float(best["score"]) if best["candidate"] in known else float("-inf")
        except (OSError, ValueError, KeyError, TypeError):
            return float("-inf")

    @_hookimpl
    def flashevolve_pool_updated(self, entry: PoolEntry) -> None:
        """Write the file whole, or leave the old one."""
        if isnan(entry.score) or entry.score <= self._best:
            return
        self._best = entry.score
        best = {
            "candidate": entry.artifact,
            "score": entry.score,
            "scores": [[example, score] for example, score in entry.scores.items()],
            "version": entry.version,
            "metric_calls": self._calls(),
        }
        try:
            text = json.dumps(best, ensure_ascii=False, indent=1, default=plain)
            write_whole(self._path, text.encode("utf-8", "backslashreplace"))
        except (OSError, TypeError, ValueError) as error:
            if not self._reported:
                self._reported = True
                reason = f"{type(error).__name__}: {error}"
                logger.warning("The best is not kept in %s (%s). The run goes on.", self._path, reason)
