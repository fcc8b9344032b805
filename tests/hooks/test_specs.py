"""Every hook is typed, prefixed and documented, and every one of them is called by name through the facade."""

import dataclasses
import inspect
import re
import runpy
import typing
from pathlib import Path

import pytest

from flashevolve_plugins import _model, _policies, _pool, _snapshot, hooks
from flashevolve_plugins.hooks import registry, specs
from flashevolve_plugins.hooks.manager import RunHooks, installed

HOOKS = {name: value for name, value in vars(specs).items() if hasattr(value, "flashevolve_spec")}
TYPES = {**vars(_model), **vars(_policies), **vars(_pool), **vars(_snapshot), **vars(registry)}
DECISIONS = ("judge_stale", "merge_batch", "release_stage", "admit_provisional", "plan", "order_samples", "control")
FIRST_RESULT = {f"flashevolve_{name}" for name in DECISIONS}
every_hook = pytest.mark.parametrize("hook", HOOKS.values(), ids=list(HOOKS))


def test_the_hooks_are_these():
    observations = "run_started stage_started stage_finished pool_updated item_ended snapshot run_finished"
    assert set(HOOKS) == {
        "flashevolve_register_policies",
        "flashevolve_register_adapters",
        *FIRST_RESULT,
        *(f"flashevolve_{name}" for name in observations.split()),
    }


@every_hook
def test_every_hook_is_typed(hook):
    hints = typing.get_type_hints(hook, TYPES)
    assert set(hints) == {*inspect.signature(hook).parameters, "return"}
    assert len(hints) > 1


@every_hook
def test_every_hook_says_when_it_fires_on_which_thread_and_what_it_gets(hook):
    text = inspect.getdoc(hook)
    assert "Fires " in text
    assert "thread" in text
    assert text.splitlines()[0].endswith(".")
    for name in inspect.signature(hook).parameters:
        assert f"    {name}: " in text


@every_hook
def test_only_decisions_take_the_first_result(hook):
    assert bool(hook.flashevolve_spec["firstresult"]) is (hook.__name__ in FIRST_RESULT)


def test_the_facade_has_a_method_of_the_same_arguments_for_every_hook_of_a_run():
    for name, hook in HOOKS.items():
        if "_register_" not in name:
            method = getattr(RunHooks, name.removeprefix("flashevolve_"))
            assert list(inspect.signature(method).parameters)[1:] == list(inspect.signature(hook).parameters)


def test_a_third_party_can_implement_every_hook_typed_and_keep_the_contract():
    typed = runpy.run_path(str(Path(__file__).with_name("typed_policy.py")))
    assert set(HOOKS) <= {*typed, *vars(typed["Everything"])}
    typed["check"]()


@pytest.fixture
def page(source_root):
    return (source_root / "docs" / "reference" / "hooks.md").read_text("utf-8")


def rows(page, title):
    """First cell to the other cells of the table of a section."""
    section = page.partition(f"## {title}\n")[2].partition("\n## ")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in section.splitlines() if line[:1] == "|"
    ]
    return {first.strip("` "): others for first, *others in cells[2:]}


def test_the_page_lists_every_hook_with_its_arguments_and_thread_where_it_belongs(page):
    listed = {title: rows(page, title) for title in ("Registration", "Decisions", "Observations")}
    for name, hook in HOOKS.items():
        decides = "Decisions" if name in FIRST_RESULT else "Observations"
        title = "Registration" if "_register_" in name else decides
        when, thread, *_ = listed[title].pop(f"{name}({', '.join(inspect.signature(hook).parameters)})")
        assert when
        assert thread == "caller's" or title == "Registration"
    assert listed == {"Registration": {}, "Decisions": {}, "Observations": {}}


def test_the_page_says_what_each_decision_may_answer(page):
    for call, (_, _, answers) in rows(page, "Decisions").items():
        hints = typing.get_type_hints(HOOKS[call.partition("(")[0]], TYPES)
        allowed = {"None" if kind is type(None) else kind.__name__ for kind in typing.get_args(hints["return"])}
        assert set(re.findall(r"`(\w+)`", answers)) == allowed


def test_the_page_says_what_answers_and_arguments_hold(page):
    classes = {
        "What decisions answer with": (
            hooks.Judgement,
            hooks.Work,
            hooks.Batch,
            hooks.Release,
            hooks.Plan,
            hooks.Workers,
        ),
        "What the arguments hold": (
            hooks.ItemView,
            hooks.Evidence,
            hooks.Progress,
            hooks.Change,
            hooks.PoolEntry,
            hooks.ExampleView,
            hooks.ItemRecord,
        ),
    }
    for title, kinds in classes.items():
        fields = {kind.__name__: ", ".join(each.name for each in dataclasses.fields(kind)) for kind in kinds}
        assert [*rows(page, title)] == [f"{name}({names})" for name, names in fields.items()]


def test_the_page_lists_the_options_of_adaptive_control(page):
    options = ", ".join(
        f"{each.name}={each.default!r}" for each in inspect.signature(hooks.Adaptive).parameters.values()
    )
    assert f'"adaptive"`, `Adaptive({options})`' in page


@pytest.mark.parametrize(
    ("title", "kinds"),
    [
        ("Built-in orders of samples", (hooks.LongestFirst, hooks.Reorder)),
        ("Built-in ways to leave a stage early", (hooks.Decided, hooks.Speculative, hooks.Trailing)),
    ],
)
def test_the_page_lists_every_built_in_plugin_with_its_options(page, title, kinds):
    listed = []
    for kind in kinds:
        options = inspect.signature(kind).parameters.values()
        listed.append(f"{kind.__name__}({', '.join(f'{each.name}={each.default!r}' for each in options)})")
    assert [*rows(page, title)] == listed


def test_the_page_lists_every_built_in_policy_with_its_options(page):
    kinds = {}
    for name, source in installed().policies:
        if source == "policies":
            kind = type(installed().make_policy(name, hooks.PolicySettings()))
            options = ", ".join(f"{each.name}={each.default!r}" for each in inspect.signature(kind).parameters.values())
            kinds[name] = f"`{kind.__name__}({options})`"
    assert {name: cells[0] for name, cells in rows(page, "Built-in policies").items()} == kinds
