"""The rooms of the checkout, read as text: nothing here imports them."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOMS = {
    "flashevolve_plugins": "flashevolve_plugins",
    "hooks": "flashevolve_plugins.hooks",
    "adapters": "flashevolve_plugins.adapters",
    "benchmarks": "flashevolve_plugins.benchmarks",
}


@dataclass(frozen=True)
class Imported:
    """One import statement's target.

    Args:
        name: the absolute dotted name; for ``from a import b`` it is ``a.b``.
        lazy: stands inside a function.
        typing_only: stands under ``if TYPE_CHECKING``.
        line: line number.
    """

    name: str
    lazy: bool
    typing_only: bool
    line: int


@dataclass(frozen=True)
class Module:
    """One file of a room.

    Args:
        path: the file.
        folder: the room, as the folder is called in the checkout.
        name: the dotted name it is installed under.
    """

    path: Path
    folder: str
    name: str

    @property
    def tree(self) -> ast.Module:
        """The parsed file."""
        return ast.parse(self.path.read_text(encoding="utf-8"))

    @property
    def package(self) -> str:
        """The dotted name of the package it is in, or is."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]

    def imports(self) -> list[Imported]:
        """Every import of the file."""
        return list(self._walk(self.tree, lazy=False, typing_only=False))

    def _walk(self, node: ast.AST, *, lazy: bool, typing_only: bool) -> Iterator[Imported]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Imported(alias.name, lazy, typing_only, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = self._absolute(node)
            for alias in node.names:
                yield Imported(f"{base}.{alias.name}", lazy, typing_only, node.lineno)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                yield from self._walk(child, lazy=lazy, typing_only=True)
            for child in node.orelse:
                yield from self._walk(child, lazy=lazy, typing_only=typing_only)
        else:
            lazy = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for child in ast.iter_child_nodes(node):
                yield from self._walk(child, lazy=lazy, typing_only=typing_only)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.package.split(".")
        base = parts[: len(parts) - node.level + 1]
        return ".".join([*base, *([node.module] if node.module else [])])


def _modules_of(source_root: Path) -> Iterator[Module]:
    for folder, installed_as in ROOMS.items():
        for path in sorted((source_root / folder).rglob("*.py")):
            inner = path.relative_to(source_root / folder).with_suffix("").parts
            tail = inner[:-1] if inner[-1] == "__init__" else inner
            yield Module(path, folder, ".".join([installed_as, *tail]))


@pytest.fixture(scope="session")
def modules(source_root: Path) -> list[Module]:
    """Every module of the four rooms."""
    found = list(_modules_of(source_root))
    assert {module.folder for module in found} == set(ROOMS), "a room is missing: this is not the checkout"
    return found
