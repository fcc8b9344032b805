"""The program that makes one run and keeps its record."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from flashevolve_plugins._whole_file import write_whole
from flashevolve_plugins.benchmarks.bench.cells import Cell, RunKey
from flashevolve_plugins.benchmarks.bench.record import dump
from flashevolve_plugins.benchmarks.bench.rivals import TURBO

if TYPE_CHECKING:
    from flashevolve_plugins.benchmarks.bench.record import Record
    from flashevolve_plugins.benchmarks.bench.served import Endpoint


def job(key: RunKey, folder: Path, endpoint: Endpoint | None = None, data: str | None = None) -> str:
    """What ``main`` is told, as JSON text.

    Args:
        key: which run.
        folder: of the results.
        endpoint: the server, for a run through one.
        data: a file of examples instead of the cell's landscape.
    """
    where = None if endpoint is None else asdict(endpoint)
    return json.dumps({"key": asdict(key), "folder": str(folder.resolve()), "endpoint": where, "data": data})


def main(text: str) -> None:
    """Make the run that a job describes, and keep its record."""
    told = json.loads(text)
    key = RunKey(**{**told["key"], "cell": Cell(**told["key"]["cell"])})
    with redirect_stdout(sys.stderr):
        keep(_run(key, told), Path(told["folder"]))


def keep(record: Record, folder: Path) -> None:
    """Write a record where it belongs."""
    write_whole(folder / record.key.path, f"{dump(record)}\n".encode())


def _run(key: RunKey, told: dict[str, object]) -> Record:
    if key.clock == "virtual":
        from flashevolve_plugins.benchmarks.bench.virtual import run_virtual  # noqa: PLC0415 - imports gepa

        return run_virtual(key)
    if key.rival == TURBO:
        from flashevolve_plugins.benchmarks.bench.turbo import run_turbo  # noqa: PLC0415 - where no host is installed

        return run_turbo(key, told["endpoint"]["base_url"])  # type: ignore[index]
    from flashevolve_plugins.benchmarks.bench.served import Endpoint, run_served  # noqa: PLC0415 - imports dspy

    return run_served(key, Endpoint(**told["endpoint"]), data=told["data"])  # type: ignore[arg-type]
