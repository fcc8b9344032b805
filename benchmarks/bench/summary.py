"""From records to figures: what each rival did in a cell, alone and against the first rival seed by seed."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashevolve_plugins.benchmarks.bench.statistics import Interval, Spread, interval, ratio, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from flashevolve_plugins.benchmarks.bench.plan import Table
    from flashevolve_plugins.benchmarks.bench.record import Record


@dataclass(frozen=True)
class Against:
    """A rival against the first one, over the seeds that both have.

    Args:
        pairs: number of such seeds.
        faster: the first rival's wall time over this one's.
        score: this rival's score less the first one's with as many metric calls as the thriftier of the two made.
        score_in_time: this rival's final score less what the first one had when this one ended: at equal wall time.
        first_in_time: what the first one had then.
        reached: seeds in which this rival reached the first one's final score.
        sooner: how many times sooner it did, in wall time, than the first one; the median over all pairs, or ``None``
            where it did not in half of them.
        fewer_calls: the same in metric calls.
    """

    pairs: int
    faster: Interval
    score: Interval
    score_in_time: Interval
    first_in_time: float
    reached: int
    sooner: float | None
    fewer_calls: float | None


@dataclass(frozen=True)
class Figures:
    """A rival in a cell. Rates are per minute of its own clock.

    Args:
        seeds: number of runs.
        seconds: wall time.
        score: final score.
        early: score after ``early_seconds``; the mean.
        early_seconds: the mean wall time of the cell's fastest rival.
        calls: metric calls.
        most_over: the most calls of a run above the budget.
        proposals: evaluated proposals per minute.
        accepted: accepted ones per minute.
        sweeps: validations per minute.
        tokens: prompt and output tokens per second, where known.
        busy: requests in flight as a share of the slots.
        window_busy: the executor's own figure, from first rollout to last offer.
        most_in_flight: the most requests at once in any run.
        staleness: pool versions that a committed item lagged behind, to the number of such items in all runs.
        depth: ancestors of the best candidate.
        calls_per_tenth: metric calls per 0.1 of score gained; the median, ``None`` where half the runs gained nothing.
        tokens_per_tenth: the same in tokens.
        cpu_per_call: milliseconds of the optimizer's process per metric call.
        peak_mb: the largest memory of a run.
        against: compared with the first rival; ``None`` for itself.
    """

    seeds: int
    seconds: Spread
    score: Spread
    early: float
    early_seconds: float
    calls: Spread
    most_over: int
    proposals: float
    accepted: float
    sweeps: float
    tokens: float | None
    busy: Spread
    window_busy: Spread | None
    most_in_flight: int
    staleness: dict[int, int]
    depth: Spread
    calls_per_tenth: float | None
    tokens_per_tenth: float | None
    cpu_per_call: float | None
    peak_mb: float | None
    against: Against | None


#: Cell's title to rival to its figures.
Summary = dict[str, dict[str, Figures]]


def by_rival(records: Iterable[Record], table: Table) -> dict[str, dict[str, dict[int, Record]]]:
    """Cell's title to rival to seed to record, in the table's order; rivals without a run are left out."""
    known = {record.key: record for record in records}
    found: dict[str, dict[str, dict[int, Record]]] = {
        cell.title: {rival: {} for rival in table.rivals} for cell in table.cells
    }
    for key in table.runs():
        if key in known:
            found[key.cell.title][key.rival][key.seed] = known[key]
    cells = {title: {name: runs for name, runs in rivals.items() if runs} for title, rivals in found.items()}
    return {title: rivals for title, rivals in cells.items() if rivals}


def summarize(runs: Mapping[str, Mapping[str, Mapping[int, Record]]], first: str) -> Summary:
    """The figures of every cell and rival.

    Args:
        runs: what ``by_rival`` gave.
        first: the rival that the others are compared with.
    """
    summary: Summary = {}
    for title, rivals in runs.items():
        fastest = min(statistics.fmean(run.seconds for run in each.values()) for each in rivals.values())
        summary[title] = {
            rival: _figures(
                list(each.values()), fastest, None if rival == first else _against(each, rivals.get(first, {}))
            )
            for rival, each in rivals.items()
        }
    return summary


def _figures(runs: Sequence[Record], fastest: float, against: Against | None) -> Figures:
    def of(value: Callable[[Record], float]) -> list[float]:
        return [value(run) for run in runs]

    def known(value: Callable[[Record], float | None]) -> list[float]:
        return [found for run in runs if (found := value(run)) is not None]

    windows, cpu, memory = (known(lambda run: run.window_busy), known(_cpu_per_call), known(lambda run: run.peak_mb))
    tokens = known(lambda run: None if run.tokens is None else run.tokens / run.seconds)
    return Figures(
        seeds=len(runs),
        seconds=spread(of(lambda run: run.seconds)),
        score=spread(of(lambda run: run.score)),
        early=statistics.fmean(of(lambda run: run.score_in(fastest))),
        early_seconds=fastest,
        calls=spread(of(lambda run: run.metric_calls)),
        most_over=max(run.metric_calls - run.cell.calls for run in runs),
        proposals=statistics.fmean(of(lambda run: 60 * run.proposals / run.seconds)),
        accepted=statistics.fmean(of(lambda run: 60 * run.accepted / run.seconds)),
        sweeps=statistics.fmean(of(lambda run: 60 * run.sweeps / run.seconds)),
        tokens=statistics.fmean(tokens) if tokens else None,
        busy=spread(of(lambda run: run.busy)),
        window_busy=spread(windows) if windows else None,
        most_in_flight=max(run.most_in_flight for run in runs),
        staleness=_staleness(runs),
        depth=spread(of(lambda run: run.depth)),
        calls_per_tenth=_median_of_most([_per_tenth(run, run.metric_calls) for run in runs]),
        tokens_per_tenth=_median_of_most([_per_tenth(run, run.tokens) for run in runs]),
        cpu_per_call=statistics.median(cpu) if cpu else None,
        peak_mb=max(memory) if memory else None,
        against=against,
    )


def _against(runs: Mapping[int, Record], firsts: Mapping[int, Record]) -> Against | None:
    pairs = [(firsts[seed], run) for seed, run in runs.items() if seed in firsts]
    if not pairs:
        return None
    sooner: list[float | None] = []
    fewer: list[float | None] = []
    for first, run in pairs:
        there, here = first.reached(first.score), run.reached(first.score)
        sooner.append(there.seconds / here.seconds if there and here and here.seconds else None)
        fewer.append(there.calls / here.calls if there and here and here.calls else None)
    return Against(
        pairs=len(pairs),
        faster=ratio([(first.seconds, run.seconds) for first, run in pairs]),
        score=interval([_lead(first, run) for first, run in pairs]),
        score_in_time=interval([run.score - first.score_in(run.seconds) for first, run in pairs]),
        first_in_time=statistics.fmean(first.score_in(run.seconds) for first, run in pairs),
        reached=sum(run.reached(first.score) is not None for first, run in pairs),
        sooner=_median_of_most(sooner),
        fewer_calls=_median_of_most(fewer),
    )


def _lead(first: Record, run: Record) -> float:
    calls = min(first.metric_calls, run.metric_calls)
    return run.score_with(calls) - first.score_with(calls)


def _median_of_most(values: Sequence[float | None]) -> float | None:
    """The median, where ``None`` counts as the worst there is: ``None`` if half the values or more are."""
    known = sorted((value for value in values if value is not None), reverse=True)
    if 2 * len(known) <= len(values):
        return None
    worst = [0.0] * (len(values) - len(known))
    return statistics.median([*known, *worst])


def _per_tenth(run: Record, spent: float | None) -> float | None:
    return None if spent is None or run.gained <= 0 else 0.1 * spent / run.gained


def _cpu_per_call(run: Record) -> float | None:
    return None if run.cpu_seconds is None or not run.metric_calls else 1e3 * run.cpu_seconds / run.metric_calls


def _staleness(runs: Sequence[Record]) -> dict[int, int]:
    counts: Counter[int] = Counter()
    for run in runs:
        counts.update(run.staleness)
    return dict(sorted(counts.items()))
