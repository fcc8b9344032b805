"""``flashevolve demo``: ``dspy.GEPA`` with and without flash, same budget, same threads, side by side."""

from __future__ import annotations

import argparse
import json
import logging
import os
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from flashevolve_plugins import Flash, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from flashevolve_plugins.benchmarks.measure import Result
    from flashevolve_plugins.benchmarks.server import SimulatedServer
    from flashevolve_plugins.benchmarks.tasks import Task

TIME_SCALE = 0.05  # of the simulated server's seconds; the demo must end within two minutes


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo.

    Args:
        argv: the arguments after ``flashevolve demo``.

    Returns:
        The exit code.
    """
    options = _parser().parse_args(argv)
    if (options.api_base is None) != (options.data is None) or (options.api_base is None) != (options.model is None):
        raise UsageError("--api-base, --model and --data go together: a server, the name of its model, and a file.")
    for name in ("calls", "slots", "train", "val", "max_tokens"):
        if getattr(options, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')}={getattr(options, name)} must be at least 1.")
    if not Path(options.json).resolve().parent.is_dir():
        raise UsageError(f"--json={options.json}: there is no such folder to save the figures in.")
    flash = Flash(staleness=options.staleness, max_staleness=options.max_staleness)
    os.environ.setdefault("TQDM_DISABLE", "1")  # read when tqdm is imported: the host's own bar
    from flashevolve_plugins.benchmarks.measure import CountingLM, run_gepa  # noqa: PLC0415 - imports dspy

    logging.getLogger("dspy").setLevel(logging.CRITICAL)  # each example that fails is an error there
    server, task = _simulated(options) if options.data is None else _given(options)
    with server as api_base:
        lm = CountingLM(
            f"openai/{options.model or 'simulated'}",
            api_base=api_base,
            api_key=os.environ.get("OPENAI_API_KEY", "none"),
            cache=False,
            temperature=1.0,
            max_tokens=options.max_tokens,
        )
        results = []
        for name, executor in (("sequential", None), ("flash", flash)):
            print(f"Running dspy.GEPA, {name}: {options.calls} metric calls, {options.slots} threads ...", flush=True)
            with redirect_stdout(StringIO()):  # where the host draws a bar for every batch
                result = run_gepa(
                    name,
                    task,
                    lm,
                    executor=executor,
                    num_threads=options.slots,
                    max_metric_calls=options.calls,
                    seed=options.seed,
                )
            results.append(result)
    _print_table(results)
    Path(options.json).write_text(json.dumps([asdict(each) for each in results], indent=2) + "\n", "utf-8")
    print(f"Saved as {options.json}.")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="flashevolve demo", description=__doc__)
    parser.add_argument("--calls", type=int, default=700, help="metric calls of each run (%(default)s)")
    parser.add_argument("--slots", type=int, default=16, help="threads of each run (%(default)s)")
    parser.add_argument("--train", type=int, default=60, help="training examples (%(default)s)")
    parser.add_argument("--val", type=int, default=50, help="validation examples (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of landscape, server and optimizer (%(default)s)")
    parser.add_argument("--staleness", default="guarded", help="flash's staleness policy (%(default)s)")
    parser.add_argument("--max-staleness", type=int, help="pool versions an item may lag behind")
    parser.add_argument("--json", default="flashevolve-demo.json", help="where to save the figures (%(default)s)")
    parser.add_argument("--api-base", help="base URL of an OpenAI-compatible server, instead of the simulated one")
    parser.add_argument("--model", help="the model's name on that server")
    parser.add_argument("--data", help="JSON-lines file: question and answer (GSM8K), or context and target (Formula)")
    parser.add_argument("--max-tokens", type=int, default=8000, help="tokens of an answer at most (%(default)s)")
    return parser


def _simulated(options: argparse.Namespace) -> tuple[AbstractContextManager[str], Task]:
    from flashevolve_plugins.benchmarks.landscape import Landscape  # noqa: PLC0415 - only for the simulated server
    from flashevolve_plugins.benchmarks.server import SimulatedServer  # noqa: PLC0415
    from flashevolve_plugins.benchmarks.server.latency import LatencyModel  # noqa: PLC0415
    from flashevolve_plugins.benchmarks.server.settings import ServerSettings  # noqa: PLC0415
    from flashevolve_plugins.benchmarks.tasks import landscape_task  # noqa: PLC0415

    landscape = Landscape(seed=options.seed)
    settings = ServerSettings(landscape=landscape, latency=LatencyModel(time_scale=TIME_SCALE), seed=options.seed)
    task = landscape_task(landscape, train=options.train, val=options.val)
    return _serving(SimulatedServer(settings)), task


@contextmanager
def _serving(server: SimulatedServer) -> Iterator[str]:
    """The base URL of a simulated server, while it runs."""
    with server:
        yield server.base_url


def _given(options: argparse.Namespace) -> tuple[AbstractContextManager[str], Task]:
    from flashevolve_plugins._connection import require_connections  # noqa: PLC0415 - only for a given server
    from flashevolve_plugins.benchmarks.tasks import file_task  # noqa: PLC0415

    require_connections([options.api_base])
    task = file_task(options.data, train=options.train, val=options.val, seed=options.seed)
    return nullcontext(options.api_base), task


def _print_table(results: list[Result]) -> None:
    from rich.console import Console  # noqa: PLC0415 - only here
    from rich.table import Table  # noqa: PLC0415

    sequential, flash = results
    table = Table("", "sequential", "flash", "flash / sequential")
    rows = [
        ("wall time, s", sequential.seconds, flash.seconds, "{:.1f}"),
        ("proposals per minute", sequential.proposals_per_minute, flash.proposals_per_minute, "{:.1f}"),
        ("metric calls", sequential.metric_calls, flash.metric_calls, "{:d}"),
        ("busy-slot share", sequential.busy, flash.busy, "{:.2f}"),
        ("best validation score", sequential.best_score, flash.best_score, "{:.3f}"),
    ]
    if sequential.true_score is not None and flash.true_score is not None:
        rows.append(("true score", sequential.true_score, flash.true_score, "{:.3f}"))
    for name, before, after, form in rows:
        ratio = f"{after / before:.2f}" if before else "-"
        table.add_row(name, form.format(before), form.format(after), ratio)
    Console().print(table)
