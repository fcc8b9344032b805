"""Loads an example of a stanford-iris-lab/meta-harness checkout by its path, as it is."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._errors import HostError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FILE = "meta_harness.py"
#: What flash calls of an example, whatever its layout, and of each layout.
COMMON = (
    "main run_evolve render_task_prompt propose_claude update_evolution_summary fresh_start run_cmd EVOLVE_DIR "
    "AGENTS_DIR LOGS_DIR PENDING_EVAL FRONTIER_VAL EVOLUTION_SUMMARY"
)
TEXT = "text classification"
TERMINAL = "terminal bench"
LAYOUTS = {
    TEXT: "run_benchmark validate_candidates count_iterations_from_summary load_results get_model_short_name",
    TERMINAL: (
        "harbor_run validate_candidate smoke_test count_iterations parse_job_results compute_pass_rates "
        "parse_trial_metrics summarize_trial_metrics update_frontier JOBS_DIR BASELINES MODEL"
    ),
}
_numbers = count(1)


@dataclass(frozen=True)
class Example:
    """An example that was loaded.

    Args:
        path: its folder.
        module: its ``meta_harness``.
        layout: which of the two layouts it has.
        modules: what else was imported from its folder, by the names that it imports.
    """

    path: Path
    module: Any
    layout: str
    modules: Mapping[str, Any] = field(default_factory=dict)


def load(path: str | Path) -> Example:
    """Import an example under a name of its own, so that two of them, whose modules have the same names, get along.

    Args:
        path: the example's folder.

    Raises:
        UsageError: there is no such folder, or no example in it.
        HostError: something that it imports is missing, or it has another layout.
    """
    folder = Path(path).resolve()
    if not (folder / FILE).is_file():
        raise UsageError(
            f"There is no {FILE} in {str(path)!r}: give the path of an example of a meta-harness checkout, for example "
            "reference_examples/text_classification."
        )
    with importing_from(folder) as found:
        name = f"flashevolve_meta_harness_{next(_numbers)}"
        spec = importlib.util.spec_from_file_location(name, folder / FILE)
        assert spec is not None  # noqa: S101 - a file that ends in .py has one
        assert spec.loader is not None  # noqa: S101 - as above
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except ImportError as error:
            del sys.modules[name]
            raise HostError(f"{str(folder / FILE)!r} cannot be imported ({error}): install what it needs.") from error
    return Example(folder, module, _layout(folder, module), found)


def _layout(folder: Path, module: Any) -> str:
    missing = [name for name in COMMON.split() if not hasattr(module, name)]
    if not missing:
        for layout, names in LAYOUTS.items():
            missing = [name for name in names.split() if not hasattr(module, name)]
            if not missing:
                return layout
    raise HostError(
        f"{str(folder / FILE)!r} has no {missing[0]}: flash knows the layouts of text_classification and "
        "terminal_bench_2."
    )


@contextmanager
def importing_from(folder: Path) -> Iterator[dict[str, Any]]:
    """Let the modules of a folder be imported by their plain names, and forgotten afterwards.

    Gives a dictionary that holds them in the end.
    """
    found: dict[str, Any] = {}
    names = {each.stem for each in folder.glob("*.py")} | {each.parent.name for each in folder.glob("*/__init__.py")}
    hidden = {name: sys.modules.pop(name) for name in names & sys.modules.keys()}
    sys.path.insert(0, str(folder))
    try:
        yield found
    finally:
        sys.path.remove(str(folder))
        for name in names & sys.modules.keys():
            found[name] = sys.modules.pop(name)
        sys.modules.update(hidden)
