"""One picture per cell: score over time and over calls, requests in flight over time, shares of the stages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from flashevolve_plugins.benchmarks.bench.record import Point, Record

GRID = 200  # points of a curve
STAGES = ("validate", "gate", "propose", "dataset", "rollout", "other")


def draw(path: Path, title: str, rivals: Mapping[str, Sequence[Record]]) -> None:
    """Draw the picture of a cell.

    Args:
        path: the file, whose ending says the format.
        title: above everything.
        rivals: name to records, one per seed.
    """
    import matplotlib as mpl  # noqa: PLC0415 - slow, and only with the extra

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(2, 2, figsize=(11, 7.5), layout="constrained")
    figure.suptitle(title)
    colors = [f"C{index}" for index in range(len(rivals))]
    scored = all(record.cell.profile != "given" for records in rivals.values() for record in records)
    for axis, what, value in ((axes[0][0], "minutes", _minutes), (axes[0][1], "metric calls", _calls)):
        _scores(axis, rivals, colors, value)
        axis.set(xlabel=what, ylabel="true score of the best by validation" if scored else "best validation score")
    axes[0][0].legend(fontsize="small")
    _in_flight(axes[1][0], rivals, colors)
    _stages(axes[1][1], rivals)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def on_grid(curve: Sequence[Point], value: Callable[[Point], float], grid: Sequence[float]) -> list[float]:
    """The score at every point of a rising grid: that of the last change before it."""
    scores, at = [], 0
    for point in grid:
        while at + 1 < len(curve) and value(curve[at + 1]) <= point:
            at += 1
        scores.append(curve[at].score)
    return scores


def _minutes(point: Point) -> float:
    return point.seconds / 60


def _calls(point: Point) -> float:
    return float(point.calls)


def _scores(
    axis: Any, rivals: Mapping[str, Sequence[Record]], colors: Sequence[str], value: Callable[[Point], float]
) -> None:
    """The mean over the seeds with a band that holds the middle half of them, as far as the longest run goes."""
    for (name, records), color in zip(rivals.items(), colors, strict=True):
        longest = max(_end(record, value) for record in records)
        grid = [longest * index / (GRID - 1) for index in range(GRID)]
        columns = [*map(sorted, zip(*(on_grid(record.curve, value, grid) for record in records), strict=True))]
        out = len(records) // 4  # seeds left out of the band at either end
        axis.plot(grid, [sum(each) / len(each) for each in columns], color=color, label=f"{name} ({len(records)})")
        low, high = ([each[place] for each in columns] for place in (out, -1 - out))
        axis.fill_between(grid, low, high, color=color, alpha=0.15, linewidth=0)


def _end(record: Record, value: Callable[[Point], float]) -> float:
    return value(record.curve[-1]._replace(seconds=record.seconds, calls=record.metric_calls))


def _in_flight(axis: Any, rivals: Mapping[str, Sequence[Record]], colors: Sequence[str]) -> None:
    for (name, records), color in zip(rivals.items(), colors, strict=True):
        record = records[0]
        width = record.seconds / 60 / len(record.in_flight)
        axis.plot([width * (part + 0.5) for part in range(len(record.in_flight))], record.in_flight, color, label=name)
    axis.axhline(next(iter(rivals.values()))[0].cell.slots, color="gray", linestyle=":")
    axis.set(xlabel="minutes (first seed)", ylabel="requests in flight")


def _stages(axis: Any, rivals: Mapping[str, Sequence[Record]]) -> None:
    known = {name: records for name, records in rivals.items() if any(record.stages for record in records)}
    left = [0.0] * len(known)
    for index, stage in enumerate(STAGES):
        widths = [sum(run.stages.get(stage, 0.0) for run in records) / len(records) for records in known.values()]
        if any(width > 0.005 for width in widths):  # noqa: PLR2004 - too thin to see
            axis.barh(list(known), widths, left=left, label=stage, color=f"C{index}")
            left = [start + width for start, width in zip(left, widths, strict=True)]
    axis.invert_yaxis()
    axis.set(xlabel="share of the wall clock (synchronous) or of slot time (flash)")
    axis.legend(fontsize="small", ncols=len(STAGES), loc="lower center", bbox_to_anchor=(0.5, 1.0))
