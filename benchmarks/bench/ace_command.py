"""``flashevolve bench ace``: ACE's own loop and flash's policies at equal slots and equal samples."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._errors import UnknownNameError, UsageError
from flashevolve_plugins._whole_file import write_whole
from flashevolve_plugins.benchmarks.arguments import require_counts
from flashevolve_plugins.benchmarks.bench.ace_cells import PLAYBOOKS, AceCell, AceKey, dump, read
from flashevolve_plugins.benchmarks.bench.ace_measure import flash_options
from flashevolve_plugins.benchmarks.bench.ace_report import markdown, summarize
from flashevolve_plugins.benchmarks.bench.ace_tasks import FILES, SIZES, questions
from flashevolve_plugins.benchmarks.bench.rivals import SEQUENTIAL
from flashevolve_plugins.benchmarks.server.profiles import PROFILES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashevolve_plugins.benchmarks.bench.ace_cells import AceRecord

RIVALS = (SEQUENTIAL, "full", "guarded", "reflective", "best-first", "merge", "aggregate")
_LISTS = ("data", "landscape", "profile", "slots", "epochs", "rounds")


def main(argv: Sequence[str] | None = None) -> int:
    """Make the runs that are missing, one after the other, then write the report.

    Args:
        argv: the arguments after ``flashevolve bench ace``.

    Returns:
        The exit code.
    """
    options = _parser().parse_args(argv)
    cells = _cells(options)
    rivals = list(dict.fromkeys(options.rivals))
    folder = Path(options.results)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--results={folder} is no folder: name another one.")
    keys = [
        AceKey(options.clock, cell, rival, seed) for seed in range(options.seeds) for cell in cells for rival in rivals
    ]
    for key in keys[: len(cells) * len(rivals)]:
        flash_options(key)
    todo = [key for key in keys if not (folder / key.path).is_file()]
    print(f"{len(keys) - len(todo)} of {len(keys)} runs are there, {len(todo)} to make.")
    if options.dry_run:
        return 0
    for number, key in enumerate([] if options.report_only else todo, start=1):
        record = _run(key, options.data_dir)
        write_whole(folder / key.path, f"{dump(record)}\n".encode())
        print(
            f"{number}/{len(todo)} {key}: {record.seconds:.0f} s, {record.calls} calls, score {record.score:.3f}",
            file=sys.stderr,
            flush=True,
        )
    _report(cells, rivals, [read(folder / key.path) for key in keys if (folder / key.path).is_file()], folder)
    return 0


def _run(key: AceKey, data_dir: str | None) -> AceRecord:
    asked = questions(key.cell, data_dir)
    if key.clock == "virtual":
        from flashevolve_plugins.benchmarks.bench.ace_virtual import run_virtual  # noqa: PLC0415 - what the run needs

        return run_virtual(key, asked)
    from flashevolve_plugins.benchmarks.bench.ace_served import run_served  # noqa: PLC0415 - needs openai

    return run_served(key, asked)


def _report(cells: Sequence[AceCell], rivals: Sequence[str], records: Sequence[AceRecord], folder: Path) -> None:
    """Write ``ace.md`` and ``ace.json``, and print the text."""
    parts: list[str] = []
    figures: dict[str, Any] = {}
    for cell in cells:
        runs = {
            rival: {each.key.seed: each for each in records if each.key.cell == cell and each.key.rival == rival}
            for rival in rivals
        }
        made = {rival: each for rival, each in runs.items() if each}
        if made:
            summary = summarize(made, SEQUENTIAL)
            parts.append(markdown(cell.title, summary))
            figures[cell.title] = {rival: asdict(each) for rival, each in summary.items()}
    text = "\n\n".join(parts) or "No run has been made yet."
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ace.md").write_text(text + "\n", "utf-8")
    (folder / "ace.json").write_text(json.dumps(figures, indent=2) + "\n", "utf-8")
    print(text)
    print(f"Saved as {folder / 'ace.md'}, ace.json beside it.")


def _cells(options: argparse.Namespace) -> list[AceCell]:
    require_counts(options, "slots", "samples", "val", "epochs", "rounds", "seeds")
    if options.time_scale <= 0:
        raise UsageError(f"--time-scale={options.time_scale:g} must be above 0.")
    for name, known in (("data", FILES), ("landscape", PLAYBOOKS), ("profile", PROFILES)):
        for each in getattr(options, name):
            if each not in known:
                raise UnknownNameError(f"--{name}", each, known)
    cells = []
    for values in product(*(getattr(options, name) for name in _LISTS)):
        chosen = dict(zip(_LISTS, values, strict=True))
        samples, val = SIZES[chosen["data"]]
        sizes = {"samples": options.samples or samples, "val": options.val or val, "time_scale": options.time_scale}
        cell = AceCell(**chosen, **sizes)
        if options.clock == "virtual" and PROFILES[cell.profile].max_requests is not None:
            raise UsageError(f"--profile={cell.profile} refuses requests, which virtual time knows not.")
        if not options.report_only:
            questions(cell, options.data_dir)  # raises where a file cannot be used
        cells.append(cell)
    return cells


def _parser() -> argparse.ArgumentParser:
    default = AceCell()
    parser = argparse.ArgumentParser(prog="flashevolve bench ace", description=__doc__)
    add = parser.add_argument
    for name, known in (("data", FILES), ("landscape", PLAYBOOKS), ("profile", PROFILES)):
        value = getattr(default, name)
        add(
            f"--{name}", nargs="+", default=[value], metavar="NAME", help=f"one or more of {', '.join(known)} ({value})"
        )
    for name, what in (("slots", "calls at once"), ("epochs", "passes over the samples"), ("rounds", "of reflection")):
        value = getattr(default, name)
        add(f"--{name}", nargs="+", type=int, default=[value], metavar="N", help=f"{what} ({value})")
    add("--samples", type=int, metavar="N", help="training samples (all that there are)")
    add("--val", type=int, metavar="N", help="validation questions (all that there are)")
    add("--data-dir", default=os.environ.get("FLASHEVOLVE_DATA"), help="folder of the real files (FLASHEVOLVE_DATA)")
    add("--rivals", nargs="+", metavar="NAME", default=RIVALS, help=f"the host's own is {SEQUENTIAL} (%(default)s)")
    add("--seeds", type=int, default=8, help="seeds of each setting (%(default)s)")
    add("--clock", choices=["virtual", "server"], default="virtual", help="(%(default)s)")
    add("--time-scale", type=float, default=default.time_scale, help="of the simulated server's seconds (%(default)s)")
    add("--results", default="flashevolve-bench", help="folder of results (%(default)s)")
    add("--dry-run", action="store_true", help="only tell what is left to run")
    add("--report-only", action="store_true", help="run nothing, report what is there")
    return parser
