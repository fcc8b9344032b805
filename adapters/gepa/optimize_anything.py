"""Teaches ``gepa.optimize_anything`` the keyword ``executor=``, and its ``EngineConfig`` a field of that name."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._activation import NOT_GIVEN, resolve
from flashevolve_plugins._errors import UnknownNameError, UsageError
from flashevolve_plugins._event_loop import is_async
from flashevolve_plugins._flash import Flash
from flashevolve_plugins.adapters.gepa.declare import declare

if TYPE_CHECKING:
    from types import FrameType, ModuleType

MODULE = "gepa.optimize_anything"
FIELD = "executor"

#: The seed that the reflection model has written for the run at hand.
_written: ContextVar[Any] = ContextVar("flashevolve_written_seed", default=None)


def teach_config(module: ModuleType) -> None:
    """Give ``EngineConfig`` its field, and declare the adapter. Calling it again changes nothing.

    Args:
        module: ``gepa.optimize_anything``.
    """
    config, adapter = module.EngineConfig, module.OptimizeAnythingAdapter
    if FIELD in config.__dataclass_fields__:
        return
    _add_field(config)
    _notice_seeds(module)
    declare(lambda each: type(each) is adapter, _make_evaluator)


def is_written(seed: Any) -> bool:
    """Whether a seed was written by the reflection model, which may write another one the next time."""
    return seed is not None and seed is _written.get()


def _notice_seeds(module: ModuleType) -> None:
    generate = module._generate_seed_candidate

    @functools.wraps(generate)
    def generated(*arguments: Any, **named: Any) -> Any:
        seed = generate(*arguments, **named)
        _written.set(seed)
        return seed

    module._generate_seed_candidate = generated  # type: ignore[attr-defined]


def configured(arguments: Mapping[str, Any]) -> Any:
    """The executor that the configuration among a call's arguments names, or ``NOT_GIVEN``."""
    executor = getattr(getattr(arguments.get("config"), "engine", None), FIELD, None)
    return NOT_GIVEN if executor is None else _resolve(executor)


def require_plain(arguments: Mapping[str, Any]) -> None:
    """Raise if an evaluator is a coroutine function: what it logs and prints is kept by thread.

    Raises:
        UsageError: it is.
    """
    for name in ("evaluator", "batch_evaluator"):
        if is_async(arguments.get(name)):
            raise UsageError(
                f"{name}= is an async function, which optimize_anything does not await: pass a plain function that "
                "calls asyncio.run on it, and EngineConfig(max_workers=...) as many at once as you want."
            )


def unread(caller: FrameType) -> Any:
    """The executor in the configuration of a run whose function was imported before ours; else ``NOT_GIVEN``.

    Such a function takes a configuration that names one, and does not look.

    Args:
        caller: who runs the engine.
    """
    ours = getattr(sys.modules.get(MODULE), "optimize_anything", None)
    if ours is None or caller.f_code is not inspect.unwrap(ours).__code__:
        return NOT_GIVEN
    through_ours = caller.f_back is not None and caller.f_back.f_code is ours.__code__
    return NOT_GIVEN if through_ours else configured(caller.f_locals)


def _add_field(config: Any) -> None:
    """One more field, the last, as if the host had declared it: the dataclass is made anew from its fields, in place.

    Its ``None`` says nothing, so that a configuration stays what it was, in a file too.
    """
    for field in dataclasses.fields(config):
        setattr(config, field.name, field)
    config.__annotations__[FIELD] = Any
    config.executor = None
    config.__post_init__ = lambda self: _resolve(self.executor)
    for name in ("__init__", "__repr__", "__eq__", "__hash__", "__match_args__"):
        delattr(config, name)
    dataclasses.dataclass(config)


def _resolve(executor: Any) -> Flash | None:
    """What the field means; a mapping, as ``GEPAConfig.to_dict`` makes of a ``Flash``, holds its options.

    Raises:
        UnknownNameError: neither ``None``, ``"flash"``, a ``Flash`` nor its options.
    """
    if not isinstance(executor, Mapping):
        return resolve(executor)
    known = [field.name for field in dataclasses.fields(Flash) if field.init]
    options = {name: value for name, value in executor.items() if name != "last_run"}
    for name in options:
        if name not in known:
            raise UnknownNameError("option of Flash", name, known)
    return Flash(**options)


def _make_evaluator(adapter: Any) -> Any:
    from flashevolve_plugins.adapters.gepa.anything_evaluator import (  # noqa: PLC0415 - only when a run needs it
        anything_evaluator,
    )

    return anything_evaluator(adapter)
