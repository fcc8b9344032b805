"""One error root, and messages that say what to do next."""

from __future__ import annotations

import inspect

import pytest

import flashevolve_plugins
from flashevolve_plugins import (
    BackendError,
    FlashEvolveError,
    HostError,
    InvalidTransition,
    PluginError,
    UnknownNameError,
    UsageError,
    _errors,
)
from flashevolve_plugins._model import Limits
from flashevolve_plugins._scheduler import Scheduler


def test_every_error_has_the_one_root_and_is_public() -> None:
    ours = [kind for kind in vars(_errors).values() if inspect.isclass(kind) and kind.__module__ == _errors.__name__]
    assert FlashEvolveError in ours
    assert all(issubclass(kind, FlashEvolveError) for kind in ours)
    assert {kind.__name__ for kind in ours} <= set(flashevolve_plugins.__all__)


@pytest.mark.parametrize(
    ("error", "also"),
    [(UsageError, ValueError), (UnknownNameError, UsageError), (HostError, ImportError), (BackendError, Exception)],
)
def test_errors_are_also_what_python_programmers_expect(error: type[Exception], also: type[Exception]) -> None:
    assert issubclass(error, also)


def test_an_unknown_name_lists_the_known_ones_in_order() -> None:
    error = UnknownNameError("staleness policy", "guared", iter(("guarded", "full")))
    assert str(error) == "Unknown staleness policy 'guared': known are 'full', 'guarded'."
    assert (error.kind, error.name, error.known) == ("staleness policy", "guared", ("full", "guarded"))
    assert str(UnknownNameError("executor", 3, ())) == "Unknown executor 3: known are none."


def test_a_plugin_error_names_plugin_hook_item_and_cause() -> None:
    cause = ZeroDivisionError("division by zero")
    error = PluginError("acme", "flashevolve_judge_stale", "item 12", cause)
    assert str(error) == (
        "Plugin 'acme' raised in flashevolve_judge_stale for item 12: ZeroDivisionError: division by zero"
    )
    assert error.error is cause


def test_an_invalid_transition_tells_the_whole_story() -> None:
    error = InvalidTransition(3, "go from ended to waiting", ["offered@2", "rollout", "rejected"])
    assert str(error) == "Item 3 cannot go from ended to waiting. Its story: offered@2 -> rollout -> rejected."
    assert error.story == ("offered@2", "rollout", "rejected")
    assert str(InvalidTransition(3, "be offered", ())).endswith("Its story: none.")


def test_an_entry_resource_without_slots_is_named() -> None:
    with pytest.raises(UsageError, match=r"entry resource 'gpu' has no slots: name it in Limits\.slots"):
        Scheduler(Limits(slots={"task": 1}, stages=("rollout",), entry="gpu"))
