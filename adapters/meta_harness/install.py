"""Teaches ``superagentic-metaharness`` ``executor=``."""

from __future__ import annotations

import functools
import inspect
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._activation import NOT_GIVEN, current, disabled, resolve, using
from flashevolve_plugins._errors import HostError

if TYPE_CHECKING:
    from collections.abc import Callable

MARK = "__flashevolve__"
ENGINE = ("run", "_build_instructions", "_evaluate_candidate", "_select_next_parent", "_rank_run_frontier")
STORE = ("initialize_run", "materialize_candidate", "write_instruction_bundle", "capture_workspace_diff", "_write_json")
KNOWN = ["0", "4"]


def install() -> None:
    """Teach the imported ``metaharness``. Calling it again changes nothing.

    Raises:
        HostError: its version has another loop.
    """
    try:
        numbers = version("superagentic-metaharness").split(".")[:2]
    except PackageNotFoundError:
        numbers = []
    from metaharness.core.engine import MetaHarnessEngine  # noqa: PLC0415 - the host
    from metaharness.store.filesystem import FilesystemRunStore  # noqa: PLC0415 - the host

    missing = [name for name in ENGINE if not hasattr(MetaHarnessEngine, name)]
    missing += [name for name in STORE if not hasattr(FilesystemRunStore, name)]
    if numbers != KNOWN or missing:
        raise HostError(f"superagentic-metaharness {'.'.join(numbers) or 'of an unknown version'} has another loop.")
    package, api = sys.modules["metaharness"], sys.modules["metaharness.api"]
    taught = teach_function(api.optimize_harness)
    package.optimize_harness = api.optimize_harness = taught  # type: ignore[attr-defined]
    _teach_engine(MetaHarnessEngine)


def teach_function(original: Callable[..., Any]) -> Callable[..., Any]:
    """``optimize_harness`` with ``executor=``."""
    if hasattr(original, MARK):
        return original

    @functools.wraps(original)
    def optimize_harness(*args: Any, executor: Any = NOT_GIVEN, **kwargs: Any) -> Any:
        if executor is NOT_GIVEN or disabled():
            return original(*args, **kwargs)
        with using(resolve(executor)):
            return original(*args, **kwargs)

    signature = inspect.signature(original)
    option = inspect.Parameter("executor", inspect.Parameter.KEYWORD_ONLY, default=NOT_GIVEN)
    optimize_harness.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), option]
    )
    setattr(optimize_harness, MARK, True)
    return optimize_harness


def _teach_engine(kind: Any) -> None:
    """``MetaHarnessEngine.run`` under the flash that is in force."""
    original = kind.run
    if hasattr(original, MARK):
        return

    @functools.wraps(original)
    def run(self: Any) -> Any:
        flash = current()
        if flash is None:
            return original(self)
        from flashevolve_plugins.adapters.meta_harness.run import run_under_flash  # noqa: PLC0415 - where it is used
        from flashevolve_plugins.adapters.meta_harness.superagentic import Superagentic  # noqa: PLC0415

        return run_under_flash(Superagentic(self, kind, lockstep=flash.lockstep), flash, str(self.run_dir))

    setattr(run, MARK, True)
    kind.run = run
