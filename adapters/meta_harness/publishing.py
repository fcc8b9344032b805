"""Gives what sessions have written a place among the example's agents, each under a name that nobody has."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from flashevolve_plugins._whole_file import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path


T = TypeVar("T", bound="bytes | None")


@dataclass
class Candidate:
    """One candidate of a session.

    Args:
        told: what the host is told of it: what the proposer said, with the names under which it is published.
        name: its name in the host's records.
        stem: its module's name, under which it is published; empty where it has none.
        made_of: what the proposer says it is made of, a module's name; empty where it says nothing.
        files: its files below the folder of agents.
        problem: why it is not tried; empty while it may be.
        score: its score, once it was evaluated whole.
    """

    told: dict[str, Any]
    name: str
    stem: str = ""
    made_of: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)
    problem: str = ""
    score: float | None = None


class Publisher:
    """Writes agents' files.

    Args:
        agents: the folder of agents.
        taken: whether a name has results of an earlier candidate.
    """

    def __init__(self, agents: Path, taken: Callable[[str], bool]) -> None:
        self._agents, self._taken = agents, taken
        self._names: set[str] = set()
        self._lock = threading.Lock()

    def name(self, iteration: int, said: str) -> str:
        """A name that no other candidate has or had, made from the proposer's."""
        with self._lock:
            name, number = f"p{iteration}_{said}", 1
            while name in self._names or self._there(name) or self._taken(name):
                number += 1
                name = f"p{iteration}_{said}_{number}"
            self._names.add(name)
            return name

    def _there(self, name: str) -> bool:
        return (self._agents / f"{name}.py").exists() or (self._agents / name).exists()

    def publish(self, files: Mapping[str, bytes], shared: Mapping[str, bytes]) -> str:
        """Write an agent's files, each whole.

        Args:
            files: the agent's own, in the place of what they were before.
            shared: what it may import, and others as well.

        Returns:
            The shared one that another session has written otherwise, for which nothing is written; else nothing.
        """
        with self._lock:
            for name, data in shared.items():
                path = self._agents / name
                if path.exists() and path.read_bytes() != data:
                    return name
            for name, data in {**shared, **files}.items():
                write_whole(self._agents / name, data)
        return ""


def belonging(files: Mapping[str, T], stem: str) -> dict[str, T]:
    """The files of one agent: its module, or its package."""
    return {name: data for name, data in files.items() if name == f"{stem}.py" or name.startswith(f"{stem}/")}


def renamed(files: Mapping[str, T], stem: str, name: str) -> dict[str, T]:
    """An agent's files under another name."""
    return {name + path[len(stem) :]: data for path, data in files.items()}


def helpers(changed: Mapping[str, bytes], before: Iterable[str], stems: Iterable[str]) -> dict[str, bytes]:
    """New files that belong to no candidate: what candidates may import."""
    own = {name for stem in stems for name in belonging(changed, stem)}
    known = set(before)
    return {name: data for name, data in changed.items() if name not in own and name not in known}
