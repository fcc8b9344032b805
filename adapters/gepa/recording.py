"""What an item did, step by step, so that the host's own code can be run over it once the item has ended."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from flashevolve_plugins._model import Discarded, Outcome, Terminal

if TYPE_CHECKING:
    from flashevolve_plugins._bodies import Body


def recorded(body: Body, recording: Recording) -> Body:
    """A body whose end, whatever it is, is kept in its recording, and whose payload is the recording."""
    try:
        outcome = yield from body
    except Discarded as why:
        recording.end = why
        outcome = Outcome(why.terminal, why.reason)
    except Exception as error:  # noqa: BLE001 - the host's loop raises or logs it when it comes to this item
        recording.end = error
        outcome = Outcome(Terminal.FAILED, f"{type(error).__name__}: {error}")
    return replace(outcome, payload=recording)


class EndOfRecording(BaseException):
    """Raised where the host's code asks for a step that never happened. Passes the host's ``except Exception``.

    Args:
        cause: why the item got no further.
    """

    def __init__(self, cause: BaseException | None) -> None:
        self.cause = cause
        super().__init__(cause)

    def reraise(self) -> NoReturn:
        """Raise the cause as it was raised, with its own cause."""
        error = self.cause or self
        raise error from error.__cause__


class Recording:
    """The steps of one item, each a queue under the name of what the host calls."""

    def __init__(self) -> None:
        #: Whether the item is one of the host's merges.
        self.merge = False
        self.tasks: list[Any] = []
        #: Every parent of what it proposes, where that is not the task's alone.
        self.parents: list[int] = []
        #: Evaluations that :meth:`restart` forgot; they were paid for.
        self.forgotten: list[Any] = []
        #: The item whose provisional artifact the tasks mutate, if they do.
        self.made_from: int | None = None
        self.end: BaseException | None = None
        self._steps: defaultdict[str, deque[Any]] = defaultdict(deque)

    def restart(self) -> None:
        """Forget every step, but not that the item began with looking for a merge."""
        kept = self._steps["replay"]
        self.forgotten.extend(self._steps["evaluated"])
        self._steps = defaultdict(deque, {"replay": kept})

    def put(self, step: str, value: Any) -> None:
        """Record a step's value; an exception is raised when it is taken."""
        self._steps[step].append(value)

    def has(self, step: str) -> bool:
        """Whether a value of that step waits."""
        return bool(self._steps[step])

    def take(self, step: str) -> Any:
        """The step's next value.

        Raises:
            EndOfRecording: the item ended before that step.
            Exception: what was recorded, if it was one.
        """
        if not self._steps[step]:
            raise EndOfRecording(self.end)
        value = self._steps[step].popleft()
        if isinstance(value, Exception):
            raise value
        return value
