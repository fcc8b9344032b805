"""What the three hosts have in common: turns, calls of their roles, and a playbook that operations are applied to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from flashevolve_plugins._errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    from flashevolve_plugins.adapters.ace.entries import Entries

TASK, REFLECTION, LOCAL = "task", "reflection", "local"
GENERATE, FEEDBACK, REFLECT, CURATE, APPLY = "generate", "feedback", "reflect", "curate", "apply"
HOLD, EMBED = "hold", "embed"


@dataclass(frozen=True)
class Turn:
    """One training sample in one epoch.

    Args:
        number: its place in the run, counted from 0 in the host's order.
        epoch: counted from 1.
        step: its place in the epoch, counted from 1.
        sample: the host's sample.
    """

    number: int
    epoch: int
    step: int
    sample: Any


def turns_of(samples: Sequence[Any], epochs: int) -> list[Turn]:
    """The turns of a run in the host's order: every sample in every epoch."""
    return [
        Turn(epoch * len(samples) + index, epoch + 1, index + 1, sample)
        for epoch in range(epochs)
        for index, sample in enumerate(samples)
    ]


@dataclass(frozen=True)
class Call:
    """One call of a role, or of a user's function.

    Args:
        stage: the name of its stage.
        function: the call; it is given the playbook as it is when the call begins, and must not change it.
        resource: whose slot it takes.
        seconds: virtual seconds it takes; only virtual drivers read it.
        cost: metric calls that it stands for.
        reads: whether what it says depends on the playbook.
    """

    stage: str
    function: Callable[[Any], Any]
    resource: str = TASK
    seconds: Callable[[], float] | None = None
    cost: int = 0
    reads: bool = True


def require_own_steps(ace: Any, kind: type, *names: str) -> None:
    """Refuse an object whose class does these steps in its own way: flash does them in its place.

    Args:
        ace: the user's object.
        kind: the host's class.
        names: of the methods.

    Raises:
        UsageError: its class has another method of that name.
    """
    for name in names:
        if getattr(type(ace), name, None) is not getattr(kind, name, None):
            raise UsageError(
                f"{type(ace).__name__}.{name} is not the host's own, and flash would not call it: put what it does "
                "into the roles, or run it with executor=None."
            )


#: A host's steps, one call after the other: each yields a call and is sent its result.
Calls: TypeAlias = "Generator[Call, Any, Any]"


@dataclass
class Lesson:
    """What one turn has taught, until it is in the playbook and the host was told.

    Args:
        turn: the turn.
        insight: what the reflector said, as text; for records and policies.
        content: what the curator needs of it; the host's own.
        told: what the host keeps of the turn once it is applied; the host's own.
        curated: whether the curator is asked because of it; a lesson of counters alone does not wait for others.
    """

    turn: Turn
    insight: str
    content: Any
    told: Any = None
    curated: bool = True


@dataclass(frozen=True)
class Delta:
    """What a curator wants changed.

    Args:
        operations: the host's operations, in order.
        counters: what the host counts besides, whatever becomes of the operations.
    """

    operations: Sequence[Any] = ()
    counters: Any = None


@dataclass(frozen=True)
class View:
    """A playbook at one pool version. Nobody changes it.

    Args:
        version: the pool version.
        playbook: what the host's roles are given.
        entries: entry id to its text.
    """

    version: int
    playbook: Any
    entries: Entries


@dataclass(frozen=True)
class Extra:
    """Calls beside the turns, which change no playbook: a validation, a generation for metrics only.

    Args:
        name: what it is, for its record.
        calls: its calls, all at once; each runs whatever the others do.
        finish: is given their results, in order, an exception where one raised. Runs on the caller's thread.
    """

    name: str
    calls: Sequence[Call]
    finish: Callable[[list[Any]], None]


class PlaybookHost(Protocol):
    """One run of a host. Every method runs on the thread that called the host.

    :meth:`apply` changes all that it should, or raises and has changed nothing, but in lockstep.
    """

    #: For messages and records.
    name: str
    turns: Sequence[Turn]
    #: What else must be the same for a run to be taken up.
    options: Mapping[str, Any]
    #: Base URLs of its models' servers, as far as they are known.
    urls: Sequence[str]
    #: Whether its models may be called from several threads at once.
    concurrent: bool
    #: Whether reflector and curator use another model than the generator.
    reflects_elsewhere: bool
    #: Whether an error of a turn ends the host's own run.
    raises: bool
    #: Whether a turn that failed is in what it dumps; else a resume tries it again.
    keeps_failures: bool

    def ask(self, prompt: str) -> str:
        """One call of the model that the host reflects with. May run on any thread."""
        ...

    def view(self) -> Any:
        """The playbook for its roles, which nobody will change."""
        ...

    def entries(self) -> dict[str, str]:
        """Entry id to text, of the live playbook."""
        ...

    def learn(self, turn: Turn) -> Calls:
        """From a sample to a :class:`Lesson`."""
        ...

    def curate(self, lessons: Sequence[Lesson]) -> Calls:
        """From lessons to a :class:`Delta`."""
        ...

    def target(self, operation: Any) -> str | None:
        """The entry that an operation changes or removes, if any."""
        ...

    def text(self, operation: Any) -> str:
        """What its entry says after such an operation; empty if that is removed."""
        ...

    def changing(self, entry: str, text: str) -> Any:
        """The operation that gives an entry this text; one that removes it if that is empty."""
        ...

    def apply(self, lessons: Sequence[Lesson], delta: Delta) -> bool:
        """Change the live playbook, and keep in each lesson what the host is told. Whether anything changed."""
        ...

    def tell(self, lesson: Lesson) -> None:
        """A turn is applied: histories, files. Calls nothing of the user's."""
        ...

    def call_back(self, lesson: Lesson) -> None:
        """Call what the user has given to be called after each turn."""
        ...

    def failed(self, turn: Turn, error: BaseException | None, reason: str) -> None:
        """A turn has given nothing."""
        ...

    def extras(self) -> Iterable[Extra]:
        """What is due beside the turns, each once."""
        ...

    def may_begin(self, turn: Turn) -> bool:
        """Whether the host lets a turn begin while turns before it are under way."""
        ...

    def dump(self) -> dict[str, Any]:
        """The playbook and all that was told, for JSON."""
        ...

    def load(self, state: dict[str, Any]) -> None:
        """Take up what :meth:`dump` gave."""
        ...

    def finish(self) -> Any:
        """All turns are over: what the host's function returns."""
        ...
