"""What ``flashevolve bench ace`` compares where: settings, runs, and what is kept of one."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from flashevolve_plugins._errors import UsageError
from flashevolve_plugins.benchmarks.bench.cells import TIME_SCALE, Clock, record_path
from flashevolve_plugins.benchmarks.playbook_landscape import PlaybookLandscape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

#: Named landscapes of playbooks: the parameters that differ from the defaults.
PLAYBOOKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "crowded": {"crowding": 0.004},
    "misleading": {"found": 0.4, "misled": 0.7, "distractor_harm": 0.04},
    "lossy": {"lost": 0.08},
}


@dataclass(frozen=True)
class AceCell:
    """One setting, the same for every rival.

    Args:
        data: whose questions are asked: ``"formula"``, ``"finer"``, or ``"landscape"`` for short ones of our own.
        landscape: the name of a landscape of playbooks.
        profile: a server profile's name.
        slots: flash's slots; the host's own run makes one call after the other.
        samples: training samples.
        val: validation questions.
        epochs: passes over the samples.
        rounds: rounds of reflection at most.
        time_scale: factor on the simulated server's seconds; virtual time knows none.
    """

    data: str = "formula"
    landscape: str = "plain"
    profile: str = "h100"
    slots: int = 16
    samples: int = 500
    val: int = 300
    epochs: int = 1
    rounds: int = 1
    time_scale: float = TIME_SCALE

    @property
    def title(self) -> str:
        """The setting in words."""
        return (
            f"{self.data}, {self.landscape}, {self.profile}, {self.slots} slot{'s' * (self.slots > 1)}, "
            f"{self.samples} samples x {self.epochs}, {self.val} validation questions, "
            f"{self.rounds} round{'s' * (self.rounds > 1)} of reflection"
        )

    def playbook(self, seed: int) -> PlaybookLandscape:
        """The landscape that a seed draws."""
        return PlaybookLandscape(seed=seed, **PLAYBOOKS[self.landscape])


@dataclass(frozen=True)
class AceKey:
    """Which run.

    Args:
        clock: ``"virtual"`` or ``"server"``.
        cell: where.
        rival: who, by name.
        seed: of landscape and server.
    """

    clock: Clock
    cell: AceCell
    rival: str
    seed: int

    @property
    def path(self) -> str:
        """Where its record is kept, below the folder of results."""
        cell = self.cell
        parts = [cell.data, cell.landscape, cell.profile, f"{cell.slots}slots", f"{cell.samples}x{cell.epochs}"]
        parts += [f"{cell.val}val", f"{cell.rounds}rounds"]
        if self.clock == "server":
            parts.append(f"scale{cell.time_scale:g}")
        return record_path("ace", self.clock, "-".join(parts), self.rival, str(self.seed))

    def __str__(self) -> str:
        """The run in words."""
        return f"{self.clock}: {self.cell.title}, {self.rival}, seed {self.seed}"


class Moment(NamedTuple):
    """A moment at which the host was told of a sample.

    Args:
        seconds: since the run began.
        samples: of which the host had been told by then.
        score: the playbook's true score on the validation questions.
    """

    seconds: float
    samples: int
    score: float


@dataclass(frozen=True)
class AceRecord:
    """What one run did. All times are seconds of its own clock.

    Args:
        key: which run.
        seconds: from the call of the host to its return.
        calls: LLM requests.
        tokens: prompt and output tokens.
        busy: mean number of requests in flight, over the slots.
        window_busy: the executor's own figure, from first to last offer; ``None`` for the host's own run.
        validation: share of the validation questions that the final playbook answered right; what that takes is not
            measured.
        entries: of the final playbook.
        duplicates: share of them that state what another one states.
        distractors: entries that do harm.
        playbook_tokens: as the host counts them.
        curve: the start, then every sample that the host was told of.
        staleness: pool versions that a committed item lagged behind, to the number of such items.
        ended: terminal to the number of items that ended so.
        stages: stage to its share of the slot seconds.
        versions: packages and their versions.
    """

    key: AceKey
    seconds: float
    calls: int
    tokens: int
    busy: float
    window_busy: float | None
    validation: float
    entries: int
    duplicates: float
    distractors: int
    playbook_tokens: int
    curve: Sequence[Moment]
    staleness: Mapping[int, int] = field(default_factory=dict)
    ended: Mapping[str, int] = field(default_factory=dict)
    stages: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Samples that the host was told of."""
        return self.curve[-1].samples

    @property
    def rate(self) -> float:
        """Samples per minute."""
        return 60 * self.samples / self.seconds

    @property
    def score(self) -> float:
        """The final true score."""
        return self.curve[-1].score

    def score_in(self, seconds: float) -> float:
        """The true score that the playbook had by then."""
        return [self.curve[0], *(each for each in self.curve if each.seconds <= seconds)][-1].score

    def score_with(self, samples: float) -> float:
        """The true score that the playbook had after so many samples."""
        return [self.curve[0], *(each for each in self.curve if each.samples <= samples)][-1].score


def dump(record: AceRecord) -> str:
    """The record as JSON text."""
    return json.dumps(asdict(record))


def read(path: Path) -> AceRecord:
    """The record in a file.

    Raises:
        UsageError: it holds something else.
    """
    try:
        values = json.loads(path.read_text("utf-8"))
        key = values["key"]
        values["key"] = AceKey(**{**key, "cell": AceCell(**key["cell"])})
        values["curve"] = [Moment(*each) for each in values["curve"]]
        values["staleness"] = {int(lag): count for lag, count in values["staleness"].items()}
        return AceRecord(**values)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no record of a run ({error}): delete it, or choose another --results.") from error
