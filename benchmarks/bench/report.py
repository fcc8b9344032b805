"""Markdown from figures."""

from __future__ import annotations

import statistics
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from flashevolve_plugins.benchmarks.bench.summary import by_rival, summarize

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flashevolve_plugins.benchmarks.bench.plan import Table
    from flashevolve_plugins.benchmarks.bench.record import Record
    from flashevolve_plugins.benchmarks.bench.statistics import Interval, Spread
    from flashevolve_plugins.benchmarks.bench.summary import Against, Figures, Summary

NOTHING = "-"


def report(tables: Sequence[Table], records: Iterable[Record]) -> tuple[str, dict[str, Any]]:
    """The Markdown text, and the same figures as plain data.

    Args:
        tables: what to report, in order.
        records: of any runs; those of no table are left out.
    """
    records = list(records)
    parts: list[str] = []
    figures: dict[str, Any] = {}
    for table in tables:
        summary = summarize(by_rival(records, table), table.rivals[0])
        parts += [f"## {table.title} (`{table.name}`)", ""]
        if not summary:
            parts += ["No run of this table has been made yet.", ""]
            continue
        if len(summary) > 1:
            parts += [*matrix(summary), ""]
        for title, rivals in summary.items():
            parts += [f"### {title}, {_clock(table)}", "", *scores(rivals), "", *throughput(rivals), ""]
        figures[table.name] = {
            title: {rival: asdict(each) for rival, each in rivals.items()} for title, rivals in summary.items()
        }
    return "\n".join(parts), figures


def matrix(summary: Summary) -> list[str]:
    """Rivals by cells: mean final score, how many times faster, and how many seeds reached the first rival's score."""
    rivals = dict.fromkeys(rival for cell in summary.values() for rival in cell)
    rows = [[rival, *(_entry(cell.get(rival)) for cell in summary.values())] for rival in rivals]
    note = "Mean final score (times faster than the first row; seeds that reached the first row's score)."
    return [note, "", *_table(["", *summary], rows)]


def scores(rivals: dict[str, Figures]) -> list[str]:
    """Time and score of a cell."""
    early = next(iter(rivals.values())).early_seconds
    head = [
        "", "seeds", "wall time, s", "times faster", f"score after {early:.0f} s", "final score (range)",
        "less the first's, equal calls", "equal time", "reached it", "times sooner", "times fewer calls",
    ]  # fmt: skip
    rows = [
        [rival, str(each.seeds), f"{each.seconds.mean:.0f}", *_time_and_score(each)] for rival, each in rivals.items()
    ]
    return _table(head, rows)


def throughput(rivals: dict[str, Figures]) -> list[str]:
    """Throughput and cost of a cell."""
    head = [
        "", "proposals/min", "accepted/min", "sweeps/min", "tokens/s", "busy", "busy, own window", "most in flight",
        "staleness", "depth", "calls", "calls per 0.1", "tokens per 0.1", "CPU ms/call", "MB",
    ]  # fmt: skip
    rows = [
        [
            rival,
            f"{each.proposals:.2f}",
            f"{each.accepted:.2f}",
            f"{each.sweeps:.2f}",
            _number(each.tokens),
            f"{each.busy.mean:.2f}",
            NOTHING if each.window_busy is None else f"{each.window_busy.mean:.2f}",
            str(each.most_in_flight),
            _staleness(each),
            f"{each.depth.mean:.1f}",
            _range(each.calls, "{:.0f}"),
            _number(each.calls_per_tenth),
            _number(each.tokens_per_tenth),
            NOTHING if each.cpu_per_call is None else f"{each.cpu_per_call:.1f}",
            _number(each.peak_mb),
        ]
        for rival, each in rivals.items()
    ]
    return _table(head, rows)


def _time_and_score(each: Figures) -> list[str]:
    against = each.against
    score = [f"{each.early:.2f}", _range(each.score, "{:.2f}")]
    if against is None:
        return ["1", *score, *[NOTHING] * 5]
    return [
        _interval(against.faster, "{:.1f}"),
        *score,
        _interval(against.score, "{:+.2f}"),
        _interval(against.score_in_time, "{:+.2f}"),
        f"{against.reached} of {against.pairs}",
        *_times(against),
    ]


def _times(against: Against) -> list[str]:
    return [NOTHING if each is None else f"{each:.1f}" for each in (against.sooner, against.fewer_calls)]


def _entry(each: Figures | None) -> str:
    if each is None:
        return NOTHING
    if each.against is None:
        return f"{each.score.mean:.2f}"
    against = each.against
    return f"{each.score.mean:.2f} ({against.faster.mean:.1f}x; {against.reached}/{against.pairs})"


def _staleness(each: Figures) -> str:
    """The median lag and the largest."""
    if not each.staleness:
        return NOTHING
    lags = [lag for lag, count in each.staleness.items() for _ in range(count)]
    return f"{statistics.median(lags):g} (to {max(lags)})"


def _interval(value: Interval, form: str) -> str:
    if value.low is None or value.high is None:
        return form.format(value.mean)
    return f"{form.format(value.mean)} ({form.format(value.low)} to {form.format(value.high)})"


def _range(value: Spread, form: str) -> str:
    return f"{form.format(value.mean)} ({form.format(value.low)} to {form.format(value.high)})"


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}"


def _clock(table: Table) -> str:
    return "virtual time" if table.clock == "virtual" else "through the server"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
