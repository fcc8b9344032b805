"""Everything that can be chosen about a simulated server."""

from __future__ import annotations

from dataclasses import dataclass, field

from flashevolve_plugins.benchmarks.landscape import Landscape
from flashevolve_plugins.benchmarks.server.latency import LatencyModel, OutputLengths

__all__ = ["ServerSettings"]


@dataclass(frozen=True)
class ServerSettings:
    """What a simulated server is made of.

    Args:
        landscape: decides the answers.
        latency: decides how long they take.
        lengths: decides how many tokens they count.
        seed: of lengths and answers; the landscape has its own.
        models: names that a request may give as its model, at least one.

    Raises:
        ValueError: no model is named.
    """

    landscape: Landscape = field(default_factory=Landscape)
    latency: LatencyModel = field(default_factory=LatencyModel)
    lengths: OutputLengths = field(default_factory=OutputLengths)
    seed: int = 0
    models: tuple[str, ...] = ("simulated",)

    def __post_init__(self) -> None:
        """Check that there is a model."""
        if not self.models:
            msg = "a simulated server needs the name of at least one model"
            raise ValueError(msg)
