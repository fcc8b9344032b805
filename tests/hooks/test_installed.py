"""What is installed: registered through the entry-point group, inert until named, never in the way of a run."""

import warnings
from importlib.metadata import distribution, entry_points

import pytest

from flashevolve_plugins import UnknownNameError, UsageError
from flashevolve_plugins.hooks import PolicySettings
from flashevolve_plugins.hooks.manager import BLOCK_VARIABLE, GROUP, Installed, installed

BUILT_IN = {"full", "guarded", "reflective", "best-first", "merge", "aggregate"}
YOUNG = """
from flashevolve_plugins.hooks import Full, hookimpl

@hookimpl
def flashevolve_register_policies(registry):
    registry.add("{name}", lambda settings: Full())
"""
ADAPTER = """
from flashevolve_plugins.hooks import HostAdapter, hookimpl

@hookimpl
def flashevolve_register_adapters(registry):
    registry.add(HostAdapter("myhost", "mine", "all", lambda: None))
"""
BROKEN = {
    "missing": "import a_package_that_is_not_there",
    "raising": "raise RuntimeError('half installed')",
    "exiting": "raise SystemExit('this needs a licence')",
    "unknown_hook": YOUNG.replace("policies(", "polices("),
    "wrong_argument": YOUNG.replace("(registry)", "(registrar)"),
    "taken": YOUNG.format(name="first"),
    "late": YOUNG.format(name="late") + "    raise RuntimeError('after it registered')",
}


@pytest.fixture
def fresh(monkeypatch):
    """Let the test see what is installed anew, and everybody after it too."""
    installed.cache_clear()
    yield monkeypatch
    installed.cache_clear()


def test_the_built_ins_come_from_the_entry_points_of_our_own_distribution():
    ours = {point.name for point in distribution("flashevolve-plugins").entry_points if point.group == GROUP}
    assert ours == {"policies", "gepa", "dspy", "ace", "metaharness"}
    assert {name for name, source in installed().policies if source == "policies"} == BUILT_IN
    adapters = {(adapter.package, source) for adapter, source in installed().adapters}
    assert adapters >= {("gepa", "gepa"), ("dspy", "dspy"), ("ace", "ace"), ("metaharness", "metaharness")}
    plugins = [each for each in installed().plugins if each.name in ours]
    assert {each.name: each.status for each in plugins} == dict.fromkeys(ours, "active")
    assert all(each.origin.startswith("flashevolve-plugins ") for each in plugins)


def test_without_the_built_ins_entry_point_there_is_no_built_in_policy():
    found = [point for point in entry_points(group=GROUP) if point.name != "policies"]
    assert not BUILT_IN & {name for name, _ in Installed(found).policies}


def test_a_third_partys_policy_and_adapter_register_the_same_way(entry_point):
    found = Installed([entry_point("young", YOUNG.format(name="young")), entry_point("mine", ADAPTER)])
    assert list(found.policies) == [("young", "young")]
    assert found.policies.make("young", PolicySettings()) is not None
    assert found.adapters.get("myhost").extra == "mine"
    assert found.adapters.get("another") is None


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_install_warns_and_everything_else_works(broken, entry_point):
    points = [entry_point("first", YOUNG.format(name="first")), entry_point(broken, BROKEN[broken])]
    points.append(entry_point("last", YOUNG.format(name="last")))
    with pytest.warns(UserWarning, match=f"Plugin '{broken}' of unknown was not loaded") as caught:
        found = Installed(points)
    assert len(caught) == 1
    assert list(found.policies) == [("first", "first"), ("last", "last")]
    assert [each.status.split(":")[0] for each in found.plugins] == ["active", "not loaded", "active"]
    asked_for = (
        f"'{broken}': known are 'first', 'last'. Not all .* loaded: plugin '{broken}' of unknown is not loaded: "
    )
    with pytest.raises(UnknownNameError, match=f"Unknown plugin {asked_for}") as raised:
        found.find(broken)
    assert "\n" not in str(raised.value)
    with pytest.raises(UnknownNameError, match=f"Unknown staleness policy {asked_for}"):
        found.make_policy(broken, PolicySettings())


def test_a_broken_install_takes_no_run_down_where_warnings_are_errors(entry_point, caplog):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = Installed([entry_point("broken", BROKEN["missing"])], blocked=["nobody"])
    assert [each.status.split(":")[0] for each in found.plugins] == ["not loaded"]
    assert "Plugin 'broken' of unknown was not loaded" in caplog.text
    assert "names 'nobody', which is no installed plugin" in caplog.text


@pytest.mark.parametrize("made", ["Full", "None", "'full'"])
def test_a_plugin_that_makes_no_policy_is_named(made, entry_point):
    found = Installed([entry_point("young", YOUNG.format(name="new").replace("Full()", made))])
    with pytest.raises(UsageError, match="Plugin 'young' made .* of the policy 'new', which is no StalenessPolicy"):
        found.make_policy("new", PolicySettings())


def test_a_blocked_plugin_is_not_even_imported(entry_point):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = Installed([entry_point("bad", BROKEN["raising"]), entry_point("good", ADAPTER)], blocked=["bad"])
    assert [(each.name, each.status) for each in found.plugins] == [("bad", "blocked"), ("good", "active")]


def test_the_environment_blocks_by_name(fresh):
    fresh.setenv(BLOCK_VARIABLE, " dspy, gepa,nobody ,")
    with pytest.warns(UserWarning, match="FLASHEVOLVE_BLOCK names 'nobody', which is no installed plugin") as caught:
        statuses = {each.name: each.status for each in installed().plugins}
    assert len(caught) == 1
    assert statuses | {"dspy": "blocked", "gepa": "blocked", "policies": "active"} == statuses
    assert installed().adapters.get("dspy") is None


def test_a_blocked_policy_is_unknown_and_the_rest_is_listed(fresh):
    fresh.setenv(BLOCK_VARIABLE, "policies")
    with pytest.raises(
        UnknownNameError, match="plugin 'policies' of flashevolve-plugins .* is blocked by FLASHEVOLVE_B"
    ):
        installed().make_policy("full", PolicySettings())
