"""What plugins register: policies by name, adapters by the package they watch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from flashevolve_plugins._errors import UnknownNameError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flashevolve_plugins.hooks.staleness import StalenessPolicy


@dataclass(frozen=True)
class PolicySettings:
    """What a run says about its policies.

    Args:
        max_staleness: pool versions an item may lag behind, or ``None`` for the policy's own default.
    """

    max_staleness: int | None = None


PolicyFactory: TypeAlias = "Callable[[PolicySettings], StalenessPolicy]"


class PolicyRegistry:
    """Staleness policies by name. Given to ``flashevolve_register_policies``."""

    def __init__(self) -> None:
        self._factories: dict[str, tuple[PolicyFactory, str]] = {}
        self.source = ""

    def add(self, name: str, factory: PolicyFactory) -> None:
        """Register a policy.

        Args:
            name: what a run calls it.
            factory: makes a fresh policy for a run.

        Raises:
            UsageError: another plugin has taken the name.
        """
        if name in self._factories:
            taken = self._factories[name][1]
            raise UsageError(f"Policy {name!r} of plugin {self.source!r} is already registered by plugin {taken!r}.")
        self._factories[name] = (factory, self.source)

    def mark(self) -> Callable[[], None]:
        """A function that forgets what is added from now on."""
        kept = dict(self._factories)
        return lambda: setattr(self, "_factories", kept)

    def make(self, name: str, settings: PolicySettings) -> StalenessPolicy:
        """A fresh policy for a run.

        Raises:
            UnknownNameError: nothing installed has that name.
        """
        if name not in self._factories:
            raise UnknownNameError("staleness policy", name, self._factories)
        return self._factories[name][0](settings)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Name and plugin of every policy, in the order of their registration."""
        return ((name, source) for name, (_, source) in self._factories.items())


@dataclass(frozen=True)
class HostAdapter:
    """What joins one host.

    Args:
        package: the host's top-level package, for example ``"gepa"``.
        extra: the extra that installs it, for example ``"dspy"``.
        supported: the supported versions, in words.
        install: called once after the host was imported; teaches it ``executor=``.
    """

    package: str
    extra: str
    supported: str
    install: Callable[[], None]


class AdapterRegistry:
    """Adapters by host package. Given to ``flashevolve_register_adapters``."""

    def __init__(self) -> None:
        self._adapters: dict[str, tuple[HostAdapter, str]] = {}
        self.source = ""

    def add(self, adapter: HostAdapter) -> None:
        """Register an adapter; the first one for a package stays."""
        self._adapters.setdefault(adapter.package, (adapter, self.source))

    def mark(self) -> Callable[[], None]:
        """A function that forgets what is added from now on."""
        kept = dict(self._adapters)
        return lambda: setattr(self, "_adapters", kept)

    def get(self, package: str) -> HostAdapter | None:
        """The adapter for a package, or ``None``."""
        found = self._adapters.get(package)
        return found[0] if found else None

    def __iter__(self) -> Iterator[tuple[HostAdapter, str]]:
        """Every adapter and its plugin."""
        return iter(self._adapters.values())
