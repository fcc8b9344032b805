"""Skillbooks of ``ace-framework``: copies to read, and operations that fit a skillbook that has changed since."""

from __future__ import annotations

from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

COUNTERS = ("helpful", "harmful", "neutral")


def copy_of(book: Any) -> Any:
    """A skillbook that changes alone. It shares the embeddings: the host puts new ones, and changes none in place."""
    new = copy(book)
    new._skills = {name: copy(skill) for name, skill in book._skills.items()}
    new._sections = {section: list(names) for section, names in book._sections.items()}
    new._similarity_decisions = dict(book._similarity_decisions)
    return new


def entries(book: Any) -> dict[str, str]:
    """Id to content, of what is not deleted."""
    return {skill.id: skill.content for skill in book.skills()}


def state(book: Any) -> Any:
    """What a delta can change, to be compared."""
    skills = [
        (skill.id, skill.section, skill.content, skill.helpful, skill.harmful, skill.neutral, skill.status)
        for skill in book.skills(include_invalid=True)
    ]
    return skills, dict(book._similarity_decisions)


def tag(book: Any, reflection: Any) -> None:
    """Count a reflection's tags, as the host does."""
    for each in reflection.skill_tags:
        with suppress(ValueError):
            book.tag_skill(each.id, each.tag)


def keep_embeddings(book: Any, live: Any) -> None:
    """What a copy's skills were embedded as, for the live ones that say the same."""
    for skill in book.skills():
        mine = live.get_skill(skill.id)
        if mine is not None and mine.embedding is None and mine.content == skill.content:
            mine.embedding = skill.embedding


def counted(operations: Sequence[Any], book: Any) -> Iterator[Any]:
    """Operations whose counters are increments: an UPDATE sets them, and would undo what was counted meanwhile.

    Args:
        operations: what the curator wants.
        book: the copy that it read; changes.
    """
    for each in operations:
        kind, skill = each.type.upper(), book.get_skill(each.skill_id)
        if kind == "UPDATE" and skill is not None:
            numbers = {name: value for name, value in each.metadata.items() if name in COUNTERS}
            more = {name: value - getattr(skill, name) for name, value in numbers.items()}
            rest = {name: value for name, value in each.metadata.items() if name not in COUNTERS}
            book.update_skill(skill.id, metadata=numbers)
            yield replace(each, metadata=rest)
            if any(more.values()):
                yield replace(each, type="TAG", content=None, metadata=more)
        else:
            if kind == "TAG":
                book._apply_operation(each)
            yield each


def numbered(operation: Any, book: Any) -> Any:
    """An ADD under an id that is free. One that is taken, by the curator or by counting on, would lose its skill."""
    if operation.type.upper() != "ADD":
        return operation
    name = book._generate_id(operation.section)
    while name in book._skills:
        name = book._generate_id(operation.section)
    return replace(operation, skill_id=name)


def consolidations(manager: Any, output: Any, view: Any) -> list[Consolidation]:
    """What a skill manager that deduplicates has made of its copy, to be made of the live skillbook.

    Args:
        manager: its ``DeduplicationManager``, if it has one.
        output: what it said.
        view: the skillbook that it read.
    """
    wanted = getattr(output, "consolidation_operations", None)
    if manager is None or not wanted:
        return []
    read = entries(view)
    operations = manager.parse_consolidation_operations({"consolidation_operations": wanted})
    return [Consolidation(each, read) for each in operations]


@dataclass(frozen=True)
class Consolidation:
    """An operation of the host's deduplication, to be made on the live skillbook.

    Args:
        operation: the host's.
        read: the entries that the curator read.
    """

    operation: Any
    read: Mapping[str, str]

    def target(self, now: Mapping[str, str]) -> str | None:
        """An entry that it changes or removes, or relies on: one that has changed since, if there is one."""
        operation = self.operation
        names: list[str]
        match operation.type:
            case "KEEP":
                return None
            case "MERGE":
                names = [operation.keep_id, *operation.source_ids]
            case "DELETE":  # it does not say which other entry makes this one redundant: that may be gone
                names = [operation.skill_id, *(name for name in self.read if name not in now)]
            case _:
                names = [operation.skill_id]
        return next((name for name in names if now.get(name) != self.read.get(name)), names[0])

    def text(self, now: Mapping[str, str]) -> str:
        """What :meth:`target` says after it."""
        operation, target = self.operation, self.target(now)
        if operation.type == "MERGE" and target == operation.keep_id:
            return str(operation.merged_content or now.get(operation.keep_id, ""))
        return str(operation.new_content) if operation.type == "UPDATE" else ""

    def apply(self, manager: Any, book: Any) -> None:
        """Make it, but merge only what is there: the counters of what is gone are counted, and nothing joins it."""
        operation, now = self.operation, entries(book)
        if operation.type == "MERGE":
            if operation.keep_id not in now:
                return
            operation = replace(operation, source_ids=[name for name in operation.source_ids if name in now])
        manager.apply_operations([operation], book)
