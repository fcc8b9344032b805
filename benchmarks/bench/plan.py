"""Which runs make which table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flashevolve_plugins.benchmarks.bench.cells import Cell, RunKey

if TYPE_CHECKING:
    from flashevolve_plugins.benchmarks.bench.cells import Clock


@dataclass(frozen=True)
class Table:
    """A group of runs that are reported together.

    Args:
        name: as on the command line.
        title: what it shows.
        clock: ``"virtual"`` or ``"server"``.
        cells: the settings.
        rivals: by name; the first is what the others are compared with.
        seeds: how many.
    """

    name: str
    title: str
    clock: Clock
    cells: tuple[Cell, ...]
    rivals: tuple[str, ...]
    seeds: int

    def runs(self) -> list[RunKey]:
        """Its runs, seed by seed, so that a table that is not finished compares like with like."""
        return [
            RunKey(self.clock, cell, rival, seed)
            for seed in range(self.seeds)
            for cell in self.cells
            for rival in self.rivals
        ]


_LANDSCAPES = ("additive", "distractors", "length", "conflicts", "all")
_STRATEGIES = ("independent-4", "independent-8", "independent-16", "pxn-2x2", "pxn-2x4", "pxn-4x4")
_BOTH = tuple(f"{name}{selection}" for name in _STRATEGIES for selection in ("", "/best"))
_POLICIES = ("full", "full/8", "guarded:0", "guarded:4")
_EARLY = (
    "",
    "+decided",
    "+trailing",
    "+speculative:0.5",
    "+speculative:0.7",
    "+speculative:0.85",
    "+decided+trailing",
    "+decided+speculative:0.7",
    "+decided+speculative:0.7+trailing",
    "+decided+speculative:0.7+trailing+reorder",
)
_LADDER = ("full", "guarded:0", "reflective", "best-first", "merge")
_USUAL = ("sequential", "independent-16", "independent-16/best", "gepa:independent-16", "full", "guarded", "merge")
_CONTROLS = ("", "@fixed:1-1", "@fixed:4-2", "@fixed:16-8", "@adaptive")
_ORDERS = ("", "+longest-first", "+reorder")

TABLES = {
    each.name: each
    for each in (
        Table(
            "rivals",
            "Every rival, in virtual time",
            "virtual",
            (Cell(),),
            ("sequential", *_BOTH, "gepa:sequential", *(f"gepa:{name}" for name in _BOTH), *_POLICIES),
            16,
        ),
        Table(
            "landscapes",
            "Depth and breadth: hazards of the landscape, in virtual time",
            "virtual",
            tuple(Cell(landscape=name) for name in _LANDSCAPES),
            ("sequential", "independent-16", "independent-16/best", "gepa:pxn-2x4/best", *_LADDER),
            50,
        ),
        Table(
            "merging",
            "How well merges must keep changes, in virtual time",
            "virtual",
            tuple(Cell(landscape=f"merges-lose-{name}") for name in ("60", "80", "more")),
            ("sequential", "gepa:pxn-2x4/best", "best-first", "merge"),
            50,
        ),
        Table(
            "light",
            'The budget of auto="light" for a valset of 100, in virtual time',
            "virtual",
            (Cell(slots=8, calls=780), Cell(calls=780)),
            ("sequential", "gepa:pxn-2x4/best", *_LADDER),
            50,
        ),
        Table(
            "programs",
            "Reflections that overwrite, and a program with three predictors, in virtual time",
            "virtual",
            (Cell(landscape="overwriting"), Cell(landscape="components")),
            ("sequential", "independent-16", "independent-16/best", "full", "guarded:0", "merge"),
            16,
        ),
        Table(
            "budgets",
            'Valsets and budgets, from auto="light" (780 calls at a valset of 100) to 10,000 calls, in virtual time',
            "virtual",
            tuple(Cell(val=val, calls=calls) for val in (50, 100, 300) for calls in (780, 3000, 10000)),
            ("sequential", "independent-16/best", "full", "full/8", "guarded:0", "merge"),
            16,
        ),
        Table(
            "servers",
            "Server profiles, in virtual time",
            "virtual",
            (
                Cell(slots=8),
                Cell(),
                Cell(slots=64, val=300),
                Cell(slots=128),
                Cell(profile="api"),
                Cell(profile="api", slots=64),
                Cell(profile="laptop", slots=4, val=50),
            ),
            _USUAL,
            16,
        ),
        Table(
            "control",
            "Workers per stage: as many as the slots allow, fixed, or by the paper's rate rule; in virtual time",
            "virtual",
            (Cell(), Cell(slots=128)),
            ("sequential", *(f"{policy}{control}" for policy in ("full", "merge") for control in _CONTROLS)),
            16,
        ),
        Table(
            "ordering",
            "The order of a validation's samples, where half of an answer's length is its example's; in virtual time",
            "virtual",
            tuple(Cell(profile="h100-examples", val=val, calls=calls) for val, calls in ((100, 3000), (300, 10000))),
            ("sequential", *(f"merge{order}" for order in _ORDERS), "guarded", "guarded+longest-first"),
            16,
        ),
        Table(
            "speculation",
            "Stages that are left before their last sample: gates that are decided, validations that most speaks for or"
            " against; in virtual time",
            "virtual",
            tuple(Cell(landscape=name, val=val) for name in ("additive", "conflicts") for val in (100, 300)),
            (
                "sequential",
                *(f"full{plugins}" for plugins in ("", "+decided", "+trailing", "+speculative:0.7")),
                *(f"guarded{plugins}" for plugins in ("", "+decided", "+trailing", "+speculative:0.7")),
                "merge-at-once",
                *(f"merge{plugins}" for plugins in _EARLY),
            ),
            16,
        ),
        Table(
            "no-help",
            "Where asynchrony has little or nothing to give: one slot, a server that is saturated already, a budget for"
            " hardly more than the seed; in virtual time",
            "virtual",
            (Cell(slots=1, val=50, calls=1500), Cell(profile="laptop", slots=32, val=50, calls=1500), Cell(calls=320)),
            ("sequential", "full", "guarded:0", "merge"),
            16,
        ),
        Table(
            "speed",
            "Through the simulated server",
            "server",
            tuple(
                replace(cell, calls=calls)
                for calls in (3000, 10000)
                for cell in (Cell(slots=8), Cell(), Cell(slots=64, val=300), Cell(slots=128))
            ),
            ("sequential", "independent-16", "pxn-4x4", "independent-16/best", "gepa:independent-16", "full"),
            8,
        ),
        Table(
            "instant",
            "Tiny latencies: what is left is the processor's work; through the simulated server",
            "server",
            (Cell(profile="instant", slots=16, val=50, calls=1500, time_scale=1.0),),
            ("sequential", "full", "guarded:0"),
            8,
        ),
        Table(
            "turbo",
            "TurboGEPA, in an environment of its own; through the simulated server",
            "server",
            (Cell(),),
            ("sequential", "full", "guarded:0", "turbo-gepa"),
            8,
        ),
    )
}

QUICK = (
    Table(
        "quick-virtual",
        "In virtual time",
        "virtual",
        (Cell(calls=1500), Cell(landscape="conflicts", calls=1500)),
        ("sequential", "independent-16/best", "full", "merge"),
        3,
    ),
    Table(
        "quick-server",
        "Through the simulated server",
        "server",
        (Cell(slots=16, val=50, calls=600, train=60, time_scale=0.02),),
        ("sequential", "independent-8/best", "full"),
        2,
    ),
)
