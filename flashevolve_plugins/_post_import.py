"""Calls back once a watched package has been imported, whether that happens before or after the watching began.

Names to watch are asked for only when a package from outside the standard library is imported or already there, so
that ``import flashevolve_plugins`` alone reads no metadata.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

OURS = frozenset({"flashevolve_plugins"})


class _Watcher:
    """Finds nothing itself: wraps the loader of a watched package.

    A meta path finder by its method; ``importlib.abc`` would double the time of our import.

    Args:
        names: gives the packages to watch; asked once.
        imported: called with a package's name after it was imported.
    """

    def __init__(self, names: Callable[[], frozenset[str]], imported: Callable[[str], None]) -> None:
        self._ask = names
        self._names: frozenset[str] | None = None
        self._imported = imported
        self._busy = threading.local()
        self._under_way: list[str] = []

    def tell_those_here(self) -> None:
        """Call back for the watched packages that are there; those still being imported are told at a later import."""
        for name in sorted(self.names()):
            if name in sys.modules:
                self._under_way.append(name)
        self._tell_complete()

    def _tell_complete(self) -> None:
        for name in tuple(self._under_way):
            module = sys.modules.get(name)
            if module is not None and getattr(module.__spec__, "_initializing", False):
                continue
            try:
                self._under_way.remove(name)
            except ValueError:  # another thread was faster
                continue
            if module is not None:
                self._imported(name)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Look up a watched top-level package with the other finders, and wrap its loader."""
        if self._under_way:
            self._tell_complete()
        if path is not None or not _is_foreign(fullname) or getattr(self._busy, "value", False):
            return None
        self._busy.value = True
        try:
            if fullname not in self.names():
                return None
            for finder in sys.meta_path:
                spec = None if finder is self else finder.find_spec(fullname, path, target)
                if spec is not None:
                    if spec.loader is not None:
                        spec.loader = cast("Loader", _CallingBack(spec.loader, lambda: self._imported(fullname)))
                    return spec
            return None
        finally:
            self._busy.value = False

    def names(self) -> frozenset[str]:
        """The watched packages."""
        if self._names is None:
            self._names = self._ask()
        return self._names


class _CallingBack:
    """A package's own loader, with a call at its end."""

    def __init__(self, loader: Any, then: Callable[[], None]) -> None:
        self._loader = loader
        self._then = then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the package's own loader does."""
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        """As the package's own loader does, then the call."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._then()


def _is_foreign(name: str) -> bool:
    return "." not in name and not name.startswith("_") and name not in OURS and name not in sys.stdlib_module_names


def watch(names: Callable[[], frozenset[str]], imported: Callable[[str], None]) -> None:
    """Call back for every watched package, at once for those that are there already.

    Args:
        names: gives the top-level packages to watch; asked at most once.
        imported: called with a package's name, once, after its import; for a package whose import is under way while
            the watching begins, at the next import after it.
    """
    watcher = _Watcher(names, imported)
    sys.meta_path.insert(0, watcher)
    if any(_is_foreign(name) for name in tuple(sys.modules)):
        watcher.tell_those_here()
