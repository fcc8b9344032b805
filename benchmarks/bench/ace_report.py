"""From records of ACE to figures and Markdown: each rival against the host's own run, seed by seed."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flashevolve_plugins.benchmarks.bench.statistics import Interval, Spread, interval, ratio, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from flashevolve_plugins.benchmarks.bench.ace_cells import AceRecord

NOTHING = "-"
PARTS = 10  # at which the score over samples and over time is given
EARLY = 0.2  # of the samples


@dataclass(frozen=True)
class Against:
    """A rival against the host's own run, over the seeds that both have.

    Args:
        pairs: number of such seeds.
        faster: its samples per minute over the host's own.
        score: its final true score less the host's own.
        validation: its accuracy on the validation questions less the host's own.
        early: its true score after a fifth of the samples less the host's own then.
        in_time: its final true score less what the host's own run had when this one ended.
        slowest: the seed with the fewest times the host's own samples per minute: how many times.
    """

    pairs: int
    faster: Interval
    score: Interval
    validation: Interval
    early: Interval
    in_time: Interval
    slowest: float


@dataclass(frozen=True)
class Figures:
    """A rival in a setting; a spread or mean over the seeds.

    Args:
        seeds: number of runs.
        rate: samples per minute.
        seconds: wall time.
        busy: requests in flight as a share of the slots, over the whole run.
        window_busy: the executor's own figure, from first to last offer.
        score: final true score.
        validation: accuracy on the validation questions.
        entries: of the playbook.
        duplicates: share of entries that state what another one states.
        distractors: entries that do harm.
        tokens: of the playbook.
        calls: requests per sample.
        staleness: median and largest number of pool versions that a committed item lagged behind.
        ended: terminal to its share of the items.
        over_samples: the mean true score after equal parts of the samples, the start first.
        over_time: the mean true score after equal parts of the fastest rival's mean wall time, the start first.
        against: compared with the host's own run; ``None`` for itself.
    """

    seeds: int
    rate: Spread
    seconds: Spread
    busy: Spread
    window_busy: Spread | None
    score: Spread
    validation: Spread
    entries: Spread
    duplicates: Spread
    distractors: Spread
    tokens: Spread
    calls: Spread
    staleness: tuple[float, int] | None
    ended: dict[str, float]
    over_samples: list[float]
    over_time: list[float]
    against: Against | None


def summarize(runs: Mapping[str, Mapping[int, AceRecord]], first: str) -> dict[str, Figures]:
    """The figures of every rival in a setting.

    Args:
        runs: rival to seed to record.
        first: the host's own run.
    """
    fastest = min(statistics.fmean(run.seconds for run in each.values()) for each in runs.values())
    return {
        rival: _figures(list(each.values()), fastest, None if rival == first else _against(each, runs.get(first, {})))
        for rival, each in runs.items()
    }


def _figures(runs: Sequence[AceRecord], fastest: float, against: Against | None) -> Figures:
    def of(value: Callable[[AceRecord], float]) -> Spread:
        return spread([value(run) for run in runs])

    windows = [run.window_busy for run in runs if run.window_busy is not None]
    ended = sum((Counter(run.ended) for run in runs), Counter[str]())
    lags = sorted(lag for run in runs for lag, count in run.staleness.items() for _ in range(count))
    parts = [part / PARTS for part in range(PARTS + 1)]
    return Figures(
        seeds=len(runs),
        rate=of(lambda run: run.rate),
        seconds=of(lambda run: run.seconds),
        busy=of(lambda run: run.busy),
        window_busy=spread(windows) if windows else None,
        score=of(lambda run: run.score),
        validation=of(lambda run: run.validation),
        entries=of(lambda run: run.entries),
        duplicates=of(lambda run: run.duplicates),
        distractors=of(lambda run: run.distractors),
        tokens=of(lambda run: run.playbook_tokens),
        calls=of(lambda run: run.calls / run.samples),
        staleness=(statistics.median(lags), lags[-1]) if lags else None,
        ended={name: count / ended.total() for name, count in sorted(ended.items())},
        over_samples=[statistics.fmean(run.score_with(part * run.samples) for run in runs) for part in parts],
        over_time=[statistics.fmean(run.score_in(part * fastest) for run in runs) for part in parts],
        against=against,
    )


def _against(runs: Mapping[int, AceRecord], firsts: Mapping[int, AceRecord]) -> Against | None:
    pairs = [(firsts[seed], run) for seed, run in runs.items() if seed in firsts]
    if not pairs:
        return None
    early = EARLY * min(each.samples for pair in pairs for each in pair)
    return Against(
        pairs=len(pairs),
        faster=ratio([(run.rate, first.rate) for first, run in pairs]),
        score=interval([run.score - first.score for first, run in pairs]),
        validation=interval([run.validation - first.validation for first, run in pairs]),
        early=interval([run.score_with(early) - first.score_with(early) for first, run in pairs]),
        in_time=interval([run.score - first.score_in(run.seconds) for first, run in pairs]),
        slowest=min(run.rate / first.rate for first, run in pairs),
    )


def markdown(title: str, rivals: Mapping[str, Figures]) -> str:
    """The tables of a setting."""
    speed = [
        ("", "seeds", "samples/min", "times the host's own (least)", "busy", "busy, own window", "calls per sample",
         "staleness", "ended"),
        *((name, str(each.seeds), f"{each.rate.mean:.1f}", *_speed(each)) for name, each in rivals.items()),
    ]  # fmt: skip
    worth = [
        ("", "true score (range)", "less the host's own", "after a fifth of the samples", "at equal time",
         "validation", "less the host's own", "entries", "duplicates", "harmful", "tokens"),
        *((name, _range(each.score), *_worth(each)) for name, each in rivals.items()),
    ]  # fmt: skip
    curves = [
        ("true score after", *(f"{100 * part // PARTS} %" for part in range(PARTS + 1))),
        *((f"{name}, of the samples", *map("{:.2f}".format, each.over_samples)) for name, each in rivals.items()),
        *((f"{name}, of the fastest's time", *map("{:.2f}".format, each.over_time)) for name, each in rivals.items()),
    ]
    return "\n\n".join([f"### {title}", *map(_table, (speed, worth, curves))])


def _speed(each: Figures) -> Iterable[str]:
    against = each.against
    yield "1" if against is None else f"{_interval(against.faster, '{:.1f}')} ({against.slowest:.1f})"
    yield f"{each.busy.mean:.2f}"
    yield NOTHING if each.window_busy is None else f"{each.window_busy.mean:.2f} (least {each.window_busy.low:.2f})"
    yield f"{each.calls.mean:.2f}"
    yield NOTHING if each.staleness is None else f"{each.staleness[0]:g} (to {each.staleness[1]})"
    yield ", ".join(f"{name} {share:.0%}" for name, share in each.ended.items()) or NOTHING


def _worth(each: Figures) -> Iterable[str]:
    against = each.against
    if against is None:
        yield from [NOTHING] * 3
    else:
        yield from (_interval(value, "{:+.3f}") for value in (against.score, against.early, against.in_time))
    yield f"{each.validation.mean:.3f}"
    yield NOTHING if against is None else _interval(against.validation, "{:+.3f}")
    yield f"{each.entries.mean:.0f}"
    yield f"{each.duplicates.mean:.0%}"
    yield f"{each.distractors.mean:.1f}"
    yield f"{each.tokens.mean:,.0f}"


def _interval(value: Interval, form: str) -> str:
    if value.low is None or value.high is None:
        return form.format(value.mean)
    return f"{form.format(value.mean)} ({form.format(value.low)} to {form.format(value.high)})"


def _range(value: Spread) -> str:
    return f"{value.mean:.3f} ({value.low:.3f} to {value.high:.3f})"


def _table(rows: Sequence[Sequence[Any]]) -> str:
    head, *rest = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rest))
