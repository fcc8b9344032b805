"""A word to a user whose run has come to a stop."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flashevolve_plugins._calls import Calls

SILENT = 300.0  # seconds in which no sample ends

logger = logging.getLogger("flashevolve_plugins")


class Stall:
    """Warns once if nothing has ended for a long time.

    Args:
        now: the driver's clock.
    """

    def __init__(self, now: float) -> None:
        self._last = now
        self._said = False

    def ended(self, now: float) -> None:
        """Something has ended."""
        self._last = now

    def check(self, now: float, calls: Calls) -> None:
        """Warn if that is too long ago."""
        if self._said or now - self._last < SILENT:
            return
        running, oldest = calls.running()
        if not running:
            return
        self._said = True
        logger.warning(
            "No call has ended for %.0f s: %s are under way, the oldest for %.0f s; Flash(sample_timeout=...) ends "
            "calls that take longer.",
            now - self._last,
            running,
            now - oldest,
        )
