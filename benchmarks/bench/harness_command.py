"""``flashevolve bench meta-harness``: superagentic-metaharness's own loop and flash on fakes, in virtual time."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from flashevolve_plugins import Flash
from flashevolve_plugins.adapters.meta_harness.items import STOPPED
from flashevolve_plugins.benchmarks.arguments import require_counts
from flashevolve_plugins.benchmarks.bench.harness_fakes import (
    FILE,
    PLACES,
    FakeEvaluator,
    FakeProposer,
    Landscape,
    code_of,
)
from flashevolve_plugins.benchmarks.bench.rivals import SEQUENTIAL
from flashevolve_plugins.benchmarks.bench.statistics import interval, spread
from flashevolve_plugins.hooks import LongestFirst, Trailing, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flashevolve_plugins.hooks import ItemRecord

FAULTY = 0.3


@dataclass(frozen=True)
class Setting:
    """What differs from run to run beside the policy.

    Args:
        jobs: of an evaluation.
        heeds: the chance that a session heeds an idea of another one's that it is shown.
        rereads: whether it reads what was evaluated since it began, before it ends.
        trailing: what stops evaluations, if anything: the share after which, and the risk.
        longest_first: whether jobs that took long start first.
    """

    jobs: int = 1
    heeds: float = 1.0
    rereads: bool = True
    trailing: tuple[float, float] | None = None
    longest_first: bool = False

    def plugins(self) -> list[object]:
        """Those of one run."""
        trailing = [] if self.trailing is None else [Trailing(*self.trailing)]
        return [*trailing, *([LongestFirst()] if self.longest_first else [])]


POLICIES = "policies"
#: Table to its rows: a name to the policy and what else differs.
TABLES: dict[str, dict[str, tuple[str, Setting]]] = {
    POLICIES: {name: (name, Setting()) for name in (SEQUENTIAL, "full", "merge", "guarded", "reflective")},
    "sessions": {
        SEQUENTIAL: (SEQUENTIAL, Setting()),
        "1 job, shown nothing": ("merge", Setting(heeds=0.0, rereads=False)),
        "1 job, shown": ("merge", Setting(rereads=False)),
        "1 job, shown and read again": ("merge", Setting()),
        "1 job, half of it heeded": ("merge", Setting(heeds=0.5)),
        "4 jobs, shown nothing": ("merge", Setting(4, heeds=0.0, rereads=False)),
        "4 jobs, shown": ("merge", Setting(4, rereads=False)),
        "4 jobs, shown and read again": ("merge", Setting(4)),
        "4 jobs, half of it heeded": ("merge", Setting(4, heeds=0.5)),
        "full, 1 job, shown": ("full", Setting(rereads=False)),
        "full, 1 job, shown and read again": ("full", Setting()),
        "full, 4 jobs, shown and read again": ("full", Setting(4)),
    },
    "stops": {
        SEQUENTIAL: (SEQUENTIAL, Setting(8)),
        "merge": ("merge", Setting(8)),
        "Trailing(0.25, 0.05)": ("merge", Setting(8, trailing=(0.25, 0.05))),
        "Trailing(0.5, 0.05)": ("merge", Setting(8, trailing=(0.5, 0.05))),
        "LongestFirst()": ("merge", Setting(8, longest_first=True)),
    },
}


@dataclass(frozen=True)
class HarnessRun:
    """One run.

    Args:
        seconds: virtual seconds in all.
        evaluated: (moment, score) of every evaluated candidate but the baseline, in their order; 0 of one that was
            stopped.
        ended: how the items ended, and how many of them.
        manifests: candidates that the run's directory tells of, the baseline included.
        jobs: jobs of evaluations that were run.
    """

    seconds: float
    evaluated: tuple[tuple[float, float], ...]
    ended: dict[str, int]
    manifests: int
    jobs: int

    @property
    def rate(self) -> float:
        """Evaluated candidates per minute."""
        return 60 * len(self.evaluated) / self.seconds

    def best(self, *, candidates: int | None = None, seconds: float | None = None) -> float:
        """The best score of the first candidates, or up to a moment."""
        told = self.evaluated[:candidates]
        return max((score for moment, score in told if seconds is None or moment <= seconds), default=0.0)


class _Ends:
    """Keeps the moments at which items ended."""

    def __init__(self) -> None:
        self.records: list[ItemRecord] = []

    @hookimpl
    def flashevolve_item_ended(self, record: ItemRecord) -> None:
        """Keep the record."""
        self.records.append(record)


def _files(workspace: Path) -> dict[str, bytes]:
    return {FILE: (workspace / FILE).read_bytes()}


def run_harness(
    rival: str,
    seed: int,
    options: Any,
    faults: float = 0.0,
    setting: Setting = Setting(),
) -> HarnessRun:
    """One run in virtual time.

    Args:
        rival: the host's own loop, or a policy of flash.
        seed: of the landscape.
        options: candidates, proposers and evaluators.
        faults: share of candidates with a fault.
        setting: what else differs.
    """
    import metaharness  # noqa: PLC0415 - needs the extra
    from metaharness.bootstrap import EnvironmentBootstrap  # noqa: PLC0415

    landscape, ends = Landscape(seed, faults, options.places, jobs=setting.jobs), _Ends()
    flash = None
    if rival != SEQUENTIAL:
        flash = Flash(
            max_concurrency=options.evaluators,
            reflection_concurrency=options.proposers,
            staleness=rival,
            clock="virtual",
            progress=False,
            plugins=[ends, *setting.plugins()],
        )
    # the host asks git and looks for twenty tools before each proposal, and walks through all that its copy holds
    quick = (
        patch("metaharness.core.engine.collect_environment_bootstrap", lambda _: EnvironmentBootstrap("", {})),
        patch("metaharness.store.filesystem.FilesystemRunStore._workspace_file_map", staticmethod(_files)),
    )
    with tempfile.TemporaryDirectory(prefix="flashevolve-") as folder, quick[0], quick[1]:
        baseline = Path(folder) / "baseline"
        baseline.mkdir()
        (baseline / FILE).write_text(code_of((), landscape.places), encoding="utf-8")
        metaharness.optimize_harness(
            baseline,
            FakeProposer(landscape, heeds=setting.heeds, rereads=setting.rereads),
            FakeEvaluator(landscape),
            Path(folder) / "run",
            options.candidates,
            "a good harness",
            executor=flash,
        )
        paths = Path(folder).glob("run/candidates/*/manifest.json")
        told = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    landscape.evaluated.pop("c0000", None)
    if flash is None:
        return HarnessRun(landscape.clock, tuple(landscape.evaluated.values()), {}, len(told), landscape.jobs_run)
    assert flash.last_run is not None  # noqa: S101 - it has run
    ended = dict(Counter(flash.last_run.ended))
    return HarnessRun(flash.last_run.seconds, _moments(ends, told), ended, len(told), landscape.jobs_run)


def _moments(ends: _Ends, told: Sequence[dict[str, Any]]) -> tuple[tuple[float, float], ...]:
    """When candidates were evaluated: the items are numbered as their directories, after the baseline's."""
    scores = {int(each["candidate_id"][1:]): each["objective"] for each in told if each["valid"]}
    scores |= {int(each["candidate_id"][1:]): 0.0 for each in told if each["outcome_summary"] == STOPPED}
    moments = {record.number: record.ended for record in ends.records if record.number > 1}
    ranked = dict(zip(range(1, len(moments) + 1), sorted(moments), strict=True))
    found = [(moments[ranked[number]], score) for number, score in scores.items() if number]
    return tuple(sorted(found))


def main(argv: Sequence[str] | None = None) -> int:
    """Make the runs and print their table.

    Args:
        argv: the arguments after ``flashevolve bench meta-harness``.

    Returns:
        The exit code.
    """
    options = _parser().parse_args(argv)
    require_counts(options, "seeds", "candidates", "proposers", "evaluators", "places", "processes")
    rows = TABLES[options.table]
    wanted = [(rival, seed, options, 0.0, setting) for rival, setting in rows.values() for seed in range(options.seeds)]
    if options.table == POLICIES:
        wanted += [("merge", seed, options, FAULTY, Setting()) for seed in range(options.seeds)]
    runs = _all(wanted, options.processes)
    print(_table({row: [next(runs) for _ in range(options.seeds)] for row in rows}, options))
    if options.table == POLICIES:
        print(_faults(list(runs), options))
    return 0


def _all(wanted: Sequence[tuple[Any, ...]], processes: int) -> Iterator[HarnessRun]:
    """Runs in their order."""
    with ProcessPoolExecutor(processes) as pool:
        for number, run in enumerate(pool.map(run_harness, *zip(*wanted, strict=True)), 1):
            print(f"{number} of {len(wanted)}: {run.seconds:.0f} s", file=sys.stderr, flush=True)
            yield run


def _table(runs: dict[str, list[HarnessRun]], options: Any) -> str:
    counts = f"{options.candidates} candidates, {options.proposers} proposers, {options.evaluators} evaluators"
    heads = (
        "evaluated per minute",
        "times the host's own",
        "best score",
        "less the host's own",
        "the same, of half the candidates",
        "when `full` has ended" if options.table == POLICIES else "jobs of evaluations",
    )
    told = "mean (lowest to highest) [95% interval of the mean, pairs of one seed]"
    lines = [f"{counts}, {options.seeds} seeds: {told}", "", f"| | {' | '.join(heads)} |"]
    lines.append("|---" * (len(heads) + 1) + "|")
    own = runs[SEQUENTIAL]
    for row, each in runs.items():
        half, pairs = options.candidates // 2, list(zip(each, own, strict=True))
        cells = [
            _range([run.rate for run in each]),
            _range([run.rate / base.rate for run, base in pairs]),
            _range([run.best() for run in each]),
            _gap([run.best() - base.best() for run, base in pairs]),
            _gap([run.best(candidates=half) - base.best(candidates=half) for run, base in pairs]),
        ]
        if options.table == POLICIES:
            cells.append(_range([run.best(seconds=full.seconds) for run, full in zip(each, runs["full"], strict=True)]))
        else:
            cells.append(f"{sum(run.jobs for run in each) / len(each):.0f}")
        lines.append(f"| `{row}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _range(values: Sequence[float]) -> str:
    low, mean, _, high = spread(values)
    return f"{mean:.2f} ({low:.2f} to {high:.2f})"


def _gap(values: Sequence[float]) -> str:
    mean, low, high = interval(values)
    return f"{mean:+.3f}" if low is None or high is None else f"{mean:+.3f} [{low:+.3f} to {high:+.3f}]"


def _faults(runs: Sequence[HarnessRun], options: Any) -> str:
    landscapes = [Landscape(seed, FAULTY) for seed in range(len(runs))]
    names = [f"c{number:04d}" for number in range(1, options.candidates + 1)]
    injected = Counter(fault for each in landscapes for name in names if (fault := each.fault(name)))
    told = ", ".join(f"{count} times {fault}" for fault, count in sorted(injected.items()))
    lost = sum(options.candidates + 1 - run.manifests for run in runs)
    ended = sum((Counter(run.ended) for run in runs), Counter[str]())
    ends = ", ".join(f"{count} {name}" for name, count in sorted(ended.items()))
    return f"\nWith faults in {FAULTY:.0%} of the candidates ({told}): {ends}; {lost} lost.\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="flashevolve bench meta-harness",
        description="superagentic-metaharness's own loop and flash on a harness whose worth is known, in virtual time.",
    )
    parser.add_argument("table", nargs="?", choices=[*TABLES], default=POLICIES, help="(%(default)s)")
    parser.add_argument("--processes", type=int, default=2, help="runs at once (%(default)s)")
    parser.add_argument("--seeds", type=int, default=40, help="runs of each rival (%(default)s)")
    parser.add_argument("--candidates", type=int, default=48, help="candidates of a run (%(default)s)")
    parser.add_argument("--proposers", type=int, default=4, help="proposers at once (%(default)s)")
    parser.add_argument("--places", type=int, default=PLACES, help="functions of a harness (%(default)s)")
    parser.add_argument("--evaluators", type=int, default=4, help="evaluations at once (%(default)s)")
    return parser
