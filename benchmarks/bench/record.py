"""What one run did, as it is kept on disk."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from flashevolve_plugins._errors import UsageError
from flashevolve_plugins.benchmarks.bench.cells import Cell, RunKey

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from flashevolve_plugins.benchmarks.bench.cells import Clock


class Point(NamedTuple):
    """A moment at which the pool changed.

    Args:
        seconds: since the run began.
        calls: metric calls made by then.
        score: of the best candidate by validation: its true score, or where that is unknown its validation score.
    """

    seconds: float
    calls: int
    score: float


@dataclass(frozen=True)
class Record:
    """What one run did. All times are seconds of its own clock.

    Args:
        clock: ``"virtual"`` or ``"server"``.
        cell: the setting.
        rival: the rival's name.
        seed: of landscape, server and optimizer.
        seconds: from the call of the optimizer to its return.
        metric_calls: metric calls that were made, counted outside the host; or by the host where that is more, as when
            programs fail before the metric is asked.
        proposals: proposals that were evaluated on their minibatch.
        accepted: candidates that entered the pool, without the seed.
        sweeps: validations that were completed, with the seed's.
        requests: LLM requests.
        tokens: prompt and output tokens, or ``None`` where the server does not tell.
        busy: mean number of requests in flight as a share of the slots.
        window_busy: the executor's own figure from first rollout to last offer; ``None`` for other rivals.
        most_in_flight: most requests in flight at once.
        best_validation: best validation score.
        depth: ancestors of the best candidate.
        curve: the seed, then every change of the pool.
        staleness: pool versions that a committed item lagged behind, to the number of such items.
        stages: stage to its share: of the wall clock for a synchronous host, of the slot seconds for flash.
        in_flight: mean number of requests in flight in equal parts of the run.
        cpu_seconds: CPU time of the optimizer's process, or ``None`` in virtual time.
        peak_mb: its largest memory, or ``None`` in virtual time.
        versions: packages and their versions.
        work: of all requests, in output tokens of the latency model; ``None`` through a server.
        lost: of flash in virtual time: phase of the run (start, steady, drain) to its seconds, less those that the
            same work takes with exactly as many requests running as there are slots.
    """

    clock: Clock
    cell: Cell
    rival: str
    seed: int
    seconds: float
    metric_calls: int
    proposals: int
    accepted: int
    sweeps: int
    requests: int
    tokens: int | None
    busy: float
    window_busy: float | None
    most_in_flight: int
    best_validation: float
    depth: int
    curve: Sequence[Point]
    staleness: Mapping[int, int] = field(default_factory=dict)
    stages: Mapping[str, float] = field(default_factory=dict)
    in_flight: Sequence[float] = ()
    cpu_seconds: float | None = None
    peak_mb: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    work: float | None = None
    lost: Mapping[str, float] = field(default_factory=dict)

    @property
    def key(self) -> RunKey:
        """Which run it is of."""
        return RunKey(self.clock, self.cell, self.rival, self.seed)

    @property
    def score(self) -> float:
        """The final score."""
        return self.curve[-1].score

    @property
    def gained(self) -> float:
        """What was gained over the seed."""
        return self.score - self.curve[0].score

    def score_in(self, seconds: float) -> float:
        """The score that the run had by then; at least the seed's."""
        return [self.curve[0], *(point for point in self.curve if point.seconds <= seconds)][-1].score

    def score_with(self, calls: int) -> float:
        """The score that the run had with so many metric calls; at least the seed's."""
        return [self.curve[0], *(point for point in self.curve if point.calls <= calls)][-1].score

    def reached(self, score: float) -> Point | None:
        """The first moment at which the score was reached, or ``None``."""
        return next((point for point in self.curve if point.score >= score), None)


def dump(record: Record) -> str:
    """The record as JSON text."""
    return json.dumps(asdict(record))


def load(text: str) -> Record:
    """The record that JSON text holds."""
    values = json.loads(text)
    values["cell"] = Cell(**values["cell"])
    values["curve"] = [Point(*point) for point in values["curve"]]
    values["staleness"] = {int(lag): count for lag, count in values["staleness"].items()}
    return Record(**values)


def read(path: Path) -> Record:
    """The record in a file.

    Raises:
        UsageError: it holds something else.
    """
    try:
        return load(path.read_text("utf-8"))
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no record of a run ({error}): delete it, or choose another --results.") from error
