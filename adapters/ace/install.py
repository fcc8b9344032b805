"""Finds out which ``ace`` was imported, and teaches it ``executor=``."""

from __future__ import annotations

import functools
import inspect
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._activation import NOT_GIVEN, current, disabled, resolve
from flashevolve_plugins._errors import HostError

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashevolve_plugins._flash import Flash
    from flashevolve_plugins.adapters.ace.host import PlaybookHost

MARK = "__flashevolve__"
GIVEN = "_flashevolve_executor"
PLAYBOOK = ("step", "_build_feedback", "_maybe_refine", "_usage_snapshot", "_usage_delta")  # methods of ace-playbook
AGENT = ("run", "_offline_train", "_online_train_and_test", "_train_single_sample")  # methods of ace-agent/ace
THREE = "ace-playbook 0.3, ace-framework 0.7.0 to 0.7.1, or a checkout of ace-agent/ace"


def install() -> None:
    """Teach the imported ``ace``. Calling it again changes nothing.

    Raises:
        HostError: it is none of the three.
    """
    package = sys.modules["ace"]
    if _has(package, "ACE", "Playbook", "apply_delta", "DeltaContext") and _has(package.ACE, *PLAYBOOK):
        _teach_playbook(package)
    elif _is_framework(package):
        _teach_framework(package)
    elif _has(package, "ACE", "Generator", "Reflector", "Curator") and _has(package.ACE, *AGENT):
        _teach_agent(package)
    else:
        raise HostError(f"The package ace at {getattr(package, '__file__', None)} is none that flash knows: {THREE}.")


def _has(package: Any, *names: str) -> bool:
    return all(hasattr(package, name) for name in names)


def _is_framework(package: Any) -> bool:
    """``ace-framework`` of a version whose loop is known: later ones are another design under the same names."""
    try:
        numbers = version("ace-framework").split(".")
    except PackageNotFoundError:
        return False
    known = numbers[:2] == ["0", "7"] and numbers[2:3] in (["0"], ["1"])
    return known and _has(package, "OfflineACE", "ReplayAgent", "Skillbook", "UpdateBatch", "UpdateOperation")


def _teach_playbook(package: Any) -> None:
    """``ace-playbook``."""

    def offline(ace: Any, flash: Flash, task: Any, callback: Any = None, feedback_fn: Any = None) -> PlaybookHost:
        from flashevolve_plugins.adapters.ace.ace_playbook import AcePlaybook  # noqa: PLC0415 - for this host alone

        phases = [f"offline-e{epoch + 1}" for epoch in range(ace.config.epochs)]
        return AcePlaybook(ace, task, phases, callback, feedback_fn, lockstep=flash.lockstep)

    def online(ace: Any, flash: Flash, task: Any, callback: Any = None, feedback_fn: Any = None) -> PlaybookHost:
        from flashevolve_plugins.adapters.ace.ace_playbook import AcePlaybook  # noqa: PLC0415 - for this host alone

        return AcePlaybook(ace, task, ["online"], callback, feedback_fn, lockstep=flash.lockstep)

    teach_constructor(package.ACE)
    teach_method(package.ACE, "adapt_offline", offline)
    teach_method(package.ACE, "adapt_online", online)


def _teach_framework(package: Any) -> None:
    """``ace-framework``. ``OnlineACE`` stays as it is."""
    original = package.OfflineACE.run

    def run(ace: Any, flash: Flash, *args: Any, **kwargs: Any) -> PlaybookHost:
        from flashevolve_plugins.adapters.ace.ace_framework import AceFramework  # noqa: PLC0415 - for this host alone

        given = inspect.signature(original).bind(ace, *args, **kwargs)
        given.apply_defaults()
        host = AceFramework(ace, given.arguments, lockstep=flash.lockstep)
        given.arguments["samples"] = ()  # the host checks the others
        original(*given.args, **given.kwargs)
        return host

    teach_constructor(package.OfflineACE)
    teach_method(package.OfflineACE, "run", run)


def _teach_agent(package: Any) -> None:
    """A checkout of ace-agent/ace: ``run`` stays the host's, but for what it calls to train."""

    def run(ace: Any, flash: Flash, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        from flashevolve_plugins.adapters.ace.ace_agent_run import require_runnable  # noqa: PLC0415 - for this host

        given = inspect.signature(original).bind(ace, *args, **kwargs).arguments
        require_runnable(ace, flash, given["mode"], given.get("val_samples"))
        return original(ace, *args, **kwargs)

    def offline(ace: Any, flash: Flash, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        from flashevolve_plugins.adapters.ace.ace_agent_run import train_offline  # noqa: PLC0415 - for this host alone

        given = inspect.signature(original).bind(ace, *args, **kwargs).arguments
        return train_offline(flash=flash, ace=given.pop("self"), **given)

    def online(ace: Any, flash: Flash, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        from flashevolve_plugins.adapters.ace.ace_agent_run import train_online  # noqa: PLC0415 - for this host alone

        given = inspect.signature(original).bind(ace, *args, **kwargs).arguments
        return train_online(flash=flash, ace=given.pop("self"), **given)

    teach_constructor(package.ACE)
    wrap_method(package.ACE, "run", run)
    wrap_method(package.ACE, "_offline_train", offline)
    wrap_method(package.ACE, "_online_train_and_test", online)


def teach_constructor(kind: Any) -> None:
    """Let a class be made with ``executor=``, which its objects keep."""
    original = kind.__init__
    if hasattr(original, MARK):
        return

    @functools.wraps(original)
    def init(self: Any, *args: Any, executor: Any = NOT_GIVEN, **kwargs: Any) -> None:
        flash = executor if executor is NOT_GIVEN else resolve(executor)
        original(self, *args, **kwargs)
        if flash is not NOT_GIVEN:
            setattr(self, GIVEN, flash)

    signature = inspect.signature(original)
    option = inspect.Parameter("executor", inspect.Parameter.KEYWORD_ONLY, default=NOT_GIVEN)
    init.__signature__ = signature.replace(parameters=[*signature.parameters.values(), option])  # type: ignore[attr-defined]
    setattr(init, MARK, True)
    kind.__init__ = init


def teach_method(kind: Any, name: str, begin: Callable[..., PlaybookHost]) -> None:
    """Let a method run under flash.

    Args:
        kind: the host's class.
        name: the method's name.
        begin: makes the run from the object, the flash and the method's arguments.
    """

    def method(self: Any, flash: Flash, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        from flashevolve_plugins.adapters.ace.run import run_under_flash  # noqa: PLC0415 - only where it is used

        inspect.signature(original).bind(self, *args, **kwargs)  # a wrong argument gets the host's own words
        return run_under_flash(begin(self, flash, *args, **kwargs), flash)

    wrap_method(kind, name, method)


def wrap_method(kind: Any, name: str, under_flash: Callable[..., Any]) -> None:
    """Let another function stand in for a method under flash.

    Args:
        kind: the host's class.
        name: the method's name.
        under_flash: is given the object, the flash, the host's own method, and the method's arguments.
    """
    original = getattr(kind, name)
    if hasattr(original, MARK):
        return

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        flash = flash_of(self)
        if flash is None:
            return original(self, *args, **kwargs)
        return under_flash(self, flash, original, *args, **kwargs)

    setattr(method, MARK, True)
    setattr(kind, name, method)


def flash_of(ace: Any) -> Flash | None:
    """The flash of an object made with ``executor=``, else that of the ``with`` block around."""
    given = getattr(ace, GIVEN, NOT_GIVEN)
    if given is NOT_GIVEN or disabled():
        return current()
    return given  # type: ignore[no-any-return]
