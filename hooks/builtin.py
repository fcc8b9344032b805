"""The built-in policies, registered exactly as a third party registers its own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from flashevolve_plugins._errors import UsageError
from flashevolve_plugins.hooks.aggregate import Aggregate
from flashevolve_plugins.hooks.depth import BestFirst, Merge
from flashevolve_plugins.hooks.reflective import Reflective
from flashevolve_plugins.hooks.specs import hookimpl
from flashevolve_plugins.hooks.staleness import DEFAULT_MAX_STALENESS, Full, Guarded

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashevolve_plugins.hooks.registry import PolicyRegistry, PolicySettings
    from flashevolve_plugins.hooks.staleness import StalenessPolicy


@hookimpl
def flashevolve_register_policies(registry: PolicyRegistry) -> None:
    """Register the built-in policies."""
    for name, kind in {"full": Full, "best-first": BestFirst, "merge": Merge, "aggregate": Aggregate}.items():
        registry.add(name, partial(_unbounded, name, kind))
    registry.add("guarded", partial(_bounded, Guarded))
    registry.add("reflective", partial(_bounded, Reflective))


def _unbounded(name: str, kind: Callable[[], StalenessPolicy], settings: PolicySettings) -> StalenessPolicy:
    if settings.max_staleness is not None:
        raise UsageError(
            f"max_staleness={settings.max_staleness} does not go with the policy {name!r}, which has no such bound: "
            "name 'guarded' or 'reflective', or leave it out."
        )
    return kind()


def _bounded(kind: Callable[[int], StalenessPolicy], settings: PolicySettings) -> StalenessPolicy:
    bound = settings.max_staleness
    return kind(DEFAULT_MAX_STALENESS if bound is None else bound)
