"""A staleness policy as a distribution of its own: discards what missed an improvement of the best score."""

from flashevolve_plugins.hooks import (
    ItemView,
    Judgement,
    PolicyRegistry,
    PolicySettings,
    Pool,
    StalenessPolicy,
    hookimpl,
)


class Young(StalenessPolicy):
    """Goes on as long as the pool has not found a better best since the item was born."""

    def judge(self, item: ItemView, pool: Pool) -> Judgement:
        """Compare the best score before and after the item's birth."""
        before = max((entry.score for entry in pool.entries[: item.version]), default=float("-inf"))
        since = max((entry.score for entry in pool.since(item.version)), default=float("-inf"))
        return self.discard(f"the best score rose to {since:.3f} meanwhile") if since > before else self.accept()


@hookimpl
def flashevolve_register_policies(registry: PolicyRegistry) -> None:
    """Register the policy as ``young``."""
    registry.add("young", _make)


def _make(settings: PolicySettings) -> Young:
    del settings  # this policy has no bound to set
    return Young()
