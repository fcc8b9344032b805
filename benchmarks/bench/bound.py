"""How much faster flash could be: what a run takes beyond the time its requests need when every slot is always busy.

``python -m flashevolve_plugins.benchmarks.bench.bound RESULTS`` reads what ``flashevolve bench`` kept of runs in
virtual time. Rivals make different numbers of calls, so times are compared per metric call. Flash's reflections have
slots of their own, which is why its steady part may lose less than nothing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from flashevolve_plugins.benchmarks.bench.record import read
from flashevolve_plugins.benchmarks.server.profiles import PROFILES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from flashevolve_plugins.benchmarks.bench.record import Record

HEAD = ("setting", "rival", "wall time, s", "with full slots, s", "rival / flash", "most possible", "busy", "profile")


def full_slots(run: Record) -> float:
    """Seconds that a run's requests take with as many running as there are slots, from the first to the last.

    Args:
        run: in virtual time.
    """
    assert run.work is not None  # noqa: S101 - known in virtual time
    return run.work / PROFILES[run.cell.profile].latency.tokens_per_second(run.cell.slots)


def bounds(runs: Iterable[Record], flash: str = "full") -> list[tuple[str, ...]]:
    """A row per setting and rival, medians over the seeds that flash has as well; those without flash are left out.

    "Most possible" is the rival's time over that of flash's requests with full slots. The profile is what flash loses
    against full slots, in seconds, and where a synchronous rival's time goes.

    Args:
        runs: any; those through a server and those kept by an older version are left out.
        flash: the policy.
    """
    cells: defaultdict[str, dict[str, dict[int, Record]]] = defaultdict(dict)
    for run in runs:
        if run.clock == "virtual" and run.work is not None:
            cells[run.cell.title].setdefault(run.rival, {})[run.seed] = run
    return [
        _row(title, rival, each, rivals[flash])
        for title, rivals in sorted(cells.items())
        if flash in rivals
        for rival, each in rivals.items()
        if each.keys() & rivals[flash].keys()
    ]


def _row(title: str, rival: str, runs: Mapping[int, Record], flash: Mapping[int, Record]) -> tuple[str, ...]:
    pairs = [(run, flash[seed]) for seed, run in runs.items() if seed in flash]
    own = [run for run, _ in pairs]
    per_call = [run.seconds / run.metric_calls for run in own]
    measured = [each * other.metric_calls / other.seconds for each, (_, other) in zip(per_call, pairs, strict=True)]
    possible = [each * other.metric_calls / full_slots(other) for each, (_, other) in zip(per_call, pairs, strict=True)]
    return (
        title,
        rival,
        f"{statistics.median(run.seconds for run in own):,.0f}",
        f"{statistics.median(map(full_slots, own)):,.0f}",
        f"{statistics.median(measured):.2f} ({min(measured):.2f} to {max(measured):.2f})",
        f"{statistics.median(possible):.2f}",
        f"{statistics.median(run.busy for run in own):.2f}",
        _profile(own),
    )


def _profile(runs: Sequence[Record]) -> str:
    if all(run.lost for run in runs):
        lost = {phase: statistics.median(run.lost[phase] for run in runs) for phase in runs[0].lost}
        return ", ".join(f"{phase} {seconds:+.0f} s" for phase, seconds in lost.items())
    spent = {stage: statistics.median(run.stages.get(stage, 0.0) for run in runs) for stage in runs[0].stages}
    return ", ".join(
        f"{stage} {share:.0%}" for stage, share in sorted(spent.items(), key=lambda each: -each[1]) if share
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table as Markdown.

    Args:
        argv: the arguments.
    """
    parser = argparse.ArgumentParser(prog="bound", description=__doc__.partition("\n")[0])
    parser.add_argument("results", help="folder of results of flashevolve bench")
    parser.add_argument("--policy", default="full", help="of flash (%(default)s)")
    options = parser.parse_args(argv)
    runs = map(read, sorted(Path(options.results).glob("virtual/*/*/*.json")))
    rows = [HEAD, ("---",) * len(HEAD), *bounds(runs, options.policy)]
    print("\n".join(f"| {' | '.join(row)} |" for row in rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
