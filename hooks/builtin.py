"""The built-in policies, registered exactly as a third party registers its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashevolve_plugins._errors import UsageError
from flashevolve_plugins.hooks.specs import hookimpl
from flashevolve_plugins.hooks.staleness import DEFAULT_MAX_STALENESS, Full, Guarded

if TYPE_CHECKING:
    from flashevolve_plugins.hooks.registry import PolicyRegistry, PolicySettings


@hookimpl
def flashevolve_register_policies(registry: PolicyRegistry) -> None:
    """Register ``full`` and ``guarded``."""
    registry.add("full", _full)
    registry.add("guarded", _guarded)


def _full(settings: PolicySettings) -> Full:
    if settings.max_staleness is not None:
        raise UsageError(
            f"max_staleness={settings.max_staleness} does not go with the policy 'full', which accepts everything: "
            "name 'guarded', or leave it out."
        )
    return Full()


def _guarded(settings: PolicySettings) -> Guarded:
    bound = settings.max_staleness
    return Guarded(DEFAULT_MAX_STALENESS if bound is None else bound)
