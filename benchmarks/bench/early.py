"""What policies that leave validations early get wrong: false admissions of each share, false stops of each risk.

``python -m flashevolve_plugins.benchmarks.bench.early`` runs policies in virtual time, in which the true score of every
candidate is known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

from flashevolve_plugins.benchmarks.bench.cells import RunKey
from flashevolve_plugins.benchmarks.bench.prefixes import chosen
from flashevolve_plugins.benchmarks.bench.virtual import LandscapeAdapter, run_virtual
from flashevolve_plugins.hooks import ItemView, Pool, Progress, Release, Speculative, Trailing, hookimpl
from flashevolve_plugins.hooks.depth import best_entry

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashevolve_plugins.benchmarks.bench.cells import Cell
    from flashevolve_plugins.benchmarks.bench.record import Record

SHARES = (0.3, 0.5, 0.7, 0.9)
RISKS = (0.01, 0.05, 0.2)
AFTER = 0.25


@dataclass
class Seen:
    """What a policy did in some runs.

    Args:
        admitted: of each artifact that was admitted provisionally, its lead over the best in truth.
        withdrawn: the same of those that the whole validation did not confirm.
        stopped: the same of those whose validation was stopped.
        records: of the runs.
    """

    admitted: list[float] = field(default_factory=list)
    withdrawn: list[float] = field(default_factory=list)
    stopped: list[float] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)

    @property
    def sweeps(self) -> float:
        """Whole validations per minute, the mean of the runs."""
        return fmean(60 * each.sweeps / each.seconds for each in self.records)

    @property
    def score(self) -> float:
        """The final score, the mean of the runs."""
        return fmean(each.score for each in self.records)


class Admissions(Speculative):
    """Speculative, watched.

    Args:
        share: of a validation.
        lead: an artifact's lead over the best in truth.
        seen: where to note what it does.
    """

    def __init__(self, share: float, lead: Callable[[Any, Pool], float], seen: Seen) -> None:
        super().__init__(evaluate=share)
        self._lead, self._seen = lead, seen

    @hookimpl
    def flashevolve_admit_provisional(self, progress: Progress, pool: Pool) -> bool:
        """As it decides; of an artifact that is asked about with all its scores, whether it is confirmed."""
        admits, whole = super().flashevolve_admit_provisional(progress, pool), None not in progress.scores
        if admits and not whole:
            self._seen.admitted.append(self._lead(progress.artifact, pool))
        if whole and not admits:
            self._seen.withdrawn.append(self._lead(progress.artifact, pool))
        return admits


class Stops(Trailing):
    """Trailing, watched.

    Args:
        risk: below which a validation is stopped.
        lead: an artifact's lead over the best in truth.
        seen: where to note what it does.
    """

    def __init__(self, risk: float, lead: Callable[[Any, Pool], float], seen: Seen) -> None:
        super().__init__(AFTER, risk)
        self._lead, self._seen = lead, seen

    @hookimpl
    def flashevolve_release_stage(self, item: ItemView, progress: Progress, pool: Pool) -> Release | None:
        """As it decides."""
        release = super().flashevolve_release_stage(item, progress, pool)
        if release is not None:
            self._seen.stopped.append(self._lead(progress.artifact, pool))
        return release


def watch(rival: str, cell: Cell, seeds: int, policy: Callable[..., object] | None = None) -> Seen:
    """Run a rival with a policy, made from ``lead`` and ``seen``, or with none."""
    seen = Seen()
    for seed in range(seeds):
        true = LandscapeAdapter(cell, "dspy", seed).true_score

        def lead(artifact: Any, pool: Pool, true: Callable[[Any], float] = true) -> float:
            return true(artifact) - true(best_entry(pool.entries).artifact)

        plugins = () if policy is None else (policy(lead=lead, seen=seen),)
        seen.records.append(run_virtual(RunKey("virtual", cell, rival, seed), plugins))
    return seen


def main() -> None:
    """Print two tables for each policy and landscape."""
    for rival, cell, seeds in chosen(__doc__):
        _tables(rival, cell, seeds)


def _tables(rival: str, cell: Cell, seeds: int) -> None:
    plain = watch(rival, cell, seeds)
    print(f"\n{rival}: {cell.title}, {seeds} seeds; without: {_shared(plain)}")
    print("| share | admitted | in truth not better | withdrawn | of them in truth better | sweeps/min | score |")
    print("|---|---|---|---|---|---|---|")
    for share in SHARES:
        seen = watch(rival, cell, seeds, lambda share=share, **given: Admissions(share, **given))
        wrong = f"{len(seen.admitted)} | {_count(seen.admitted, better=False)}"
        print(f"| {share} | {wrong} | {len(seen.withdrawn)} | {_count(seen.withdrawn, better=True)} | {_cells(seen)} |")
    print("\n| risk | stopped | of them in truth better | sweeps/min | score |")
    print("|---|---|---|---|---|")
    for risk in RISKS:
        seen = watch(rival, cell, seeds, lambda risk=risk, **given: Stops(risk, **given))
        print(f"| {risk} | {len(seen.stopped)} | {_count(seen.stopped, better=True)} | {_cells(seen)} |")


def _count(leads: list[float], *, better: bool) -> int:
    return sum((lead > 0) is better for lead in leads)


def _cells(seen: Seen) -> str:
    return f"{seen.sweeps:.2f} | {seen.score:.2f}"


def _shared(seen: Seen) -> str:
    return f"{seen.sweeps:.2f} sweeps per minute, score {seen.score:.2f}"


if __name__ == "__main__":
    main()
