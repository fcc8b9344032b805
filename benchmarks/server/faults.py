"""What a server does wrong on purpose: by number of request, or by chance with a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["KINDS", "Faults"]

KINDS = ("reset", "half-closed", "truncated", "malformed", "empty", "429", "503", "hang", "drip")


@dataclass(frozen=True)
class Faults:
    """Which requests are answered wrongly, and how.

    Args:
        kinds: what happens, drawn for each of them: ``reset`` (the connection is reset), ``half-closed`` (headers, then
            it is closed), ``truncated`` (closed after half of the body), ``malformed`` (no JSON), ``empty`` (no
            choices), ``429`` (with Retry-After), ``503``, ``hang`` (nothing comes), ``drip`` (the body comes slowly).
        share: of the requests, 0 to 1.
        requests: numbers of requests besides, counted from 1.
        first: the first request that may be answered wrongly.
        last: the last one, or ``None``.
        seed: of the draws.
        retry_after: seconds that a refused client is told to wait.
        seconds: that a drip takes.

    Raises:
        ValueError: a kind that is none, or a number out of its range.
    """

    kinds: tuple[str, ...] = KINDS
    share: float = 0.0
    requests: tuple[int, ...] = ()
    first: int = 1
    last: int | None = None
    seed: int = 0
    retry_after: float = 1.0
    seconds: float = 600.0

    def __post_init__(self) -> None:
        """Check the kinds and the ranges."""
        if not self.kinds or set(self.kinds) - set(KINDS):
            msg = f"kinds of faults must be some of {', '.join(KINDS)}, not {', '.join(map(str, self.kinds)) or 'none'}"
            raise ValueError(msg)
        if not 0 <= self.share <= 1:
            msg = f"the share of faults must lie within 0 and 1, not {self.share}"
            raise ValueError(msg)

    def draw(self, number: int) -> str | None:
        """What happens to a request, or ``None`` if it is answered."""
        if number < self.first or (self.last is not None and number > self.last):
            return None
        draw = random.Random(f"{self.seed}:{number}")
        hit = draw.random() < self.share or number in self.requests
        return draw.choice(self.kinds) if hit else None
