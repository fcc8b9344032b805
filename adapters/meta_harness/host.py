"""What the hosts have in common: proposals that are made, checked and evaluated, and one writer that commits them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from flashevolve_plugins._model import Terminal
    from flashevolve_plugins.adapters.meta_harness.three_way import Carried

PROPOSE, CHECK, EVALUATE, TEST = "propose", "check", "evaluate", "test"
PROPOSER, EVALUATOR = "proposer", "evaluator"


@dataclass(frozen=True)
class Job:
    """A piece of a check or of an evaluation that runs alone: a dataset with a seed, a task's trial.

    Args:
        call: what runs in a slot.
        seconds: virtual seconds it takes; only virtual drivers read it.
        key: what its result is the result of, where it is kept for a run that is taken up.
        name: what it is a piece of, the same for every candidate: a task's trial. Jobs that have none are not compared.
    """

    call: Callable[[], Any]
    seconds: Callable[[], float] | None = None
    key: bytes | None = None
    name: Any = None


@dataclass(frozen=True)
class Ran:
    """What a job's command came to.

    Args:
        ok: whether it has left a result.
        score: the job's own score, where its result says one.
    """

    ok: bool
    score: float | None = None


@dataclass
class Proposal:
    """One proposer's session, and what comes of it.

    Args:
        number: its item's number.
        version: the pool version that the proposer sees.
        content: the host's own.
        artifact: file to its text, of what the session has changed; for policies and records.
        feedback: what the proposer says of it, in a sentence or two.
        refused: why nothing of it is evaluated; empty while something may be.
        scores: its own by the names of its jobs, once it was evaluated; empty where it is several candidates.
    """

    number: int
    version: int
    content: Any
    artifact: Mapping[str, str] = field(default_factory=dict)
    feedback: str = ""
    refused: str = ""
    scores: Mapping[Any, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Ending:
    """What a commit came to.

    Args:
        terminal: committed where something entered the pool, else rejected.
        reason: in the host's words; empty for a commit.
        score: the score with which it entered.
        broken: whether the proposer brought nothing that could be tried; many in a row end a run.
    """

    terminal: Terminal
    reason: str = ""
    score: float = 0.0
    broken: bool = False


class HarnessHost(Protocol):
    """One run of a host. All but :meth:`propose` and the jobs' calls runs on the thread that called the host."""

    #: For messages and records.
    name: str
    #: Proposals in all.
    total: int
    #: Proposers and evaluations at once, where the user gives no number; and what to tell them of it, or nothing.
    proposers: int
    evaluators: int
    advice: str

    def seed(self) -> tuple[Sequence[Job], Callable[[Sequence[Any]], Sequence[Job]], Callable[[Sequence[Any]], float]]:
        """What comes first: its checks, what these lead to, and from the results to the seed's score."""
        ...

    def begin(self, number: int, version: int) -> Proposal:
        """Make a private place for a proposer, with all that was committed so far."""
        ...

    def begin_again(self, proposal: Proposal, version: int) -> None:
        """Make that place anew for a stale proposal, with what entered the pool since and with what it had made."""
        ...

    def carried(self, proposal: Proposal) -> Carried:
        """A stale proposal's change on what is best now. Writes nothing."""
        ...

    def carry(self, proposal: Proposal, version: int, carried: Carried) -> None:
        """Let the proposal go on as that change of what is best now."""
        ...

    def propose(self, proposal: Proposal) -> None:
        """Run the proposer, and fill the proposal in. Runs in a slot."""
        ...

    def about(self, proposal: Proposal) -> list[dict[str, Any]]:
        """What other sessions are told of it, one entry for each candidate, or one for a session that has none yet."""
        ...

    def show(self, proposal: Proposal, others: bytes) -> None:
        """Put what is told of others, in JSON, where the proposal's session reads it."""
        ...

    def propose_seconds(self, proposal: Proposal) -> float:
        """Virtual seconds of :meth:`propose`."""
        ...

    def checks(self, proposal: Proposal) -> Sequence[Job]:
        """Import checks, validations, smoke tests."""
        ...

    def jobs(self, proposal: Proposal, checked: Sequence[Any]) -> Sequence[Job]:
        """The jobs of its evaluation; none where the checks refuse it."""
        ...

    def commit(self, proposal: Proposal, results: Sequence[Any]) -> Ending:
        """Write what it came to into the host's state, each file whole."""
        ...

    def end(self, proposal: Proposal, terminal: Terminal, reason: str) -> None:
        """Write down that it came to nothing: it was discarded, failed or cancelled."""
        ...

    def last(self) -> Sequence[Job]:
        """What the host does once all proposals are over: its held-out tests."""
        ...

    def take_last(self, results: Sequence[Any]) -> None:
        """Write down what :meth:`last` gave, an exception where one raised."""
        ...

    def close(self, *, whole: bool) -> None:
        """Leave the directory as the host's own commands read it, whether the run came to its end or not."""
        ...

    def result(self) -> Any:
        """What the host's function returns."""
        ...


@runtime_checkable
class KeepingHost(HarnessHost, Protocol):
    """A host whose killed or stopped run goes on with what flash keeps of it; others go on with their own directory."""

    #: Proposals that were over before this call, where it takes a run up.
    done: int

    def fingerprint(self) -> dict[str, str]:
        """What must be the same for a run to be taken up, by its name for messages."""
        ...

    def take_up(self, recipes: Mapping[int, Any]) -> Sequence[int]:
        """Read what the host's directory holds.

        Args:
            recipes: of proposals that had not ended, by their numbers in the store.

        Returns:
            The numbers of those that go on.
        """
        ...

    def recipe(self, proposal: Proposal) -> Any:
        """What begins a proposal again where it was, in another process."""
        ...

    def begin_taken_up(self, number: int, version: int, recipe: Any) -> Proposal:
        """Begin it again. It was made before."""
        ...
