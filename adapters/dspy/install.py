"""Teaches ``dspy.GEPA`` its keyword ``executor=``; everything else of the class stays as it is."""

from __future__ import annotations

import functools
import inspect
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._activation import NOT_GIVEN, resolve, using
from flashevolve_plugins._background import awaitable
from flashevolve_plugins._errors import HostError
from flashevolve_plugins.adapters.gepa.declare import declare, is_shipped
from flashevolve_plugins.adapters.gepa.install import MARK, signature_with_executor

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ATTRIBUTE = "executor"
FULL_PROGRAM = "dspy_full_program_adapter.full_program_adapter"


def install() -> None:
    """Wrap the constructor and ``compile`` of ``dspy.GEPA``, and add ``acompile``. Calling it again changes nothing."""
    import dspy.teleprompt.gepa.gepa as module  # noqa: PLC0415

    optimizer = module.GEPA
    if hasattr(optimizer.__init__, MARK):
        return
    optimizer.__init__ = _with_executor(optimizer.__init__)
    optimizer.compile = _under_executor(optimizer.compile)
    optimizer.acompile = _awaited(optimizer.compile)
    declare(functools.partial(_evaluates_as, module.DspyAdapter), _make_evaluator)
    declare(functools.partial(is_shipped, module=FULL_PROGRAM, name="DspyAdapter"), _make_full_program_evaluator)


def _with_executor(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def wrapper(self: Any, *args: Any, executor: Any = NOT_GIVEN, **kwargs: Any) -> None:
        flash = executor if executor is NOT_GIVEN else resolve(executor)
        if flash is not NOT_GIVEN and flash is not None:
            _require_supported()
        init(self, *args, **kwargs)
        if flash is not NOT_GIVEN:
            setattr(self, ATTRIBUTE, flash)

    setattr(wrapper, MARK, True)
    wrapper.__signature__ = signature_with_executor(init)  # type: ignore[attr-defined]
    return wrapper


def _under_executor(compile_: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(compile_)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        flash = getattr(self, ATTRIBUTE, NOT_GIVEN)
        if flash is NOT_GIVEN:
            return compile_(self, *args, **kwargs)
        with using(flash):
            return compile_(self, *args, **kwargs)

    return wrapper


def _awaited(compile_: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(compile_)
    def compile_as_it_is(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.compile(*args, **kwargs)  # a subclass may have its own

    return awaitable(compile_as_it_is, inspect.signature(compile_), "acompile")


def _require_supported() -> None:
    """Raise unless this dspy runs on a gepa that flash knows.

    Raises:
        HostError: names what is installed and what is supported.
    """
    adapter = sys.modules["dspy.teleprompt.gepa.gepa_utils"].DspyAdapter
    if not hasattr(adapter, "batch_evaluate"):
        raise HostError(
            f"dspy {version('dspy')} is not supported: flash runs with dspy 3.3.1 to 3.4: "
            "pip install 'flashevolve-plugins[dspy]'."
        )


def _evaluates_as(kind: Any, adapter: Any) -> bool:
    """Whether an adapter evaluates as dspy's own does; one that does so in its own way is a stranger."""
    evaluate = getattr(getattr(adapter, "evaluate", None), "__func__", None)
    return evaluate is kind.evaluate and adapter.metric_fn is not None


def _make_evaluator(adapter: Any) -> Any:
    from flashevolve_plugins.adapters.dspy.evaluator import DspyEvaluator  # noqa: PLC0415 - only when a run needs it

    return DspyEvaluator(adapter)


def _make_full_program_evaluator(adapter: Any) -> Any:
    from flashevolve_plugins.adapters.dspy.full_program import FullProgramEvaluator  # noqa: PLC0415 - as above

    return FullProgramEvaluator(adapter)
