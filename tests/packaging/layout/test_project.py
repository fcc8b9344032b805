"""pyproject.toml and tox.ini say what the folders say."""

import configparser
import re
import sys
from importlib.metadata import entry_points, metadata, requires

import pytest
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXTRAS = {"ace", "ace-framework", "bench", "demo", "dspy", "gepa", "meta-harness", "server"}
OURS = "flashevolve-plugins"
ON_REQUEST = ["realserver"]


@pytest.fixture
def pyproject(source_root):
    return tomllib.loads((source_root / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_folder_with_a_module_is_a_listed_package(modules, pyproject):
    folders = {module.package for module in modules}
    assert sorted(pyproject["tool"]["setuptools"]["packages"]) == sorted(folders)


def test_every_folder_with_a_module_has_an_init_file(modules):
    assert [str(module.path) for module in modules if not (module.path.parent / "__init__.py").is_file()] == []


def test_the_extras_are_the_documented_ones():
    assert set(metadata(OURS).get_all("Provides-Extra")) == EXTRAS


def test_nothing_pulls_vllm_or_gepas_full_extra():
    wanted = [Requirement(line) for line in requires(OURS)]
    assert len(wanted) > len(EXTRAS)
    assert [str(each) for each in wanted if each.name == "vllm" or (each.name == "gepa" and each.extras)] == []


def test_our_plugins_load_where_no_host_is_installed():
    ours = {point.name: point for point in entry_points(group="flashevolve_plugins") if point.dist.name == OURS}
    assert set(ours) == {"policies", "gepa", "dspy", "ace", "metaharness"}
    for point in ours.values():
        assert point.load().__name__ == point.value
    assert {"dspy", "gepa", "ace", "metaharness"}.isdisjoint(sys.modules)


def paths_run_by(config, environments, source_root):
    commands = "\n".join(config[f"testenv:{name}"]["commands"] for name in environments)
    return [source_root / path for path in re.findall(r"\{tox_root\}/(tests/\S+)", commands)]


def test_every_test_is_run_by_an_environment(source_root):
    config = configparser.ConfigParser(interpolation=None)
    config.read(source_root / "tox.ini", encoding="utf-8")
    by_default = [name.strip() for name in config["tox"]["env_list"].split(",")]
    run = paths_run_by(config, by_default, source_root)
    asked_for = paths_run_by(config, ON_REQUEST, source_root)
    tests = list((source_root / "tests").rglob("test_*.py"))
    assert len(tests) > 1
    ways = {test: {test, *test.parents} for test in tests}
    assert [str(test) for test, way in ways.items() if way.isdisjoint(run + asked_for)] == []
    assert [str(path) for path in run if not any(path in way for way in ways.values())] == []


def test_no_test_skips_itself_where_a_package_is_missing(source_root):
    # An environment is chosen by path, so what a test needs is there; a skip would hide an import of ours that fails.
    word = "import" + "orskip"
    tests = (source_root / "tests").rglob("*.py")
    assert [str(test) for test in tests if word in test.read_text(encoding="utf-8")] == []
