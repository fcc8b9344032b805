"""Which policy judges where the artifact is code, given what the user has named."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from flashevolve_plugins.adapters.meta_harness.carry import Carry
from flashevolve_plugins.adapters.meta_harness.rebase import Rebase
from flashevolve_plugins.hooks import Merge, Reflective
from flashevolve_plugins.hooks.registry import PolicySettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashevolve_plugins._flash import Flash
    from flashevolve_plugins.adapters.meta_harness.three_way import Carried


def policy_for(flash: Flash, carried: Callable[[int], Carried]) -> Flash:
    """The settings for one run: ``merge`` carries texts, and ``reflective`` asks the proposer instead of a model.

    Args:
        flash: the settings.
        carried: from an item's number to its change on what is best now.
    """
    policy = flash.staleness
    if policy in ("merge", "reflective"):
        from flashevolve_plugins.hooks.manager import make_policy  # noqa: PLC0415 - only where it is named

        policy = make_policy(policy, PolicySettings(flash.max_staleness))
    settings = copy(flash)
    if type(policy) is Merge:
        settings.staleness = Carry(carried)
        settings.max_items = flash.max_items or policy.max_items
    elif type(policy) is Reflective:
        settings.staleness, settings.max_staleness = Rebase(policy), None
    return settings
