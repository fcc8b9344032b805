"""What a package says it exports is what it exports."""

import importlib
from types import ModuleType

import pytest

PUBLIC = ("flashevolve_plugins", "flashevolve_plugins.hooks")


def exported(module):
    # submodules that happen to be loaded are no export, nor is what every module imports for its types
    names = {name for name in dir(module) if not name.startswith("_")} - {"annotations", "TYPE_CHECKING"}
    return {name for name in names if not isinstance(getattr(module, name), ModuleType)}


def test_public_packages_say_what_they_export():
    assert [name for name in PUBLIC if not hasattr(importlib.import_module(name), "__all__")] == []


def test_all_equals_what_is_exported(modules):
    packages = [importlib.import_module(module.name) for module in modules if module.path.name == "__init__.py"]
    with_all = {package.__name__: package for package in packages if hasattr(package, "__all__")}
    assert set(PUBLIC) <= set(with_all)
    for name, package in with_all.items():
        assert sorted(package.__all__) == sorted(exported(package)), name


@pytest.mark.parametrize("name", PUBLIC)
def test_all_is_sorted_and_has_no_name_twice(name):
    names = list(importlib.import_module(name).__all__)
    assert names == sorted(set(names))
