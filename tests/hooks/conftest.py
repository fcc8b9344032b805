"""What the tests of the hooks share."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

import pytest

from flashevolve_plugins._local import LocalDriver
from flashevolve_plugins._model import ItemView, Limits, Outcome, PoolEntry, Sample, Stage, Terminal
from flashevolve_plugins._pool import Pool

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from flashevolve_plugins.hooks.manager import RunHooks


@pytest.fixture
def view() -> Callable[[int], ItemView]:
    """Make an item of a given staleness."""
    return lambda staleness: ItemView(number=7, version=1, staleness=staleness, stage="gate")


@pytest.fixture
def pool() -> Pool:
    """Return a pool that holds the seed."""
    made = Pool()
    made.append([PoolEntry(version=1, artifact="seed", score=0.0)])
    return made


@pytest.fixture
def entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], EntryPoint]:
    """Write a module that can be imported for this test, and return an entry point to it."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(name: str, source: str) -> EntryPoint:
        module = f"plugin_of_{name}"
        (tmp_path / f"{module}.py").write_text(source)
        monkeypatch.delitem(sys.modules, module, raising=False)
        return EntryPoint(name, module, "flashevolve_plugins")

    return make


@pytest.fixture
def run_items() -> Callable[[RunHooks, int], dict[int, Any]]:
    """Run items of two stages, two at once, each of which enters the pool; return their records by number."""

    def body() -> Any:
        for name in ("rollout", "validate"):
            yield Stage(name, (Sample(lambda: None, "task"),))
        return Outcome(Terminal.COMMITTED)

    def run(hooks: RunHooks, count: int) -> dict[int, Any]:
        limits = Limits(slots={"task": 2}, stages=("rollout", "validate"), entry="task", max_items=2)
        driver, records = LocalDriver(limits, hooks), {}
        try:
            driver.offer_from(lambda number: body() if number <= count else None)
            while (ended := driver.next_ended()) is not None:
                records[ended.number] = ended.record
                version = driver.pool.version + 1
                committed = ended.record.terminal is Terminal.COMMITTED
                driver.recorded(ended, [PoolEntry(version, "artifact", 0.0, item=ended.number)] if committed else [])
            driver.finish()
        finally:
            driver.close()
        return records

    return run


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run Python code in a process of its own, with the given folders before all others on its path."""

    def run(code: str, *folders: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")])
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("FLASHEVOLVE_")}
        return subprocess.run(
            [sys.executable, "-W", "error::DeprecationWarning:flashevolve_plugins", "-c", code],
            cwd=tmp_path,
            env={**inherited, "PYTHONPATH": path, "COLUMNS": "200", **environment},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )

    return run
