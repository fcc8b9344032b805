"""What sessions are shown of each other: ideas, candidates without a score yet, and what came of others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flashevolve_plugins.adapters.meta_harness.texts import json_of, without_secrets

if TYPE_CHECKING:
    from pathlib import Path

    from flashevolve_plugins.adapters.meta_harness.host import HarnessHost, Proposal

FILE = "under_way.json"  # what a session reads
IDEA = "idea.md"  # where it says what it is about to try
LONGEST_IDEA = 2000  # characters
TOLD = (
    "Other sessions work on this at the same time. {file} says what they are trying, what was proposed and has no "
    "score yet, and what was evaluated since you began; it changes while you work. Choose an idea that is not in it, "
    "write yours in a sentence or two to {idea} as soon as you have chosen it, and before you end read the file again: "
    "take in what has gained since, and leave out what has lost."
)


def told_of_others(file: Path | str, idea: Path | str) -> str:
    """What a proposer is told of both files."""
    return TOLD.format(file=file, idea=idea)


def idea_in(path: Path) -> str:
    """What a session has written of its idea so far."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(LONGEST_IDEA).strip()
    except OSError:
        return ""


class UnderWay:
    """Keeps what the sessions of a run are shown of each other. All on the caller's thread.

    Args:
        host: the run.
        proposals: those under way, by the numbers of their items.
    """

    def __init__(self, host: HarnessHost, proposals: dict[int, Proposal]) -> None:
        self._host, self._proposals = host, proposals
        self._began: dict[int, int] = {}  # proposal in a session -> what was evaluated before
        self._evaluated: list[dict[str, Any]] = []

    def begun(self, proposal: Proposal) -> None:
        """A session begins."""
        self._began[proposal.number] = len(self._evaluated)
        self._show()

    def made(self, proposal: Proposal) -> None:
        """Its session is over, and its checks come."""
        self._began.pop(proposal.number, None)
        self._show()

    def over(self, proposal: Proposal, *, evaluated: bool) -> None:
        """It has ended; ``evaluated`` says that the host has written down what it came to."""
        self._began.pop(proposal.number, None)
        if evaluated:
            self._evaluated += self._host.about(proposal)
        self._show()

    def _show(self) -> None:
        """Bring every session's file up to date."""
        about = {number: self._host.about(each) for number, each in self._proposals.items()}
        proposed = [each for number, of in about.items() if number not in self._began for each in of]
        for number, since in self._began.items():
            others = [each for other in self._began if other != number for each in about[other]]
            shown = {"sessions": others, "proposed": proposed, "evaluated_since": self._evaluated[since:]}
            self._host.show(self._proposals[number], without_secrets(json_of(shown).decode()).encode())
