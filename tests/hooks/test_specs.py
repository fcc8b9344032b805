"""Every hook is typed, prefixed and documented, and every one of them is called by name through the facade."""

import inspect
import typing

import pytest

from flashevolve_plugins import _model, _policies, _pool, _snapshot
from flashevolve_plugins.hooks import registry, specs
from flashevolve_plugins.hooks.manager import RunHooks

HOOKS = {name: value for name, value in vars(specs).items() if hasattr(value, "flashevolve_spec")}
TYPES = {**vars(_model), **vars(_policies), **vars(_pool), **vars(_snapshot), **vars(registry)}
FIRST_RESULT = {"flashevolve_judge_stale"}
every_hook = pytest.mark.parametrize("hook", HOOKS.values(), ids=list(HOOKS))


def test_the_hooks_are_these():
    names = "judge_stale run_started stage_started stage_finished pool_updated item_ended snapshot run_finished"
    assert set(HOOKS) == {
        "flashevolve_register_policies",
        "flashevolve_register_adapters",
        *(f"flashevolve_{name}" for name in names.split()),
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
