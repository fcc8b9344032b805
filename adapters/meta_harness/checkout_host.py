"""What the two layouts of a stanford-iris-lab/meta-harness checkout have in common as a host."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._model import Terminal
from flashevolve_plugins.adapters.meta_harness.checkout_carry import (
    carried_agents,
    carry_agents,
)
from flashevolve_plugins.adapters.meta_harness.commands import TIMED_OUT, run_command
from flashevolve_plugins.adapters.meta_harness.host import Ending, Job, Proposal
from flashevolve_plugins.adapters.meta_harness.private_copy import OWN, PrivateCopy, make_copy
from flashevolve_plugins.adapters.meta_harness.publishing import (
    Candidate,
    Publisher,
    belonging,
    helpers,
    renamed,
)
from flashevolve_plugins.adapters.meta_harness.texts import LONGEST_FILE, without_secrets, write_json_whole
from flashevolve_plugins.adapters.meta_harness.under_way import FILE, IDEA, LONGEST_IDEA, idea_in, told_of_others

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from flashevolve_plugins.adapters.meta_harness.checkout import Example
    from flashevolve_plugins.adapters.meta_harness.three_way import Carried

PATIENCE = 60  # seconds that a session may take beyond the timeout of its proposer
STALE = "stale"
REBASE = (
    "\n\n## Rebase\nThe candidates in `{place}/` were made before {entered} entered the frontier. Make them anew from "
    "what is best now: carry over what still helps, leave out what is there already, and write pending_eval.json as "
    "above."
)


@dataclass
class Work:
    """An iteration under way.

    Args:
        iteration: its number in the host's records.
        copy: its private copy, until the session is over; ``None`` in lockstep.
        more: more words for the prompt.
        candidates: what the session named.
        helpers: further files that its candidates may import.
        propose_seconds: how long the session took.
        began: the moment at which the checks began.
    """

    iteration: int
    copy: PrivateCopy | None = None
    more: str = ""
    candidates: list[Candidate] = field(default_factory=list)
    helpers: Mapping[str, bytes] = field(default_factory=dict)
    propose_seconds: float = 0.0
    began: float = 0.0

    @property
    def valid(self) -> list[Candidate]:
        """The candidates that may be tried."""
        return [each for each in self.candidates if not each.problem]


class CheckoutHost(ABC):
    """One call of an example's ``run_evolve``.

    Args:
        example: the example.
        args: its own command line.
        lockstep: whether nothing runs at once.
    """

    proposers = evaluators = 4
    advice = ""
    #: What the host's records call a candidate's name.
    label: str

    def __init__(self, example: Example, args: Any, *, lockstep: bool) -> None:
        self.example, self.module, self.args, self.lockstep = example, example.module, args, lockstep
        self.name = f"meta-harness {example.path.name}"
        self.total = args.iterations
        self.run_name = args.run_name or datetime.now().strftime("%Y%m%d_%H%M%S")  # noqa: DTZ005 - as the host names it
        self.logs = self._place("LOGS_DIR", "logs")
        module = self.module
        module.PENDING_EVAL = self.logs / "pending_eval.json"
        module.FRONTIER_VAL = self.logs / "frontier_val.json"
        module.EVOLUTION_SUMMARY = self.logs / "evolution_summary.jsonl"
        self.jobs_folder: Path | None = None
        self.staging = self.logs / OWN
        module.AGENTS_DIR.mkdir(parents=True, exist_ok=True)
        self._publisher = Publisher(module.AGENTS_DIR, self.has_results)
        self._first = 1
        self._begun = 0
        self._best: tuple[str, float] = ("none", 0.0)
        self._entered: list[str] = []  # names of what entered the pool, by version

    def _place(self, name: str, folder: str) -> Path:
        path = self.example.path / folder / self.run_name
        path.mkdir(parents=True, exist_ok=True)
        setattr(self.module, name, path)
        return path

    # -- what a layout supplies -------------------------------------------------------------------------------------

    @abstractmethod
    def has_results(self, name: str) -> bool:
        """Whether a candidate of this name was evaluated before."""

    @abstractmethod
    def iterations(self) -> int:
        """The highest iteration in the host's records."""

    @abstractmethod
    def counted(self) -> int:
        """The number that the host's prompt wants."""

    @abstractmethod
    def baselines(self) -> Sequence[Job]:
        """The evaluations of the baselines."""

    @abstractmethod
    def take_baselines(self) -> tuple[str, float]:
        """Let the baselines enter the frontier; the best and its score."""

    @abstractmethod
    def stem(self, told: Mapping[str, Any]) -> str | None:
        """The name of a candidate's module, or ``None`` if what the proposer says names none."""

    @abstractmethod
    def renamed(self, told: Mapping[str, Any], stem: str) -> dict[str, Any]:
        """What the host is told of a candidate whose module has this name."""

    @abstractmethod
    def module_of(self, name: str) -> str:
        """The module of an agent that the host's records name so."""

    @abstractmethod
    def check(self, candidate: Candidate) -> bool:
        """The host's checks of one candidate. Runs in a slot."""

    @abstractmethod
    def evaluation(self, candidate: Candidate) -> Sequence[Job]:
        """The jobs of a candidate's evaluation."""

    @abstractmethod
    def write(self, work: Work, results: Sequence[Any]) -> dict[str, float]:
        """Write an iteration's results into the host's records; the scores of what was evaluated whole, by name."""

    @abstractmethod
    def write_failed(self, work: Work) -> None:
        """Write down an iteration none of whose candidates passed the checks."""

    # -- the protocol -----------------------------------------------------------------------------------------------

    def seed(self) -> tuple[Sequence[Job], Callable[[Sequence[Any]], Sequence[Job]], Callable[[Sequence[Any]], float]]:
        """The baselines."""
        if self.args.fresh:
            self.module.fresh_start()
        shutil.rmtree(self.staging, ignore_errors=True)  # of a run that was interrupted
        _end_line(self.module.EVOLUTION_SUMMARY)

        def score(results: Sequence[Any]) -> float:
            del results
            self._best = self.take_baselines()
            self._entered.append(self._best[0])
            self._first = self.iterations() + 1
            return self._best[1]

        return (), lambda _: self.baselines(), score

    def begin(self, number: int, version: int) -> Proposal:
        """Copy the example with what is committed."""
        work = Work(self._first + self._begun)
        self._begun += 1
        if not self.lockstep:
            work.copy = make_copy(self.example.path, self.logs, self.jobs_folder)
            work.more = _others_at_work(work.copy)
        return Proposal(number, version, work)

    def begin_again(self, proposal: Proposal, version: int) -> None:
        """Copy it anew, with the stale candidates in a folder of their own."""
        work: Work = proposal.content
        work.copy = make_copy(self.example.path, self.logs, self.jobs_folder)
        for candidate in work.candidates:
            for name, data in candidate.files.items():
                path = work.copy.logs / STALE / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        entered = ", ".join(self._entered[proposal.version :])
        work.more = REBASE.format(place=work.copy.logs / STALE, entered=entered) + _others_at_work(work.copy)
        work.candidates = []
        proposal.version, proposal.artifact, proposal.feedback, proposal.refused = version, {}, "", ""

    def carried(self, proposal: Proposal) -> Carried:
        """What the session's candidates have changed of what was best, on what is best now."""
        base, best = map(self.module_of, (self._entered[proposal.version - 1], self._best[0]))
        return carried_agents(self.module.AGENTS_DIR, proposal.content.valid, base, best)

    def carry(self, proposal: Proposal, version: int, carried: Carried) -> None:
        """Let them go on as that."""
        carry_agents(proposal.content.valid, carried.files, self.module_of(self._best[0]))
        proposal.version = version
        self._show(proposal)

    def about(self, proposal: Proposal) -> list[dict[str, Any]]:
        """A session, by its iteration and the idea that it wrote down; or its candidates, each with its hypothesis."""
        work: Work = proposal.content
        base = self._entered[proposal.version - 1]
        if not work.candidates:
            idea = "" if work.copy is None else idea_in(work.copy.logs / IDEA)
            return [{"name": f"iteration {work.iteration}", "made_from": base, "idea": idea}]
        return [
            {
                "name": each.name,
                "made_from": each.made_of or base,
                "idea": str(each.told.get("hypothesis") or each.told.get("name"))[:LONGEST_IDEA],
                "read": [str(self.module.AGENTS_DIR / name) for name in sorted(each.files)],
                "score": each.score,
                "problem": each.problem,
            }
            for each in work.candidates
        ]

    def show(self, proposal: Proposal, others: bytes) -> None:
        """Write it beside the logs in the session's copy."""
        work: Work = proposal.content
        if work.copy is not None:
            work.copy.put_log(FILE, others)

    def propose_seconds(self, proposal: Proposal) -> float:
        """An example runs in real time."""
        del proposal
        return 0.0

    def propose(self, proposal: Proposal) -> None:
        """Run the proposer, in place in lockstep, else in its copy."""
        work: Work = proposal.content
        began = time.monotonic()
        try:
            candidates = self._propose_in_place(work) if work.copy is None else self._propose_in_copy(work, work.copy)
        finally:
            if work.copy is not None:
                work.copy.remove()
            work.propose_seconds += time.monotonic() - began
        if not candidates:
            proposal.refused = "the proposer returned no candidates"
            return
        work.candidates = candidates
        self._show(proposal)
        said = (f"{each.name}: {each.told.get('hypothesis', '')}" for each in candidates)
        proposal.feedback = without_secrets("\n".join(said))

    @staticmethod
    def _show(proposal: Proposal) -> None:
        """What policies and records see."""
        proposal.artifact = {
            f"agents/{name}": without_secrets(data.decode("utf-8", "replace"))[:LONGEST_FILE]
            for each in proposal.content.candidates
            for name, data in each.files.items()
        }

    def _propose_in_place(self, work: Work) -> list[Candidate]:
        module = self.module
        prompt = module.render_task_prompt(work.iteration, self.counted())
        if module.PENDING_EVAL.exists():
            module.PENDING_EVAL.unlink()
        if not module.propose_claude(prompt, work.iteration, timeout=self.args.propose_timeout):
            return []
        told = json.loads(module.PENDING_EVAL.read_text()).get("candidates", [])
        return [Candidate(self.renamed(each, ""), each["name"]) for each in told]

    def _propose_in_copy(self, work: Work, copy: PrivateCopy) -> list[Candidate]:
        jobs = None if self.jobs_folder is None else str(self.jobs_folder.relative_to(self.example.path))
        told = {
            "logs": str(self.logs.relative_to(self.example.path)),
            "jobs": jobs,
            "iteration": work.iteration,
            "counted": self.counted(),
            "timeout": self.args.propose_timeout,
            "more": work.more,
        }
        program = "flashevolve_plugins.adapters.meta_harness.proposer_session"
        environment = dict(os.environ)
        if (self.example.path / ".venv").is_dir():
            environment.setdefault("UV_PROJECT_ENVIRONMENT", str(self.example.path / ".venv"))
        code = run_command(
            [sys.executable, "-m", program, str(copy.example), json.dumps(told)],
            cwd=copy.example,
            timeout=self.args.propose_timeout + PATIENCE,
            log=self.logs / "flashevolve_sessions" / f"iteration{work.iteration}.log",
            environment=environment,
        )
        copy.keep_sessions(self.logs / "claude_sessions")
        if code == TIMED_OUT or code < 0:
            return []
        return self._take_in(work, copy) if code == 0 else []

    def _take_in(self, work: Work, copy: PrivateCopy) -> list[Candidate]:
        changed, named, taken = copy.changed(), copy.pending(), []
        stems = [self.stem(told) for told in named]
        for told, stem in zip(named, stems, strict=True):
            if stem is None:
                taken.append(Candidate(dict(told), str(told.get("name")), problem="its name is no module's"))
                continue
            files = belonging(changed, stem)
            published = self._publisher.name(work.iteration, stem)
            candidate = Candidate(self.renamed(told, published), published, published)
            candidate.name, candidate.files = str(candidate.told["name"]), renamed(files, stem, published)
            base = told.get("base_system")
            candidate.made_of = base if isinstance(base, str) and belonging(copy.before, base) else ""
            candidate.problem = "" if files else f"the session has written no agents/{stem}.py"
            taken.append(candidate)
        work.helpers = helpers(changed, copy.before, [stem for stem in stems if stem])
        return taken

    def checks(self, proposal: Proposal) -> Sequence[Job]:
        """Import checks and smoke tests, one job for each candidate."""
        work: Work = proposal.content
        return [Job(partial(self._check, work, each)) for each in work.valid]

    def _check(self, work: Work, candidate: Candidate) -> bool:
        work.began = work.began or time.monotonic()
        if not self.lockstep:
            other = self._publisher.publish(candidate.files, work.helpers)
            if other:
                candidate.problem = f"its helper agents/{other} is another session's"
                return False
        if not self.check(candidate):
            candidate.problem = "it failed the host's checks"
            return False
        return True

    def jobs(self, proposal: Proposal, checked: Sequence[Any]) -> Sequence[Job]:
        """The jobs of all that passed."""
        del checked
        return [job for each in proposal.content.valid for job in self.evaluation(each)]

    def commit(self, proposal: Proposal, results: Sequence[Any]) -> Ending:
        """Write an iteration down."""
        work: Work = proposal.content
        if proposal.refused:
            return Ending(Terminal.REJECTED, proposal.refused, broken=True)
        if not work.valid:
            self.write_failed(work)
            told = "; ".join(f"{each.name}: {each.problem}" for each in work.candidates)
            return Ending(Terminal.REJECTED, told, broken=True)
        scores = self.write(work, results)
        for each in work.valid:
            each.score = scores.get(each.name)
        name = max(scores, key=lambda each: scores[each], default=None)
        if name is None:
            return Ending(Terminal.REJECTED, "its evaluation gave no whole result", broken=True)
        if scores[name] <= self._best[1]:
            told = f"{name}: {scores[name]:g} is not better than {self._best[0]}'s {self._best[1]:g}"
            return Ending(Terminal.REJECTED, told)
        self._best = (name, scores[name])
        self._entered.append(name)
        return Ending(Terminal.COMMITTED, score=scores[name])

    def end(self, proposal: Proposal, terminal: Terminal, reason: str) -> None:
        """Write down that an iteration came to nothing; lockstep writes what the host writes."""
        work: Work = proposal.content
        if work.copy is not None:
            work.copy.remove()
        if self.lockstep or terminal is Terminal.CANCELLED:
            return
        names: list[str | None] = [each.name for each in work.candidates] or [None]
        rows = [
            {"iteration": work.iteration, self.label: name, "outcome": f"{terminal.value}: {reason}"} for name in names
        ]
        with self.appending():
            for row in rows:
                with self.module.EVOLUTION_SUMMARY.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")

    @contextmanager
    def appending(self) -> Iterator[None]:
        """Let the host write its summary into a copy that takes the summary's place whole."""
        with _replaced(self.module, "EVOLUTION_SUMMARY"):
            yield

    @contextmanager
    def changing_frontier(self) -> Iterator[None]:
        """Let the host write its frontier into a copy that takes the frontier's place whole."""
        with _replaced(self.module, "FRONTIER_VAL"):
            yield

    @staticmethod
    def seconds_since(work: Work) -> float:
        """Seconds since an iteration's checks began."""
        return time.monotonic() - work.began if work.began else 0.0

    def run_job(self, command: Sequence[str], log: Path, timeout: float, **variables: str) -> int:
        """Run one job's command, at the example. Runs in a slot."""
        environment = {**os.environ, **variables}
        return run_command(command, cwd=self.example.path, timeout=timeout, log=log, environment=environment)

    def last(self) -> Sequence[Job]:
        """What the host does at the end."""
        return ()

    def take_last(self, results: Sequence[Any]) -> None:  # noqa: B027 - a layout may have nothing to add
        """Nothing more."""

    def close(self, *, whole: bool) -> None:
        """What was not committed is not kept."""
        del whole
        shutil.rmtree(self.staging, ignore_errors=True)
        with suppress(OSError):
            write_json_whole(self.logs / "flashevolve_best.json", {"name": self._best[0], "score": self._best[1]})

    def result(self) -> Any:
        """The host's function returns nothing."""
        return None


def _others_at_work(copy: PrivateCopy) -> str:
    return "\n\n## Others at work\n" + told_of_others(copy.logs / FILE, copy.logs / IDEA)


@contextmanager
def _replaced(module: Any, name: str) -> Iterator[None]:
    """Let a path of a module's name a copy of its file, which takes the file's place if all goes well."""
    path: Path = getattr(module, name)
    new = path.with_name(f".{path.name}.new")
    if path.exists():
        shutil.copyfile(path, new)
    setattr(module, name, new)
    try:
        yield
        if new.exists():
            new.replace(path)
    finally:
        setattr(module, name, path)
        new.unlink(missing_ok=True)


def _end_line(path: Path) -> None:
    """What was cut off as it was written gets a line of its own."""
    with suppress(OSError):
        data = path.read_bytes()
        if data and not data.endswith(b"\n"):
            with path.open("ab") as file:
                file.write(b"\n")
