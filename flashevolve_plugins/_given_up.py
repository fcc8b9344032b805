"""Items that ended because one of their samples never got an answer, though its server answered others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashevolve_plugins._errors import BackendError
from flashevolve_plugins._failures import KEPT
from flashevolve_plugins._model import Terminal

if TYPE_CHECKING:
    from flashevolve_plugins._failures import Failure

GIVEN_UP = "{} never got an answer ({})"
MOST_IN_A_ROW = 10
_OWN_ENDS = {Terminal.COMMITTED, Terminal.REJECTED}


class GivenUp:
    """Counts such items since one ended by its own doing."""

    def __init__(self) -> None:
        self._count = 0
        self._last: Failure | None = None

    def ended(self, terminal: Terminal, gone: Failure | None) -> None:
        """An item has ended."""
        if gone is not None and terminal is Terminal.FAILED:
            self._count, self._last = self._count + 1, gone
        elif terminal in _OWN_ENDS:
            self._count = 0

    def require_fewer(self) -> None:
        """End a run in which nothing gets through.

        Raises:
            BackendError: too many in a row.
        """
        if self._count >= MOST_IN_A_ROW and self._last is not None:
            raise BackendError(
                f"{self._count} proposals in a row never got an answer, the last one with {self._last.message}: "
                f"see to the server; {KEPT}."
            )


def given_up(stage: str, gone: Failure) -> BackendError:
    """What ends a run that cannot go on without a stage."""
    return BackendError(f"A call of {stage} never got an answer ({gone.message}): see to the server; {KEPT}.")
