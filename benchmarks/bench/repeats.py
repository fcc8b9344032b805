"""How often a text comes back that its gate has rejected, and passes then.

``python -m flashevolve_plugins.benchmarks.bench.repeats`` counts it in virtual time, on the same landscapes.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from flashevolve_plugins.benchmarks.bench.cells import Cell, RunKey
from flashevolve_plugins.benchmarks.bench.virtual import run_virtual
from flashevolve_plugins.hooks import hookimpl

if TYPE_CHECKING:
    from flashevolve_plugins.hooks import ItemRecord


class Repeats:
    """Counts items, those whose text its gate rejected before from the same candidate, and those that passed then."""

    def __init__(self) -> None:
        self.items = self.repeated = self.passed = 0
        self._passed: dict[tuple[int, str], bool] = {}

    @hookimpl
    def flashevolve_item_ended(self, record: ItemRecord) -> None:
        """Count it."""
        self.items += 1
        evidence = record.evidence
        if evidence is None or record.members:
            return
        key, passed = (evidence.parent, str(evidence.artifact)), evidence.gain > 0
        if self._passed.get(key) is False:
            self.repeated += 1
            self.passed += passed
        self._passed[key] = self._passed.get(key, False) or passed


def main() -> None:
    """Print one row for each landscape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--rival", default="merge")
    parser.add_argument("--landscape", nargs="+", default=["additive", "conflicts"])
    parser.add_argument("--calls", type=int, default=3000)
    options = parser.parse_args()
    print("| landscape | items | rejected before | passed then |")
    print("|---|---|---|---|")
    for landscape in options.landscape:
        counts = [0, 0, 0]
        for seed in range(options.seeds):
            watch = Repeats()
            run_virtual(RunKey("virtual", Cell(landscape=landscape, calls=options.calls), options.rival, seed), [watch])
            counts = [sum(each) for each in zip(counts, (watch.items, watch.repeated, watch.passed), strict=True)]
        print(f"| {landscape} | {' | '.join(map(str, counts))} |")


if __name__ == "__main__":
    main()
