"""The built-in policies, registered exactly as a third party registers its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashevolve_plugins.hooks.specs import hookimpl
from flashevolve_plugins.hooks.staleness import DEFAULT_MAX_STALENESS, Full, Guarded

if TYPE_CHECKING:
    from flashevolve_plugins.hooks.registry import PolicyRegistry, PolicySettings


@hookimpl
def flashevolve_register_policies(registry: PolicyRegistry) -> None:
    """Register ``full`` and ``guarded``."""
    registry.add("full", lambda settings: Full())  # noqa: ARG005 - the factory's shape
    registry.add("guarded", _guarded)


def _guarded(settings: PolicySettings) -> Guarded:
    bound = settings.max_staleness
    return Guarded(DEFAULT_MAX_STALENESS if bound is None else bound)
