"""``flashevolve bench``: compare rivals at equal slots and equal metric calls."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashevolve_plugins import UsageError
from flashevolve_plugins._connection import require_connections
from flashevolve_plugins._errors import UnknownNameError
from flashevolve_plugins.benchmarks.arguments import add_given_server, require_counts, require_given_server
from flashevolve_plugins.benchmarks.bench.cells import TIME_SCALE, Cell
from flashevolve_plugins.benchmarks.bench.plan import QUICK, TABLES, Table
from flashevolve_plugins.benchmarks.bench.record import read
from flashevolve_plugins.benchmarks.bench.report import report
from flashevolve_plugins.benchmarks.bench.rivals import KNOWN, parse
from flashevolve_plugins.benchmarks.bench.runner import Given, missing, run_missing
from flashevolve_plugins.benchmarks.bench.served import Endpoint, make_task
from flashevolve_plugins.benchmarks.bench.summary import by_rival
from flashevolve_plugins.benchmarks.presets import PRESETS
from flashevolve_plugins.benchmarks.server.profiles import PROFILES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flashevolve_plugins.benchmarks.bench.record import Record

SIMULATED = "simulated"
_SIZES = ("landscape", "profile", "slots", "val", "calls")
_RIVALS = ("sequential", "independent-16/best", "full", "guarded")


def main(argv: Sequence[str] | None = None) -> int:
    """Make the runs that are missing, then write the report.

    Args:
        argv: the arguments after ``flashevolve bench``.

    Returns:
        The exit code: 1 if a run failed.
    """
    options = _parser().parse_args(argv)
    tables = plan(options)
    folder = Path(options.results)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--results={folder} is no folder: name another one.")
    keys = [key for table in tables for key in table.runs()]
    for table in tables:
        left = len(missing(table.runs(), folder))
        print(f"{table.name}: {len(table.runs()) - left} of {len(table.runs())} runs are there, {left} to make.")
    if options.dry_run:
        return 0
    given = _given(options, tables)
    folder.mkdir(parents=True, exist_ok=True)
    failed = [] if options.report_only else run_missing(keys, folder, jobs=options.jobs, given=given)
    records = [read(folder / key.path) for key in dict.fromkeys(keys) if (folder / key.path).is_file()]
    write_report(tables, records, folder)
    for sentence in failed:
        print(sentence, file=sys.stderr)
    return 1 if failed else 0


def write_report(tables: Sequence[Table], records: Iterable[Record], folder: Path) -> None:
    """Write ``report.md``, ``report.json`` and a picture of every cell, and print the text."""
    from flashevolve_plugins.benchmarks.bench.pictures import draw  # noqa: PLC0415 - needs the extra

    records = list(records)
    text, figures = report(tables, records)
    (folder / "report.md").write_text(text + "\n", "utf-8")
    (folder / "report.json").write_text(json.dumps(figures, indent=2) + "\n", "utf-8")
    pictures = folder / "pictures"
    pictures.mkdir(exist_ok=True)
    for table in tables:
        for number, (title, rivals) in enumerate(by_rival(records, table).items(), start=1):
            runs = {name: list(each.values()) for name, each in rivals.items()}
            draw(pictures / f"{table.name}-{number}.png", title, runs)
    print(text)
    print(f"Saved as {folder / 'report.md'}, report.json and pictures/ beside it.")


def plan(options: argparse.Namespace) -> list[Table]:
    """The tables that the options ask for.

    Raises:
        UsageError: options that do not go together or cannot work.
    """
    require_counts(options, "slots", "val", "calls", "train", "seeds", "jobs", "max_tokens")
    if options.time_scale is not None and options.time_scale <= 0:
        raise UsageError(f"--time-scale={options.time_scale:g} must be above 0.")
    for name, known in (("landscape", PRESETS), ("profile", PROFILES), ("tables", TABLES)):
        for each in getattr(options, name) or ():
            if each not in known:
                raise UnknownNameError(f"--{name}", each, known)
    chosen = [f"--{name}" for name in (*_SIZES, "clock") if getattr(options, name)]
    named = [f"--{name}" for name in ("quick", "tables") if getattr(options, name)]
    if len(named) > 1 or (named and chosen):
        raise UsageError(f"{' and '.join([*named, *chosen][:2])} do not go together: drop one.")
    tables = [_changed(table, options) for table in _tables(options, chosen=bool(chosen))]
    for clock, name in sorted({(table.clock, cell.profile) for table in tables for cell in table.cells}):
        profile = PROFILES.get(name)
        if profile is not None and clock == "virtual" and profile.max_requests is not None:
            raise UsageError(f"--profile={name} refuses requests, which virtual time knows not: add --clock server.")
        if profile is not None and clock == "server" and profile.lengths.share:
            raise UsageError(
                f"--profile={name} knows how long each example's answers are, which the simulated server does not: "
                "leave out --clock server."
            )
    for rival in dict.fromkeys(rival for table in tables for rival in table.rivals):
        parse(rival)
    return tables


def _tables(options: argparse.Namespace, *, chosen: bool) -> list[Table]:
    if _server_given(options):
        if options.landscape or options.profile or options.clock == "virtual":
            raise UsageError("--server with your own data has neither landscape nor profile nor virtual time.")
        values = {"landscape": [f"file:{Path(options.data).name}"], "profile": ["given"]}
        return [_chosen_table(options, values, "server")]
    if chosen:
        return [_chosen_table(options, {}, options.clock or "virtual")]
    if options.quick:
        return list(QUICK)
    return [TABLES[name] for name in options.tables or TABLES]


def _chosen_table(options: argparse.Namespace, values: dict[str, list[Any]], clock: Any) -> Table:
    default = Cell()
    lists = [values.get(name) or getattr(options, name) or [getattr(default, name)] for name in _SIZES]
    cells = tuple(Cell(**dict(zip(_SIZES, each, strict=True))) for each in product(*lists))
    for cell in cells:
        if cell.calls <= 2 * cell.val:
            raise UsageError(f"--calls={cell.calls} pays for no proposal beside two validations of --val={cell.val}.")
    return Table("chosen", "As chosen", clock, cells, _RIVALS, 8)


def _changed(table: Table, options: argparse.Namespace) -> Table:
    """The table with what the options say of every table."""
    cell = {name: getattr(options, name) for name in ("train", "time_scale") if getattr(options, name) is not None}
    return replace(
        table,
        cells=tuple(replace(each, **cell) for each in table.cells),
        rivals=tuple(dict.fromkeys(options.rivals or table.rivals)),
        seeds=options.seeds or table.seeds,
    )


def _server_given(options: argparse.Namespace) -> bool:
    url = None if options.server == SIMULATED else options.server
    return require_given_server("--server", (url, options.model, options.data))


def _given(options: argparse.Namespace, tables: Sequence[Table]) -> Given | None:
    if not _server_given(options):
        return None
    data = str(Path(options.data).resolve())
    for cell in (cell for table in tables for cell in table.cells):
        make_task(cell, 0, data)  # raises where the file cannot be used
    require_connections([options.server])
    return Given(Endpoint(options.server, options.model, options.max_tokens), data)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="flashevolve bench",
        description=f"{__doc__.splitlines()[0]} Without options, every table of docs/benchmarks.md, which takes hours;"
        " what is kept in the folder of results is not run again.",
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="a small selection, under 3 minutes")
    add("--tables", nargs="+", metavar="NAME", help=f"only these tables: {', '.join(TABLES)}")
    add("--rivals", nargs="+", metavar="NAME", help=f"only these, the first as the base: such as {', '.join(KNOWN)}")
    add("--seeds", type=int, help="seeds of each setting (as the table says)")
    add("--landscape", nargs="+", metavar="NAME", help=f"settings of your own: {', '.join(PRESETS)}")
    add("--profile", nargs="+", metavar="NAME", help=f"settings of your own: {', '.join(PROFILES)}")
    add("--slots", nargs="+", type=int, metavar="N", help=f"settings of your own ({Cell.slots})")
    add("--val", nargs="+", type=int, metavar="N", help=f"settings of your own: validation examples ({Cell.val})")
    add("--calls", nargs="+", type=int, metavar="N", help=f"settings of your own: metric calls ({Cell.calls})")
    add("--train", type=int, help=f"training examples ({Cell.train})")
    add("--clock", choices=["virtual", "server"], help="of settings of your own (virtual)")
    add("--time-scale", type=float, help=f"of the simulated server's seconds ({TIME_SCALE})")
    add_given_server(parser, "--server", simulated=SIMULATED)
    add("--jobs", type=int, default=2, help="runs at once, where they do not disturb each other (%(default)s)")
    add("--results", default="flashevolve-bench", help="folder of results (%(default)s)")
    add("--dry-run", action="store_true", help="only tell what is left to run")
    add("--report-only", action="store_true", help="run nothing, report what is there")
    return parser
