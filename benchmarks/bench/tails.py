"""How long one validation takes alone on the server, in the host's order and with the longest first.

``python -m flashevolve_plugins.benchmarks.bench.tails``. The lengths that a policy knows are the means of those that
validations before had; "all" knows the lengths themselves, which nobody can.
"""

from __future__ import annotations

import argparse
import random
from statistics import fmean
from typing import TYPE_CHECKING

from flashevolve_plugins.benchmarks.bench.statistics import interval
from flashevolve_plugins.benchmarks.bench.virtual_server import Crew, Request, Started, VirtualServer
from flashevolve_plugins.benchmarks.server.latency import OutputLengths
from flashevolve_plugins.benchmarks.server.profiles import PROFILES
from flashevolve_plugins.hooks import ExampleView, LongestFirst, Pool

if TYPE_CHECKING:
    from collections.abc import Sequence

PROMPT = 300  # tokens
SHARES = (0.25, 0.5, 0.75)
SEEN = (0, 1, 3, 10)  # validations before


def seconds(lengths: Sequence[int], order: Sequence[int], slots: int) -> float:
    """Seconds of one validation alone on one H100.

    Args:
        lengths: output tokens of each example.
        order: in which they start.
        slots: how many run at once.
    """
    server, done = VirtualServer(PROFILES["h100"].latency), list[bool]()
    Started(server, [Crew(slots, [[Request(PROMPT, lengths[place])] for place in order])], lambda: done.append(True))
    while not done:
        server.step()
    return server.now


def validation(seed: int, val: int, slots: int, share: float) -> list[float]:
    """Seconds of a validation: in the host's order, after so many that were seen, and with its lengths known.

    Args:
        seed: of the lengths.
        val: examples.
        slots: how many run at once.
        share: of the variance of the logarithmic lengths that belongs to the example.
    """
    source, lengths = random.Random(seed), OutputLengths(share=share)
    median = lengths.median()
    own = [source.gauss(0, 1) for _ in range(val)]
    drawn = [[lengths.draw(source, median, each) for each in own] for _ in range(max(SEEN) + 1)]
    now, before = drawn[0], drawn[1:]

    def ordered(known: list[float | None]) -> float:
        views = [ExampleView(place, {}, each) for place, each in enumerate(known)]
        return seconds(now, LongestFirst().order(views, Pool()), slots)

    means = [[fmean(each[:seen]) if seen else None for each in zip(*before, strict=True)] for seen in SEEN]
    return [*map(ordered, means), ordered([float(each) for each in now])]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=64)
    parser.add_argument("--slots", type=int, default=32)
    options = parser.parse_args()
    columns = ["valset", "example's share", "host's order, s", *(f"after {seen}" for seen in SEEN[1:]), "all"]
    print(f"| {' | '.join(columns)} |")
    print("|---|---|---|" + "---|" * len(SEEN))
    for val in (100, 300):
        for share in SHARES:
            runs = [validation(seed, val, options.slots, share) for seed in range(options.seeds)]
            host = [each[0] for each in runs]
            gains = [interval([each[column] / each[0] - 1 for each in runs]) for column in range(1, len(SEEN) + 1)]
            told = " | ".join(f"{each.mean:.0%} ({each.low:.0%} to {each.high:.0%})" for each in gains)
            print(f"| {val} | {share:.0%} | {fmean(host):.0f} | {told} |")


if __name__ == "__main__":
    main()
