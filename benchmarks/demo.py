"""``flashevolve demo``: ``dspy.GEPA`` with and without flash, same budget, same threads, side by side."""

from __future__ import annotations

import argparse
import json
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from flashevolve_plugins import Flash
from flashevolve_plugins._connection import require_connections
from flashevolve_plugins.benchmarks.arguments import (
    add_given_server,
    require_counts,
    require_folder,
    require_given_server,
)
from flashevolve_plugins.benchmarks.bench.cells import TIME_SCALE, Cell, RunKey
from flashevolve_plugins.benchmarks.bench.rivals import Rival
from flashevolve_plugins.benchmarks.bench.served import Endpoint, make_task, measure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from flashevolve_plugins.benchmarks.bench.record import Record


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo.

    Args:
        argv: the arguments after ``flashevolve demo``.

    Returns:
        The exit code.
    """
    options = _parser().parse_args(argv)
    given = require_given_server("--api-base", (options.api_base, options.model, options.data))
    require_counts(options, "calls", "slots", "train", "val", "max_tokens")
    require_folder("--json", options.json)
    flash = Flash(staleness=options.staleness, max_staleness=options.max_staleness)
    cell = Cell(slots=options.slots, val=options.val, calls=options.calls, train=options.train)
    server: AbstractContextManager[Endpoint]
    if given:
        require_connections([options.api_base])
        server = nullcontext(Endpoint(options.api_base, options.model, options.max_tokens))
    else:
        server = _simulated(options.seed)
    task = make_task(cell, options.seed, options.data)
    records = []
    with server as endpoint:
        for name, executor in (("sequential", None), ("flash", flash)):
            print(f"Running dspy.GEPA, {name}: {options.calls} metric calls, {options.slots} threads ...", flush=True)
            key = RunKey("server", cell, name, options.seed)
            records.append(measure(key, Rival(name), executor, endpoint, task))
    _print_table(records, scored=not given)
    figures = [{**asdict(each), "true_score": None if given else each.score} for each in records]
    Path(options.json).write_text(json.dumps(figures, indent=2) + "\n", "utf-8")
    print(f"Saved as {options.json}.")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="flashevolve demo", description=__doc__)
    parser.add_argument("--calls", type=int, default=700, help="metric calls of each run (%(default)s)")
    parser.add_argument("--slots", type=int, default=16, help="threads of each run (%(default)s)")
    parser.add_argument("--train", type=int, default=60, help="training examples (%(default)s)")
    parser.add_argument("--val", type=int, default=50, help="validation examples (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of landscape, server and optimizer (%(default)s)")
    parser.add_argument("--staleness", default="merge", help="flash's staleness policy (%(default)s)")
    parser.add_argument("--max-staleness", type=int, help="pool versions an item may lag behind")
    parser.add_argument("--json", default="flashevolve-demo.json", help="where to save the figures (%(default)s)")
    add_given_server(parser, "--api-base")
    return parser


@contextmanager
def _simulated(seed: int) -> Iterator[Endpoint]:
    """A simulated server, while it runs."""
    from flashevolve_plugins.benchmarks.landscape import Landscape  # noqa: PLC0415 - only for the simulated server
    from flashevolve_plugins.benchmarks.server import ServerSettings, SimulatedServer  # noqa: PLC0415
    from flashevolve_plugins.benchmarks.server.latency import LatencyModel  # noqa: PLC0415

    settings = ServerSettings(landscape=Landscape(seed=seed), latency=LatencyModel(time_scale=TIME_SCALE), seed=seed)
    with SimulatedServer(settings) as server:
        yield Endpoint(server.base_url)


def _print_table(records: list[Record], *, scored: bool) -> None:
    from rich.console import Console  # noqa: PLC0415 - only here
    from rich.table import Table  # noqa: PLC0415

    sequential, flash = records
    table = Table("", "sequential", "flash", "flash / sequential")
    rows = [
        ("wall time, s", sequential.seconds, flash.seconds, "{:.1f}"),
        ("proposals per minute", _per_minute(sequential), _per_minute(flash), "{:.1f}"),
        ("metric calls", sequential.metric_calls, flash.metric_calls, "{:d}"),
        ("busy-slot share", sequential.busy, flash.busy, "{:.2f}"),
        ("best validation score", sequential.best_validation, flash.best_validation, "{:.3f}"),
    ]
    if scored:
        rows.append(("true score", sequential.score, flash.score, "{:.3f}"))
    for name, before, after, form in rows:
        ratio = f"{after / before:.2f}" if before else "-"
        table.add_row(name, form.format(before), form.format(after), ratio)
    Console().print(table)


def _per_minute(record: Record) -> float:
    return 60 * record.proposals / record.seconds
