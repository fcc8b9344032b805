"""A staleness policy as a distribution of its own: a stale proposal ends only where it was overtaken.

That is, where an artifact that entered the pool since changed the same component and scored above its parent.
"""

from __future__ import annotations

import math

from flashevolve_plugins import UsageError
from flashevolve_plugins.hooks import (
    ItemView,
    Judgement,
    PolicyRegistry,
    PolicySettings,
    Pool,
    StalenessPolicy,
    hookimpl,
)


class Overtaken(StalenessPolicy):
    """Discards a stale proposal if one of its components was improved since.

    Args:
        margin: how much higher than the proposal's parent an artifact must score to count as an improvement.

    Raises:
        UsageError: ``margin`` is not a number of at least 0.
    """

    def __init__(self, margin: float = 0.0) -> None:
        given: object = margin
        if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given < math.inf:
            raise UsageError(f"Overtaken(margin={margin!r}) must be a number of at least 0.")
        self.margin = margin

    def judge(self, item: ItemView, pool: Pool) -> Judgement:
        """Compare the components that the proposal changed with those of what came since."""
        if item.evidence is None:  # before its gate nobody knows what it changes
            return self.accept()
        parent = pool.entries[item.evidence.parent - 1]
        changed = _changed(parent.artifact, item.evidence.artifact)
        for entry in pool.since(item.version):
            both = changed & _changed(parent.artifact, entry.artifact)
            if both and entry.score > parent.score + self.margin:
                names = ", ".join(sorted(both))
                return self.discard(f"{names} was improved meanwhile: {parent.score:.3f} to {entry.score:.3f}")
        return self.accept("nobody improved what it changes")


def _changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name, text in after.items() if text != before[name]}


@hookimpl
def flashevolve_register_policies(registry: PolicyRegistry) -> None:
    """Register the policy as ``overtaken``."""
    registry.add("overtaken", _make)


def _make(settings: PolicySettings) -> Overtaken:
    if settings.max_staleness is not None:
        raise UsageError("max_staleness does not go with the policy 'overtaken', which has no such bound.")
    return Overtaken()
