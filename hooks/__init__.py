"""Hook specifications, built-in policies, and what a third party needs to write one.

The shortest plugin::

    # my_policy.py
    from flashevolve_plugins.hooks import StalenessPolicy, hookimpl

    class Young(StalenessPolicy):
        def judge(self, item, pool):
            return self.accept() if item.staleness < 3 else self.discard("too old for me")

    @hookimpl
    def flashevolve_register_policies(registry):
        registry.add("young", lambda settings: Young())

    # pyproject.toml of its distribution
    [project.entry-points.flashevolve_plugins]
    my-policy = "my_policy"

Installed, it does nothing until a run names it: ``Flash(staleness="young")``. To see that it keeps what every policy
keeps, call ``flashevolve_plugins.testing.check_policy(Young)`` in a test of yours.
"""

from flashevolve_plugins._model import (
    Change,
    Check,
    Evidence,
    ItemRecord,
    ItemView,
    PoolEntry,
    Progress,
    Terminal,
    Verdict,
)
from flashevolve_plugins._policies import (
    Ask,
    Batch,
    ExampleView,
    Judgement,
    MergeWriter,
    Plan,
    Release,
    Work,
    Workers,
)
from flashevolve_plugins._pool import Pool
from flashevolve_plugins._snapshot import Snapshot
from flashevolve_plugins.hooks.aggregate import Aggregate
from flashevolve_plugins.hooks.control import Adaptive, ControlPolicy, Fixed
from flashevolve_plugins.hooks.depth import BestFirst, Merge, QueuePolicy
from flashevolve_plugins.hooks.ordering import LongestFirst, Reorder, SampleOrder
from flashevolve_plugins.hooks.reflective import Reflective
from flashevolve_plugins.hooks.registry import AdapterRegistry, HostAdapter, PolicyRegistry, PolicySettings
from flashevolve_plugins.hooks.specs import hookimpl, hookspec
from flashevolve_plugins.hooks.speculation import Decided, Speculative, Trailing
from flashevolve_plugins.hooks.staleness import Full, Guarded, StalenessPolicy

__all__ = [
    "AdapterRegistry",
    "Adaptive",
    "Aggregate",
    "Ask",
    "Batch",
    "BestFirst",
    "Change",
    "Check",
    "ControlPolicy",
    "Decided",
    "Evidence",
    "ExampleView",
    "Fixed",
    "Full",
    "Guarded",
    "HostAdapter",
    "ItemRecord",
    "ItemView",
    "Judgement",
    "LongestFirst",
    "Merge",
    "MergeWriter",
    "Plan",
    "PolicyRegistry",
    "PolicySettings",
    "Pool",
    "PoolEntry",
    "Progress",
    "QueuePolicy",
    "Reflective",
    "Release",
    "Reorder",
    "SampleOrder",
    "Snapshot",
    "Speculative",
    "StalenessPolicy",
    "Terminal",
    "Trailing",
    "Verdict",
    "Work",
    "Workers",
    "hookimpl",
    "hookspec",
]
