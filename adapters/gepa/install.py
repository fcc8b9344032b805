"""Teaches gepa ``executor=``: a wrapper around each of its functions, and one around ``GEPAEngine.run``."""

from __future__ import annotations

import functools
import inspect
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._activation import NOT_GIVEN, current, disabled, resolve, using
from flashevolve_plugins._background import awaitable
from flashevolve_plugins._errors import HostError
from flashevolve_plugins._run_dir import require_writable
from flashevolve_plugins.adapters.gepa.optimize_anything import (
    MODULE,
    configured,
    require_plain,
    teach_config,
    unread,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MARK = "__flashevolve__"
NEEDED = {
    "GEPAEngine": (
        "_run_reflective_batch",
        "_batch_evaluate",
        "_evaluate_programs_on_valset",
        "_should_stop",
        "_report_rejected_proposal",
    ),
    "ReflectiveMutationProposer": ("_propose_texts_batch_safe", "_batch_evaluate", "propose"),
}


def install() -> None:
    """Wrap ``gepa.optimize``, ``optimize_anything`` and ``GEPAEngine.run``, and add ``gepa.aoptimize``.

    Calling it again changes nothing.
    """
    import gepa  # noqa: PLC0415
    import gepa.api  # noqa: PLC0415

    wrapped = with_executor(gepa.api.optimize)
    gepa.api.optimize = gepa.optimize = wrapped
    gepa.api.aoptimize = gepa.aoptimize = awaitable(wrapped, inspect.signature(wrapped), "aoptimize")
    engine = sys.modules["gepa.core.engine"].GEPAEngine
    if not hasattr(engine.run, MARK):
        engine.run = _flash_run(engine.run)
    anything: Any = sys.modules.get(MODULE)
    if anything is not None:  # gepa before 0.1 has none
        teach_config(anything)
        anything.optimize_anything = with_executor(anything.optimize_anything, configured, require_plain)


def with_executor(
    function: Callable[..., Any],
    otherwise: Callable[[Mapping[str, Any]], Any] = lambda _: NOT_GIVEN,
    check: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> Callable[..., Any]:
    """Give a function the keyword ``executor=``.

    ``None`` is the host's own loop, also inside a ``with Flash(...)`` block; ``"flash"`` and a ``Flash`` are flash.

    Args:
        function: the host's.
        otherwise: from its keyword arguments to the executor where none is given.
        check: raises if its arguments, by name, do not go with flash; lockstep does as the host does.
    """
    if hasattr(function, MARK):
        return function

    @functools.wraps(function)
    def wrapper(*args: Any, executor: Any = NOT_GIVEN, **kwargs: Any) -> Any:
        if executor is NOT_GIVEN:
            executor = otherwise(kwargs)
        flash = current() if executor is NOT_GIVEN else resolve(executor)
        if flash is not None and not (flash.lockstep or disabled()):
            check(inspect.signature(function).bind_partial(*args, **kwargs).arguments)
            _require_run_dir(kwargs)  # the host makes it before it comes to anything of ours
        if executor is NOT_GIVEN:
            return function(*args, **kwargs)
        with using(flash):
            return function(*args, **kwargs)

    setattr(wrapper, MARK, True)
    wrapper.__signature__ = signature_with_executor(function)  # type: ignore[attr-defined]
    return wrapper


def _require_run_dir(arguments: Mapping[str, Any]) -> None:
    """The directory among a call's arguments, or in the configuration among them, can be written.

    Raises:
        UsageError: it cannot.
    """
    run_dir = arguments.get("run_dir") or getattr(getattr(arguments.get("config"), "engine", None), "run_dir", None)
    if isinstance(run_dir, str):
        require_writable(run_dir)


def signature_with_executor(function: Callable[..., Any]) -> inspect.Signature:
    """The function's signature with a last keyword ``executor``."""
    signature = inspect.signature(function)
    executor = inspect.Parameter("executor", inspect.Parameter.KEYWORD_ONLY, default=NOT_GIVEN)
    parameters = list(signature.parameters.values())
    at = len(parameters) - any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
    return signature.replace(parameters=[*parameters[:at], executor, *parameters[at:]])


def _flash_run(run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(run)
    def wrapper(self: Any) -> Any:
        executor = unread(sys._getframe(1))
        flash = current() if executor is NOT_GIVEN or disabled() else executor
        if flash is None:
            return run(self)
        require_supported(type(self))
        from flashevolve_plugins.adapters.gepa.run import run_under_flash  # noqa: PLC0415 - only for supported hosts

        return run_under_flash(self, run, flash)

    setattr(wrapper, MARK, True)
    return wrapper


def require_supported(engine: type) -> None:
    """Raise unless this gepa has the seams that we use.

    Raises:
        HostError: names what is installed and what is supported.
    """
    proposers = sys.modules.get("gepa.proposer.reflective_mutation.reflective_mutation")
    found = {"GEPAEngine": engine, "ReflectiveMutationProposer": getattr(proposers, "ReflectiveMutationProposer", None)}
    for kind, names in NEEDED.items():
        for name in names:
            if not hasattr(found[kind], name):
                raise HostError(
                    f"gepa {version('gepa')} is not supported (it has no {kind}.{name}): flash runs with gepa 0.1.4 "
                    "as released, that is with dspy 3.3.1 to 3.4: pip install 'flashevolve-plugins[gepa]'."
                )
