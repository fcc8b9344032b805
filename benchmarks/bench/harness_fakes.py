"""A harness whose true worth is known: a proposer and an evaluator for superagentic-metaharness, without a model.

A harness is a list of changes. Each of them is worth something, most of them less than nothing. The proposer adds one
that nobody has tried, and what others found good and its parent lacks, as an agent does that reads what was tried and
what others are at.
"""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

FILE = "harness.py"
PLACES = 12  # functions of a harness; a change is a line in one of them
STEP = 200.0  # seconds of a step: the paper's 0.3 proposals per minute
PROPOSE, EVALUATE = 0.74, 0.26  # of a step, as the paper has it
SPREAD = 0.5  # of the logarithm of a duration
_CHANGE = re.compile(r"task\.apply\((\d+)\)")
CHANGES, GOOD = 120, 0.35
HANGS = 5  # times as long as a proposal takes on average
START = 0.3
IDEA = "add change {}"
CRASH, HANG, MALFORMED, KILLED = "proposer crashed", "proposer hung", "malformed JSON", "evaluation killed"
FAULTS = (CRASH, HANG, MALFORMED, KILLED)


class Landscape:
    """What changes are worth, how long calls take, and which of them go wrong.

    Args:
        seed: what everything follows from.
        faults: share of candidates with a fault.
        places: functions of a harness. Two changes of one function meet, those of others do not.
        jobs: of an evaluation. A change is worth more in some than in others, on average what it is said to be worth;
            some take longer than others.
    """

    def __init__(self, seed: int, faults: float = 0.0, places: int = PLACES, *, jobs: int = 1) -> None:
        self.seed, self.faults, self.places, self.jobs = seed, faults, places, jobs
        draw = random.Random(f"worth {seed}")
        self.worth = [
            draw.uniform(0.005, 0.05) if draw.random() < GOOD else -draw.uniform(0.005, 0.05) for _ in range(CHANGES)
        ]
        share = random.Random(f"jobs {seed}")
        lengths = [math.exp(share.gauss(0, SPREAD)) for _ in range(jobs)]
        self._shares = [each / math.fsum(lengths) for each in lengths]
        self._weights = [_on_average_one([share.gauss(1, 1) for _ in range(jobs)]) for _ in range(CHANGES)]
        #: Jobs of evaluations that have ended.
        self.jobs_run = 0
        #: Virtual seconds of the host's own loop, one call after the other.
        self.clock = 0.0
        #: Candidate to the moment at which its evaluation ended in that loop, and its score.
        self.evaluated: dict[str, tuple[float, float]] = {}

    def fault(self, candidate: str) -> str | None:
        """What goes wrong with a candidate, if anything."""
        draw = random.Random(f"fault {self.seed} {candidate}")
        return draw.choice(FAULTS) if candidate != "c0000" and draw.random() < self.faults else None

    def seconds(self, what: str, candidate: str, mean: float) -> float:
        """How long a call takes, lognormal."""
        draw = random.Random(f"{what} {self.seed} {candidate}")
        return mean * STEP * math.exp(draw.gauss(-SPREAD * SPREAD / 2, SPREAD))

    def score(self, changes: list[int]) -> float:
        """What a harness is worth."""
        return START + sum(self.worth[each] for each in set(changes))

    def score_of_job(self, changes: Iterable[int], job: int) -> float:
        """What it is worth in one job of its evaluation."""
        return START + sum(self.worth[each] * self._weights[each][job] for each in set(changes))

    def seconds_of_job(self, candidate: str, job: int) -> float:
        """How long one job of an evaluation takes."""
        return self.seconds("evaluate", candidate, EVALUATE) * self._shares[job]


def _on_average_one(values: list[float]) -> list[float]:
    """Values moved to a mean of 1."""
    mean = math.fsum(values) / len(values)
    return [each - mean + 1 for each in values]


def code_of(changes: Iterable[int], places: int = PLACES) -> str:
    """A harness that holds these changes.

    Args:
        changes: their numbers.
        places: functions of the harness.
    """
    lines = []
    for place in range(places):
        lines += [f"def part_{place}(task):", f'    """Part {place} of the harness."""']
        lines += [f"    task.apply({each})" for each in sorted(changes) if each % places == place]
        lines += ["    return task", "", ""]
    return "\n".join(lines)


def changes_of(workspace: Path) -> list[int]:
    """The changes that a harness holds."""
    return [int(each) for each in _CHANGE.findall((workspace / FILE).read_text(encoding="utf-8"))]


class FakeProposer:
    """Adds changes.

    Args:
        landscape: the task.
        heeds: the chance that a session heeds an idea of another one's that it is shown, 0 to 1.
        rereads: whether a session reads what was evaluated since it began, before it ends.
    """

    name = "fake"
    flashevolve_evaluate = "example"

    def __init__(self, landscape: Landscape, *, heeds: float = 1.0, rereads: bool = True) -> None:
        self._landscape, self._heeds, self._rereads = landscape, heeds, rereads
        self._ideas: dict[str, int] = {}

    def flashevolve_seconds(self, request: Any) -> float:
        """Virtual seconds of a session. As it begins, it chooses its idea and writes it down for the others."""
        name = request.candidate_id
        self._idea(request)
        if self._landscape.fault(name) == HANG:
            return HANGS * PROPOSE * STEP
        return self._landscape.seconds("propose", name, PROPOSE)

    def prepare(self, request: Any) -> Any:
        """Nothing to prepare."""
        return request

    def invoke(self, request: Any) -> Any:
        """Read what was tried, and add to the harness."""
        from metaharness.models import ProposalExecution  # noqa: PLC0415 - the host

        landscape, name = self._landscape, request.candidate_id
        landscape.clock += self.flashevolve_seconds(request)
        fault = landscape.fault(name)
        if fault == CRASH:
            raise ChildProcessError("the proposer crashed")
        timed_out = fault == HANG
        if not timed_out:
            code = code_of(self._chosen(request), landscape.places)
            (request.workspace_dir / FILE).write_text(code, encoding="utf-8")
        if fault == MALFORMED:
            (request.workspace_dir / ".metaharness" / "change_manifest.json").write_text("{not", encoding="utf-8")
        printed = request.candidate_dir / "proposal" / "stdout.jsonl"
        printed.write_text("", encoding="utf-8")
        told = {"timed_out": timed_out, "idea": IDEA.format(self._ideas.get(name))}
        return ProposalExecution(["fake"], request.workspace_dir, printed, printed, metadata=told)

    def _chosen(self, request: Any) -> set[int]:
        """The parent with what others found good, without what they found bad, and with one change nobody has tried."""
        own = set(changes_of(request.workspace_dir))
        held, scores = _prior((request.experience_dir / "candidates").iterdir())
        idea = {self._ideas[request.candidate_id]}
        if self._rereads:
            since = _prior(Path(each["read"]) for each in _others(request).get("evaluated_since", ()))
            held, scores = {**held, **since[0]}, {**scores, **since[1]}
        gains = _gains(held, scores)
        chosen = {each for each in own | gains.keys() if gains.get(each, 1.0) > 0}
        stale = request.experience_dir / "stale" / "workspace"
        if (stale / FILE).exists():  # a rebase: the candidate's own idea once more
            return chosen | {each for each in changes_of(stale) if gains.get(each, 1.0) > 0}
        return chosen | {each for each in idea if gains.get(each, 1.0) > 0}

    def _idea(self, request: Any) -> None:
        """Choose a change that nobody has tried, or is at, and write it down."""
        landscape, name = self._landscape, request.candidate_id
        written = request.workspace_dir / ".metaharness" / "idea.md"
        if name in self._ideas:  # a rebase: the same idea once more
            written.write_text(IDEA.format(self._ideas[name]), encoding="utf-8")
            return
        held, _ = _prior((request.experience_dir / "candidates").iterdir())
        tried = set(changes_of(request.workspace_dir)).union(*(changes for changes, _ in held.values()))
        others = _others(request)
        at = {int(each) for of in (*others.get("sessions", ()), *others.get("proposed", ())) for each in _number(of)}
        heeded = random.Random(f"heeds {landscape.seed} {name}")
        tried |= {each for each in sorted(at) if heeded.random() < self._heeds}
        # drawn so that the same session of another loop has the same idea, unless that was tried there
        draw = random.Random(f"choice {landscape.seed} {name}")
        ideas = draw.sample(range(CHANGES), CHANGES)
        self._ideas[name] = next((each for each in ideas if each not in tried), ideas[0])
        written.write_text(IDEA.format(self._ideas[name]), encoding="utf-8")

    @staticmethod
    def collect(execution: Any) -> Any:
        """What came of a session."""
        from metaharness.models import ProposalResult  # noqa: PLC0415 - the host

        timed_out = execution.metadata["timed_out"]
        summary = "timed out" if timed_out else execution.metadata["idea"]
        return ProposalResult(not timed_out, summary, metadata=execution.metadata)


def _others(request: Any) -> dict[str, Any]:
    """What the session is shown of others; nothing in the host's own loop."""
    path = request.experience_dir / "under_way.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _number(told: Mapping[str, Any]) -> list[str]:
    return re.findall(r"\d+", told["idea"])


def _prior(folders: Iterable[Path]) -> tuple[dict[str, tuple[set[int], str]], dict[str, float]]:
    """What earlier candidates held, from which parent, and their scores."""
    held: dict[str, tuple[set[int], str]] = {}
    scores: dict[str, float] = {}
    for path in sorted(folders):
        manifest: Mapping[str, Any] = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        parents = manifest["parent_candidate_ids"]
        held[path.name] = (set(changes_of(path / "workspace")), parents[0] if parents else "")
        if manifest["valid"] and manifest["objective"] is not None:
            scores[path.name] = manifest["objective"]
    return held, scores


def _gains(held: Mapping[str, tuple[set[int], str]], scores: Mapping[str, float]) -> dict[int, float]:
    """What each change is worth, as far as it follows from candidates that differ in one unknown change."""
    gains: dict[int, float] = {}
    left = [name for name, (_, parent) in sorted(held.items()) if name in scores and parent in scores]
    known = -1
    while known < len(gains):  # one that is known now may make another one known
        known = len(gains)
        left = [name for name in left if not _learn(gains, name, held, scores)]
    return gains


def _learn(
    gains: dict[int, float], name: str, held: Mapping[str, tuple[set[int], str]], scores: Mapping[str, float]
) -> bool:
    """Learn of one candidate what it can tell; whether it has nothing more to tell."""
    changes, parent = held[name]
    before = held[parent][0]
    unknown = [each for each in changes ^ before if each not in gains]
    if len(unknown) == 1:
        told = sum(gains[each] for each in changes - before if each in gains)
        told -= sum(gains[each] for each in before - changes if each in gains)
        gains[unknown[0]] = (scores[name] - scores[parent] - told) * (1 if unknown[0] in changes else -1)
    return len(unknown) <= 1


@dataclass(frozen=True)
class _Job:
    """One job of an evaluation, and the virtual seconds that it takes."""

    score: Callable[[], float]
    seconds: float

    def __call__(self) -> float:
        """Run it."""
        return self.score()

    def flashevolve_seconds(self) -> float:
        """What it takes."""
        return self.seconds


class FakeEvaluator:
    """Knows the worth of a harness.

    Args:
        landscape: the task.
    """

    flashevolve_evaluate = "example"

    def __init__(self, landscape: Landscape) -> None:
        self._landscape = landscape

    def flashevolve_seconds(self, workspace: Path) -> float:
        """Virtual seconds of an evaluation."""
        return self._landscape.seconds("evaluate", workspace.parent.name, EVALUATE)

    def evaluate(self, workspace: Path) -> Any:
        """Its score, in the host's own loop: all that it consists of, one after the other."""
        landscape, name = self._landscape, workspace.parent.name
        landscape.clock += self.flashevolve_seconds(workspace)
        evaluation = self.flashevolve_combine(workspace, [job() for job in self.flashevolve_jobs(workspace)])
        landscape.evaluated[name] = (landscape.clock, evaluation.objective)
        return evaluation

    def flashevolve_jobs(self, workspace: Path) -> Sequence[Callable[[], float]]:
        """The jobs of an evaluation."""
        landscape, name = self._landscape, workspace.parent.name

        def scored(job: int) -> float:
            if landscape.fault(name) == KILLED:
                raise ChildProcessError("the evaluation was killed")
            landscape.jobs_run += 1
            return landscape.score_of_job(changes_of(workspace), job)

        jobs = range(landscape.jobs)
        return [_Job(partial(scored, job), landscape.seconds_of_job(name, job)) for job in jobs]

    def flashevolve_combine(self, workspace: Path, results: Sequence[float]) -> Any:
        """What an evaluation's jobs come to."""
        from metaharness.models import EvaluationResult  # noqa: PLC0415 - the host

        del workspace
        return EvaluationResult(math.fsum(results) / len(results))
