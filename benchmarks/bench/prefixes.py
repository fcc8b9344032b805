"""How well the first part of a validation tells whether a candidate is better than the best: orders compared.

``python -m flashevolve_plugins.benchmarks.bench.prefixes`` runs policies in virtual time and then asks, of every
validated candidate and with the pool as it was then: had its validation begun with the examples that an order puts
first, how often would their mean have said what the whole validation said, and what is true?
"""

from __future__ import annotations

import argparse
from statistics import fmean, pvariance, stdev
from typing import TYPE_CHECKING, Any

from flashevolve_plugins.benchmarks.bench.cells import Cell, RunKey
from flashevolve_plugins.benchmarks.bench.virtual import LandscapeAdapter, run_virtual
from flashevolve_plugins.hooks import ExampleView, Pool, Reorder, SampleOrder, hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from flashevolve_plugins.hooks import PoolEntry

SHARES = (0.1, 0.25, 0.5, 1.0)
LEAST = 3  # entries of the pool, before there is anything to order by


class Discriminating(SampleOrder):
    """What tells the best candidates apart first: by the variance of an example's scores among them.

    Args:
        top: how many of them, by mean score.
        without_best: whether the best one, with which candidates are compared, is left out of them.
    """

    def __init__(self, top: int, *, without_best: bool = False) -> None:
        self._top, self._from = top, int(without_best)

    def order(self, examples: Sequence[ExampleView], pool: Pool) -> Sequence[int]:
        """By that variance, the largest first."""
        best = sorted(pool.entries, key=lambda each: -each.score)[self._from : self._from + self._top]
        spread = [pvariance([each.scores[entry.version] for entry in best]) for each in examples]
        return sorted(range(len(examples)), key=lambda place: -spread[place])


ORDERS: dict[str, SampleOrder | None] = {
    "host": None,
    "reorder": Reorder(),
    "reorder, passed from 0.5": Reorder(passed=0.5),
    "by variance among 4": Discriminating(4),
    "by variance among 8": Discriminating(8),
    "the same without the best": Discriminating(8, without_best=True),
}


class _Watch:
    """Keeps what enters the pool."""

    def __init__(self) -> None:
        self.entries: list[PoolEntry] = []

    @hookimpl
    def flashevolve_pool_updated(self, entry: PoolEntry) -> None:
        """Keep it."""
        self.entries.append(entry)


def judged(entries: Sequence[PoolEntry], true: Callable[[Any], float]) -> Mapping[tuple[str, float], list[Any]]:
    """What each order's first part says of every entry of a pool.

    Args:
        entries: the pool, oldest first.
        true: an artifact's score without noise.

    Returns:
        (Order, share) to (whether it says better, whether that is true, its lead less the true one) of each.
    """
    found: dict[tuple[str, float], list[Any]] = {(name, share): [] for name in ORDERS for share in SHARES}
    for number in range(LEAST, len(entries)):
        pool, entry = Pool(), entries[number]
        pool.append(entries[:number])
        best = max(pool.entries, key=lambda each: each.score)
        names = list(entry.scores)
        views = [ExampleView(name, {each.version: each.scores[name] for each in pool.entries}) for name in names]
        lead = true(entry.artifact) - true(best.artifact)
        for name, order in ORDERS.items():
            positions = range(len(names)) if order is None else order.order(views, pool)
            for share in SHARES:
                first = [names[place] for place in positions[: round(share * len(names))]]
                seen = fmean(entry.scores[each] - best.scores[each] for each in first)
                found[name, share].append((seen > 0, lead > 0, seen - lead))
    return found


def chosen(description: str | None) -> Iterator[tuple[str, Cell, int]]:
    """Rivals, cells and numbers of seeds, as the command line says.

    Args:
        description: what the command does.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--rivals", nargs="+", default=["guarded", "merge"])
    parser.add_argument("--landscape", nargs="+", default=["additive", "conflicts"])
    parser.add_argument("--val", type=int, default=100)
    parser.add_argument("--calls", type=int, default=3000)
    options = parser.parse_args()
    for rival in options.rivals:
        for landscape in options.landscape:
            yield rival, Cell(landscape=landscape, val=options.val, calls=options.calls), options.seeds


def main() -> None:
    """Print one table for each policy."""
    for rival, cell, seeds in chosen(__doc__):
        _table(rival, cell, seeds)


def _table(rival: str, cell: Cell, seeds: int) -> None:
    found: dict[tuple[str, float], list[Any]] = {}
    for seed in range(seeds):
        watch = _Watch()
        run_virtual(RunKey("virtual", cell, rival, seed), [watch])
        for key, values in judged(watch.entries, LandscapeAdapter(cell, "dspy", seed).true_score).items():
            found.setdefault(key, []).extend(values)
    print(f"\n{rival}: {cell.title}, {seeds} seeds, {len(found['host', SHARES[0]])} validations")
    print("| order | share | of the better, missed | of the others, taken for better | bias | spread |")
    print("|---|---|---|---|---|---|")
    for (name, share), values in found.items():
        missed = [not says for says, better, _ in values if better]
        taken = [says for says, better, _ in values if not better]
        off = [each for *_, each in values]
        wrong = " | ".join(f"{sum(each)} of {len(each)}" for each in (missed, taken))
        print(f"| {name} | {share:.0%} | {wrong} | {fmean(off):+.3f} | {stdev(off):.3f} |")


if __name__ == "__main__":
    main()
