"""Everything that can be chosen about a simulated server."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flashevolve_plugins.benchmarks.landscape import Landscape
from flashevolve_plugins.benchmarks.playbook_landscape import PlaybookLandscape
from flashevolve_plugins.benchmarks.server.latency import LatencyModel, OutputLengths

if TYPE_CHECKING:
    from flashevolve_plugins.benchmarks.server.faults import Faults

__all__ = ["ServerSettings"]


@dataclass(frozen=True)
class ServerSettings:
    """What a simulated server is made of.

    Args:
        landscape: decides the answers to prompts.
        latency: decides how long they take.
        lengths: decides how many tokens they count.
        seed: of lengths and answers; the landscape has its own.
        models: names that a request may give as its model, at least one.
        max_requests: under way at once; one more is refused with status 429. ``None`` refuses none: those that cannot
            run at once wait.
        retry_after: seconds, before the time scale, after which a refused client is told to come back.
        playbook: decides the answers of ACE's roles.
        faults: what it does wrong on purpose, or ``None``.

    Raises:
        ValueError: no model is named, or a number is out of its range.
    """

    landscape: Landscape = field(default_factory=Landscape)
    latency: LatencyModel = field(default_factory=LatencyModel)
    lengths: OutputLengths = field(default_factory=OutputLengths)
    seed: int = 0
    models: tuple[str, ...] = ("simulated",)
    max_requests: int | None = None
    retry_after: float = 1.0
    playbook: PlaybookLandscape = field(default_factory=PlaybookLandscape)
    faults: Faults | None = None

    def __post_init__(self) -> None:
        """Check that there is a model, and the ranges."""
        if not self.models:
            msg = "a simulated server needs the name of at least one model"
            raise ValueError(msg)
        if self.max_requests is not None and self.max_requests < 1:
            msg = f"max_requests must be 1 or more, not {self.max_requests}"
            raise ValueError(msg)
        if not (math.isfinite(self.retry_after) and self.retry_after >= 0):
            msg = f"retry_after must be 0 or more, not {self.retry_after}"
            raise ValueError(msg)
