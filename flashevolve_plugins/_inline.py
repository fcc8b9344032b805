"""The inline driver: real time, one sample after the other, all on the caller's thread. For lockstep."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._driver import Driver

if TYPE_CHECKING:
    from flashevolve_plugins._model import Sample


class InlineDriver(Driver):
    """Runs samples where the host would run them: on its own thread, when it is their turn.

    What a sample raises beyond ``Exception``, an interrupt for example, leaves it as it would leave the host.

    Nothing is tried again: the host has its own way with failures.

    Its arguments are those of :class:`Driver`.
    """

    retries = False

    def _prepare(self) -> None:
        self._started: deque[tuple[int, int, Sample]] = deque()

    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    def _start(self, item: int, index: int, sample: Sample) -> None:
        self._started.append((item, index, sample))

    def _wait(self) -> tuple[int, int, Any, BaseException | None, float]:
        item, index, sample = self._started.popleft()
        started = time.monotonic()
        try:
            result, error = sample.call(), None
        except Exception as raised:  # noqa: BLE001 - reported to the host, which handles it as its own
            result, error = None, raised
        return item, index, result, error, time.monotonic() - started

    def close(self) -> None:
        """Nothing is held."""
