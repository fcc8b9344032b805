"""What is installed, and the typed facade through which a run calls its plugins."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import pluggy

from flashevolve_plugins._errors import PluginError, UnknownNameError, UsageError
from flashevolve_plugins._model import Verdict
from flashevolve_plugins._ordering import wrong_order
from flashevolve_plugins._policies import Batch, Judgement, Plan, Release, Work, Workers
from flashevolve_plugins._redact import redact, shown
from flashevolve_plugins.hooks import specs
from flashevolve_plugins.hooks.control import PERIOD, ControlPolicy
from flashevolve_plugins.hooks.registry import AdapterRegistry, PolicyRegistry, PolicySettings
from flashevolve_plugins.hooks.staleness import StalenessPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from importlib.metadata import EntryPoint

    from flashevolve_plugins._model import ItemRecord, ItemView, PoolEntry, Progress
    from flashevolve_plugins._policies import ExampleView
    from flashevolve_plugins._pool import Pool
    from flashevolve_plugins._snapshot import Snapshot

DISTRIBUTION = "flashevolve-plugins"
logger = logging.getLogger("flashevolve_plugins")

GROUP = "flashevolve_plugins"
BLOCK_VARIABLE = "FLASHEVOLVE_BLOCK"


@dataclass(frozen=True)
class InstalledPlugin:
    """One entry point of the group ``flashevolve_plugins``.

    Args:
        name: the entry point's name.
        origin: its distribution and version.
        module: what it points to.
        status: ``"active"``, ``"blocked"``, ``"being imported"``, or the reason why it could not be loaded.
        plugin: the loaded object, or ``None``.
    """

    name: str
    origin: str
    module: str
    status: str
    plugin: Any = None


class Installed:
    """Everything that is installed: loaded once per process by :func:`installed`.

    Args:
        found: the entry points.
        blocked: names that must not be loaded.
    """

    def __init__(self, found: Iterable[EntryPoint], blocked: Iterable[str] = ()) -> None:
        blocked = frozenset(blocked)
        self.policies = PolicyRegistry()
        self.adapters = AdapterRegistry()
        self._importing: list[EntryPoint] = []
        self.plugins = [self._load(point, blocked) for point in found]
        for name in sorted(blocked - {each.name for each in self.plugins}):
            known = ", ".join(each.name for each in self.plugins)
            _warn(f"{BLOCK_VARIABLE} names {name!r}, which is no installed plugin ({known}).", UserWarning)

    def _load(self, point: EntryPoint, blocked: frozenset[str]) -> InstalledPlugin:
        origin = f"{point.dist.name} {point.dist.version}" if point.dist else "unknown"
        if point.name in blocked:
            return InstalledPlugin(point.name, origin, point.value, "blocked")
        if _is_being_imported(point.module):
            self._importing.append(point)
            return InstalledPlugin(point.name, origin, point.value, "being imported")
        forget = (self.policies.mark(), self.adapters.mark())
        try:
            plugin = point.load()
            self._register(plugin, point.name)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a colleague's broken install must not stop this run
            for each in forget:
                each()
            status = f"not loaded: {type(error).__name__}: {error}"
            _warn(f"Plugin {point.name!r} of {origin} was {status}", UserWarning)
            return InstalledPlugin(point.name, origin, point.value, status)
        return InstalledPlugin(point.name, origin, point.value, "active", plugin)

    def _load_imported(self) -> None:
        """Load the plugins whose import was under way, as where a policy's module imports a host."""
        points, self._importing = self._importing, []
        for point in points:
            place = next(place for place, each in enumerate(self.plugins) if each.name == point.name)
            self.plugins[place] = self._load(point, frozenset())

    def _register(self, plugin: object, name: str) -> None:
        manager = _new_manager()
        _add(manager, plugin, name)
        self.policies.source = self.adapters.source = name
        manager.hook.flashevolve_register_policies(registry=self.policies)
        manager.hook.flashevolve_register_adapters(registry=self.adapters)

    def find(self, name: str) -> Any:
        """The plugin of that name.

        Raises:
            UnknownNameError: nothing loaded has that name.
        """
        self._load_imported()
        loaded = {each.name: each.plugin for each in self.plugins if each.plugin is not None}
        if name not in loaded:
            raise UnknownNameError("plugin", name, loaded, self._not_loaded())
        return loaded[name]

    def make_policy(self, name: str, settings: PolicySettings) -> StalenessPolicy:
        """A fresh staleness policy.

        Raises:
            UnknownNameError: nothing loaded has a policy of that name.
            UsageError: its plugin makes something else than a policy.
        """
        self._load_imported()
        sources = dict(self.policies)
        if name not in sources:
            raise UnknownNameError("staleness policy", name, sources, self._not_loaded())
        policy: object = self.policies.make(name, settings)
        if not isinstance(policy, StalenessPolicy):
            raise UsageError(
                f"Plugin {sources[name]!r} made {policy!r:.100} of the policy {name!r}, which is no StalenessPolicy: "
                "the function that it registers must return an object of one."
            )
        return policy

    def _not_loaded(self) -> str:
        """What a name that is missing may have come from."""
        whys = {"blocked": f"blocked by {BLOCK_VARIABLE}"}
        missing = [each for each in self.plugins if each.plugin is None]
        told = [
            f"plugin {each.name!r} of {each.origin} is {whys.get(each.status, each.status.rstrip('.'))}"
            for each in missing
        ]
        return f"Not all that is installed was loaded: {'; '.join(told)}." if told else ""


@lru_cache(maxsize=1)
def installed() -> Installed:
    """Everything installed, less what the environment variable ``FLASHEVOLVE_BLOCK`` names, separated by commas."""
    names = os.environ.get(BLOCK_VARIABLE, "")
    # Ours first, so that no other install can take the name of a built-in policy.
    found = sorted(entry_points(group=GROUP), key=lambda point: not point.dist or point.dist.name != DISTRIBUTION)
    return Installed(found, [name.strip() for name in names.split(",") if name.strip()])


def _is_being_imported(module: str) -> bool:
    """Whether the module, or a package it is in, is there and not complete yet. Ours is, where hosts are watched."""
    parts = module.split(".")
    names = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
    there = (sys.modules.get(name) for name in names if name != GROUP)
    return any(getattr(getattr(each, "__spec__", None), "_initializing", False) for each in there)


def _warn(sentence: str, kind: type[Warning]) -> None:
    """Warn, and take no run down for it."""
    sentence = redact(sentence)
    try:
        warnings.warn(sentence, kind, stacklevel=3)
    except kind:  # where warnings are errors
        logger.warning(sentence)


def _new_manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager(specs.PROJECT)
    manager.add_hookspecs(specs)
    return manager


def _add(manager: pluggy.PluginManager, plugin: object, name: str) -> None:
    if manager.is_registered(plugin):
        raise UsageError(f"Plugin {name!r} is given twice: leave one out.")
    try:
        manager.register(plugin, name=name)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        problem = " ".join(str(error).split())
        raise UsageError(f"Plugin {name!r} implements a hook that does not exist so: {problem}.") from error


class RunHooks:
    """The plugins of one run, typed: what :class:`flashevolve_plugins._policies.Policies` asks for.

    Args:
        staleness: the run's staleness policy.
        plugins: further plugins, as objects or by their entry point's name.
        control: the run's control policy, if it has one.

    Raises:
        UsageError: a plugin implements an unknown hook or none, is a class, or is given twice.
    """

    def __init__(
        self, staleness: StalenessPolicy, plugins: Iterable[object] = (), control: ControlPolicy | None = None
    ) -> None:
        manager = _new_manager()
        self.max_staleness: int | None = getattr(staleness, "max_staleness", None)
        _add(manager, staleness, f"staleness:{type(staleness).__name__}")
        self._control = None if control is None else f"control:{type(control).__name__}"
        if control is not None and self._control is not None:
            _add(manager, control, self._control)
        for plugin in plugins:
            found = installed().find(plugin) if isinstance(plugin, str) else plugin
            name = plugin if isinstance(plugin, str) else type(plugin).__name__
            if isinstance(found, type):
                raise UsageError(f"Plugin {found.__name__!r} is a class: pass an object, {found.__name__}().")
            _add(manager, found, f"{name}#{len(manager.get_plugins())}")
            if not manager.get_hookcallers(found):
                raise UsageError(f"Plugin {name!r} implements no hook: mark its methods with @hookimpl.")
        self._callers = {
            name: _one_by_one(manager, name) for name in vars(specs) if name.startswith(f"{specs.PROJECT}_")
        }
        self.control_period = self._period(manager)
        self._reported: set[tuple[str, str]] = set()

    def _period(self, manager: pluggy.PluginManager) -> float | None:
        """Seconds between two calls of :meth:`control`: as the plugin says that is asked first."""
        asked = self._callers["flashevolve_control"]
        if not asked:
            return None
        period: object = getattr(manager.get_plugin(asked[0][0]), "period", PERIOD)
        if isinstance(period, bool) or not isinstance(period, (int, float)) or not period > 0:
            raise UsageError(f"Plugin {asked[0][0]!r} has period={period!r}: it must be a number of seconds above 0.")
        return float(period)

    @property
    def holds(self) -> bool:
        """Whether a plugin decides what leaves the merge queue."""
        return bool(self._callers["flashevolve_merge_batch"])

    @property
    def plans(self) -> bool:
        """Whether a plugin decides how much may be under way."""
        return bool(self._callers["flashevolve_plan"])

    @property
    def orders(self) -> bool:
        """Whether a plugin decides in which order samples start."""
        return bool(self._callers["flashevolve_order_samples"])

    def judge_stale(self, item: ItemView, pool: Pool) -> Judgement | Work:
        """The first plugin's judgement; accept if none answers."""
        about = f"item {item.number}"
        answer: Judgement | Work | None = self._decide(
            "flashevolve_judge_stale", (Judgement, Work), about, item=item, pool=pool
        )
        return Judgement(Verdict.ACCEPT) if answer is None else answer

    def merge_batch(self, waiting: Sequence[ItemView], pool: Pool, *, last: bool) -> Batch:
        """The first plugin's batch; nothing leaves the queue if none answers."""
        about = f"items {', '.join(str(item.number) for item in waiting)}"
        answer: Batch | None = self._decide(
            "flashevolve_merge_batch", (Batch,), about, waiting=waiting, pool=pool, last=last
        )
        return Batch() if answer is None else answer

    @property
    def releases(self) -> bool:
        """Whether a plugin looks at stages that run."""
        return any(self._callers[f"flashevolve_{name}"] for name in ("release_stage", "admit_provisional"))

    def release_stage(self, item: ItemView, progress: Progress, pool: Pool) -> Release | None:
        """The first plugin's answer, if any has one."""
        about = f"item {item.number}"
        answer: Release | None = self._decide(
            "flashevolve_release_stage", (Release,), about, item=item, progress=progress, pool=pool
        )
        return answer

    def admit_provisional(self, item: ItemView, progress: Progress, pool: Pool) -> bool:
        """The first plugin's answer; no if none has one."""
        about = f"item {item.number}"
        answer: bool | None = self._decide(
            "flashevolve_admit_provisional", (bool,), about, item=item, progress=progress, pool=pool
        )
        return bool(answer)

    def plan(self, snapshot: Snapshot) -> Plan | None:
        """The first plugin's plan, if any has one."""
        answer: Plan | None = self._decide("flashevolve_plan", (Plan,), "the run", snapshot=snapshot)
        return answer

    def control(self, snapshot: Snapshot) -> Workers | None:
        """The first plugin's workers, if any has some.

        Raises:
            UsageError: an option of the run's own control policy does not go with the run.
            PluginError: a plugin raised.
        """
        try:
            answer: Workers | None = self._decide("flashevolve_control", (Workers,), "the run", snapshot=snapshot)
        except PluginError as error:
            if error.plugin == self._control and isinstance(error.error, UsageError):
                raise error.error from None
            raise
        return answer

    def order_samples(self, stage: str, examples: Sequence[ExampleView], pool: Pool) -> Sequence[int] | None:
        """The first plugin's order; the host's own if none answers."""
        about = f"{len(examples)} examples of {stage}"

        def wrong(order: Sequence[Any]) -> str:
            return wrong_order(order, len(examples))

        order: Sequence[int] | None = self._decide(
            "flashevolve_order_samples", (Sequence,), about, wrong, stage=stage, examples=examples, pool=pool
        )
        return order

    def _decide(
        self, hook: str, kinds: tuple[type, ...], about: str, why: Callable[[Any], str] | None = None, **arguments: Any
    ) -> Any:
        for plugin, call in self._callers[hook]:
            try:
                answer = call(**arguments)
            except Exception as error:
                raise PluginError(plugin, hook, about, error) from error
            if answer is None:
                continue
            if isinstance(answer, kinds):
                problem = "" if why is None else why(answer)
            else:
                problem = f"not a {' or '.join(kind.__name__ for kind in kinds)}"
            if not problem:
                return answer
            wrong = TypeError(f"it returned {shown(answer)}, {problem}")
            raise PluginError(plugin, hook, about, wrong) from wrong
        return None

    def run_started(self, snapshot: Snapshot) -> None:
        """Tell the observers."""
        self._observe("flashevolve_run_started", snapshot=snapshot)

    def stage_started(self, item: int, stage: str) -> None:
        """Tell the observers."""
        self._observe("flashevolve_stage_started", item=item, stage=stage)

    def stage_finished(self, item: int, stage: str) -> None:
        """Tell the observers."""
        self._observe("flashevolve_stage_finished", item=item, stage=stage)

    def pool_updated(self, entry: PoolEntry) -> None:
        """Tell the observers."""
        self._observe("flashevolve_pool_updated", entry=entry)

    def item_ended(self, record: ItemRecord) -> None:
        """Tell the observers."""
        self._observe("flashevolve_item_ended", record=record)

    def snapshot(self, snapshot: Snapshot) -> None:
        """Tell the observers."""
        self._observe("flashevolve_snapshot", snapshot=snapshot)

    def run_finished(self, snapshot: Snapshot) -> None:
        """Tell the observers."""
        self._observe("flashevolve_run_finished", snapshot=snapshot)

    def _observe(self, hook: str, **arguments: Any) -> None:
        for plugin, call in self._callers[hook]:
            try:
                call(**arguments)
            except Exception as error:  # noqa: BLE001 - an observer must not stop the run
                if (plugin, hook) not in self._reported:
                    self._reported.add((plugin, hook))
                    about = ", ".join(f"{name}={shown(value)}" for name, value in arguments.items())[:200]
                    problem = PluginError(plugin, hook, about, error)
                    _warn(f"{problem}. The run goes on; this is said once.", RuntimeWarning)


def _one_by_one(manager: pluggy.PluginManager, hook: str) -> list[tuple[str, Any]]:
    """Name and caller of each plugin that implements a hook, last registered first, so that one can be blamed."""
    everyone = manager.get_plugins()
    pairs = []
    for impl in reversed(getattr(manager.hook, hook).get_hookimpls()):
        others = [plugin for plugin in everyone if plugin is not impl.plugin]
        pairs.append((impl.plugin_name, manager.subset_hook_caller(hook, remove_plugins=others)))
    return pairs


def make_policy(name: str, settings: PolicySettings) -> StalenessPolicy:
    """A fresh staleness policy by name."""
    return installed().make_policy(name, settings)
