"""What a commit costs as the pool grows: our own code and the host's, told apart by a profiler.

The host's state file is made with as many candidates as are wanted, and the run goes on from it.
"""

from __future__ import annotations

import cProfile
import random
import tempfile
import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gepa
from gepa.core.adapter import EvaluationBatch
from gepa.core.state import GEPAState, ValsetEvaluation

import flashevolve_plugins
from flashevolve_plugins import Flash
from flashevolve_plugins.adapters.gepa import bookkeeping
from flashevolve_plugins.benchmarks.cost_figures import Figure
from flashevolve_plugins.hooks import hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from flashevolve_plugins._flash import Clock
    from flashevolve_plugins._snapshot import Snapshot

POOLS = (200, 2_000)  # candidates
COMMITS = 40  # watched at each size
VALIDATION = 100  # examples
TRAINING = 150  # examples
ITERATIONS = 4  # of the host's loop for each candidate
SLOTS = 256
GEPA_MINUTES = 10
ACCEPTED = 0.25
MINIBATCH = 3  # examples, the host's default
TEXT = "State the rule that the case asks for, then its reason. " * 20
COMPONENT = "instruction"

_OURS = Path(flashevolve_plugins.__file__).parent
_HOST = Path(gepa.__file__).parent


class Adapter:
    """Answers at once; what it would take is virtual. Scores differ by text and example.

    Args:
        accepted: share of the proposals that beat their parent on its minibatch.
        known: candidates that exist already.
    """

    flashevolve_evaluate = "example"

    def __init__(self, accepted: float, known: int = 0) -> None:
        self._rng = random.Random(0)
        self._accepted = accepted
        self._proposed = known

    def evaluate(self, batch: list[Any], candidate: dict[str, str], *, capture_traces: bool = False) -> Any:
        """Score every example."""
        number = _number(candidate)
        if isinstance(batch[0], str):  # of the training set: the number of the text decides
            scores = [number / 1e6] * len(batch)
        else:
            scores = [score(number, example) for example in batch]
        traces = [{"feedback": TEXT} for _ in batch] if capture_traces else None
        return EvaluationBatch(outputs=["an answer"] * len(batch), scores=scores, trajectories=traces)

    def make_reflective_dataset(self, candidate: dict[str, str], evaluation: Any, components: list[str]) -> Any:
        """The feedback of every example."""
        del candidate
        return {name: [dict(trace) for trace in evaluation.trajectories] for name in components}

    def propose_new_texts(self, candidate: dict[str, str], dataset: Any, components: list[str]) -> dict[str, str]:
        """A text that is better or worse, as drawn."""
        del candidate, dataset
        self._proposed += 1
        number = self._proposed if self._rng.random() < self._accepted else -self._proposed
        return {name: text(number) for name in components}

    def flashevolve_seconds(self, stage: str, *_: Any) -> float:
        """Virtual seconds of a sample."""
        return 0.001 if stage == "dataset" else 7.0 * self._rng.lognormvariate(-0.32, 0.8)


def text(number: int) -> str:
    """The text of a candidate."""
    return f"{TEXT}{number}"


def _number(candidate: dict[str, str]) -> int:
    return int(candidate[COMPONENT].rsplit(" ", 1)[1])


def score(number: int, example: int) -> float:
    """A candidate's score on a validation example."""
    return (number * 2_654_435_761 + example * 40_503) % 1_000_003 / 1_000_003


class After:
    """A stopper of the host's that knows the virtual time, because it is a plugin as well.

    Args:
        minutes: virtual, after which nothing is offered.
    """

    def __init__(self, minutes: float) -> None:
        self._until = 60 * minutes
        self._over = False

    @hookimpl
    def flashevolve_snapshot(self, snapshot: Snapshot) -> None:
        """Read the clock."""
        self._over = snapshot.seconds >= self._until

    def __call__(self, state: Any) -> bool:
        """Whether the time is over."""
        del state
        return self._over


class _Silent:
    def log(self, *_: Any) -> None:
        """Log nothing."""


def save_state(run_dir: str, candidates: int) -> None:
    """Write the state file of a run that has so many candidates."""

    def evaluation(number: int) -> ValsetEvaluation[str, int]:
        scores = {example: score(number, example) for example in range(VALIDATION)}
        return ValsetEvaluation(dict.fromkeys(scores, "an answer"), scores)

    state: Any = GEPAState({COMPONENT: text(0)}, evaluation(0))
    for number in range(1, candidates):
        for _ in range(ITERATIONS):
            state.i += 1
            state.full_program_trace.append(
                {"i": state.i, "subsample_ids": [1, 2, 3], "subsample_scores": [0.1, 0.2, 0.3], "tasks": [number]}
            )
        state.update_state_with_new_program([number - 1], {COMPONENT: text(number)}, evaluation(number), None, 0)
    state.num_full_ds_evals = candidates
    state.total_num_evals = 0
    state.save(run_dir)


@dataclass
class Commits:
    """Profiles a number of commits, as a callback of the host's.

    Args:
        skip: commits before.
        count: commits that are profiled.
    """

    skip: int
    count: int
    seen: int = 0
    profile: Any = field(default_factory=lambda: cProfile.Profile(time.thread_time))

    def on_candidate_accepted(self, event: Any) -> None:
        """Begin or end."""
        del event
        self.seen += 1
        if self.seen == self.skip:
            self.profile.enable()
        elif self.seen == self.skip + self.count:
            self.profile.disable()

    def __call__(self, state: Any) -> bool:
        """Whether the run is over: a stopper of the host's."""
        del state
        return self.seen >= self.skip + self.count

    def shares(self) -> dict[str, float]:
        """Per commit: milliseconds in our code, in the host's and by kind of its bookkeeping; our function calls."""
        found: defaultdict[str, float] = defaultdict(float)
        rows = self.profile.getstats()
        callers = _callers(rows)
        known: dict[tuple[Any, int], dict[str, float]] = {}
        for row in rows:
            for owner, share in _owners(row.code, callers, known=known).items():
                found[owner] += 1e3 * share * row.inlinetime / self.count
            if _owner_by_place(row.code) == "ours":
                found["our calls"] += row.callcount / self.count
            if getattr(row.code, "co_name", "") in {"save", "_log_candidate_tree"} and _is_in(row.code, _HOST):
                found[row.code.co_name] += 1e3 * row.totaltime / self.count
        return found


def _owner_by_place(code: Any) -> str | None:
    """Whose a function is by where it stands; ``None`` for a library's."""
    if _is_in(code, _OURS):
        return "benchmark" if _is_in(code, _OURS / "benchmarks") else "ours"
    return "host" if _is_in(code, _HOST) else None


def _is_in(code: Any, folder: Path) -> bool:
    return folder in Path(getattr(code, "co_filename", "")).parents


def _callers(rows: Sequence[Any]) -> dict[Any, dict[Any, float]]:
    """Function to the time spent directly in it, by caller."""
    callers: defaultdict[Any, dict[Any, float]] = defaultdict(dict)
    for row in rows:
        for call in row.calls or ():
            callers[call.code][row.code] = call.inlinetime
    return callers


def _owners(
    code: Any,
    callers: Mapping[Any, Mapping[Any, float]],
    depth: int = 8,
    known: dict[tuple[Any, int], dict[str, float]] | None = None,
) -> dict[str, float]:
    """Whose time a function's is; that of a library's is its callers', in proportion.

    Args:
        code: of the function.
        callers: as :func:`_callers` gives them.
        depth: callers of callers that are asked at most.
        known: what was found of each function and depth: libraries call themselves in more ways than can be followed.
    """
    known = {} if known is None else known
    if (code, depth) not in known:
        known[code, depth] = _owners_now(code, callers, depth, known)
    return known[code, depth]


def _owners_now(
    code: Any, callers: Mapping[Any, Mapping[Any, float]], depth: int, known: dict[tuple[Any, int], dict[str, float]]
) -> dict[str, float]:
    if (owner := _owner_by_place(code)) is not None:
        return {owner: 1.0}
    total = sum(callers.get(code, {}).values())
    if not total or not depth:
        return {"other": 1.0}
    found: defaultdict[str, float] = defaultdict(float)
    for caller, inline in callers[code].items():
        for owner, share in _owners(caller, callers, depth - 1, known).items():
            found[owner] += share * inline / total
    return found


@contextmanager
def _no_free_seconds() -> Iterator[None]:
    """The steady state of the bookkeeping's shares, not the free second at a run's start."""
    kept, bookkeeping.FREE_SECONDS = bookkeeping.FREE_SECONDS, 0.0
    try:
        yield
    finally:
        bookkeeping.FREE_SECONDS = kept


def commits(candidates: int, count: int = COMMITS, slots: int = SLOTS) -> dict[str, float]:
    """What a commit costs, as :meth:`Commits.shares` says it, around the commit of the candidate of that number.

    Args:
        candidates: in the pool at the middle of what is watched.
        count: commits watched.
        slots: of the task and of the reflection.
    """
    watch = Commits(skip=10, count=count)
    known = candidates - count // 2 - watch.skip
    with tempfile.TemporaryDirectory() as run_dir, _no_free_seconds():
        save_state(run_dir, known)
        optimize(Adapter(1.0, known), slots=slots, run_dir=run_dir, callbacks=[watch], stop_callbacks=[watch])
    return watch.shares()


def optimize(
    adapter: Adapter,
    *,
    slots: int = SLOTS,
    clock: Clock = "virtual",
    validation: int = VALIDATION,
    plugins: Sequence[Any] = (),
    **more: Any,
) -> Snapshot:
    """``gepa.optimize`` on texts that mean nothing.

    Args:
        adapter: what evaluates and proposes.
        slots: of the task and of the reflection.
        clock: ``"virtual"``, or ``"local"`` for threads.
        validation: examples of a validation.
        plugins: of flash.
        more: for the host.

    Returns:
        The last snapshot.
    """
    flash = Flash(
        max_concurrency=slots,
        reflection_concurrency=slots,
        staleness="full",
        clock=clock,
        progress=False,
        plugins=plugins,
    )
    gepa.optimize(
        seed_candidate={COMPONENT: text(0)},
        trainset=[f"question {number}" for number in range(TRAINING)],
        valset=list(range(validation)),
        adapter=adapter,
        skip_perfect_score=False,
        logger=_Silent(),
        executor=flash,
        **more,
    )
    assert flash.last_run is not None  # noqa: S101 - the run is over
    return flash.last_run


def measure(pools: Sequence[int] = POOLS, minutes: float = GEPA_MINUTES) -> list[Figure]:
    """Commits at two sizes of the pool, and simulated minutes with the host in the loop.

    Args:
        pools: candidates, smallest first.
        minutes: virtual.
    """
    figures = []
    found = {size: commits(size) for size in pools}
    for size, shares in found.items():
        figures.append(Figure(f"commit of candidate {size:,}, under a profiler: our code", shares["ours"], "ms"))
    for name, owner in (("processor time", "ours"), ("function calls", "our calls")):
        ratio = found[pools[-1]][owner] / found[pools[0]][owner]
        what = f"our code, candidate {pools[-1]:,} against {pools[0]:,}: {name}"
        figures.append(Figure(what, ratio, "times", at_most=2.0))
    for size, shares in found.items():
        name = f"commit of candidate {size:,}, under a profiler: the host's"
        figures += [
            Figure(f"{name} code", shares["host"], "ms"),
            Figure(f"{name} state file and logs", shares["save"], "ms"),
            Figure(f"{name} candidate tree", shares["_log_candidate_tree"], "ms"),
        ]
    before = time.process_time()
    after = After(minutes)
    last = optimize(Adapter(ACCEPTED), stop_callbacks=[after], plugins=[after])
    cpu, samples = time.process_time() - before, sum(last.samples.values())
    name = f"gepa in virtual time, {minutes:g} minutes at {SLOTS} slots, {samples:,} samples, {last.accepted} accepted"
    return [*figures, Figure(f"{name}: processor time", cpu, "s")]
