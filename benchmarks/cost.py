"""What the executor itself costs: processor time, threads, memory. One table.

Run ``python -m flashevolve_plugins.benchmarks.cost --help``. Times are processor time, which other programs on the
same machine make look dearer than it is: run it on a quiet one.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from flashevolve_plugins.benchmarks.cost_figures import table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashevolve_plugins.benchmarks.cost_figures import Figure

#: Each is the module ``cost_<part>`` beside this one, whose ``measure`` gives its figures.
PARTS = {
    "virtual": "cost per event in virtual time as items grow; 180 simulated minutes",
    "pool": "cost of a commit as the pool grows, ours and the host's (needs gepa)",
    "memory": "what ended items leave behind (needs gepa)",
    "dspy": "processor time per example of a dspy program (needs dspy)",
    "flight": "1,000 requests in flight, on threads and as coroutines (needs gepa; two minutes)",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table.

    Args:
        argv: the arguments.

    Returns:
        The exit code: 1 if a target was missed.
    """
    parts = "; ".join(f"{name}: {about}" for name, about in PARTS.items())
    parser = argparse.ArgumentParser(prog="cost", description=f"What the executor itself costs. Parts: {parts}.")
    parser.add_argument("parts", nargs="*", metavar="part", help=f"any of {', '.join(PARTS)} (all)")
    parser.add_argument("--json", help="where to save every figure")
    options = parser.parse_args(argv)
    unknown = [name for name in options.parts if name not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]!r}: known are {', '.join(PARTS)}")
    figures: dict[str, list[Figure]] = {}
    for part in options.parts or PARTS:
        print(f"measuring: {part}", file=sys.stderr, flush=True)
        figures[part] = import_module(f"flashevolve_plugins.benchmarks.cost_{part}").measure()
    if options.json:
        saved = {part: [asdict(each) | {"met": each.met} for each in some] for part, some in figures.items()}
        Path(options.json).write_text(json.dumps(saved, indent=2) + "\n", "utf-8")
    every = [each for some in figures.values() for each in some]
    print(table(every))
    return int(any(each.met is False for each in every))


if __name__ == "__main__":
    sys.exit(main())
