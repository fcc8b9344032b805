"""Carries what a candidate has changed onto another version of the same files, by git's three-way merge of texts."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

SECONDS = 20.0  # for one file


@dataclass(frozen=True)
class Carried:
    """What a change is on what is best now.

    Args:
        files: path to content, of each file that differs from what is best now; ``None`` for one that is gone.
        conflict: why the change cannot be carried; empty where it can.
    """

    files: Mapping[str, bytes | None] = field(default_factory=dict)
    conflict: str = ""


def carry(base: Mapping[str, bytes], theirs: Mapping[str, bytes], ours: Mapping[str, bytes]) -> Carried:
    """Carry a candidate's change onto what is best now.

    Two changes of one place are a conflict, also where both only add lines: in code the order of lines counts.

    Args:
        base: path to content, of what the candidate was made from.
        theirs: the same of the candidate.
        ours: the same of what is best now.

    Returns:
        The files to change; or the first conflict.
    """
    files: dict[str, bytes | None] = {}
    for name in sorted(base.keys() | theirs.keys()):
        before, after, now = base.get(name), theirs.get(name), ours.get(name)
        if after in (before, now) or _is_compiled(name):
            continue
        if now == before:
            files[name] = after
            continue
        try:
            merged = None if before is None or after is None or now is None else merge_texts(before, after, now)
        except FileNotFoundError:
            return Carried(conflict="there is no git here, which merges texts")
        if merged is None:
            return Carried(conflict=f"{name} was changed in the same place")
        if merged != now:
            files[name] = merged
    return Carried(files)


def _is_compiled(name: str) -> bool:
    return name.endswith(".pyc") or "__pycache__" in name.split("/")


def merge_texts(base: bytes, theirs: bytes, ours: bytes) -> bytes | None:
    """What both sides made of a text.

    Args:
        base: what both were made from.
        theirs: what one side made of it.
        ours: what the other side made of it.

    Returns:
        The text with both changes; ``None`` where they meet, and where it is no text.

    Raises:
        FileNotFoundError: there is no git.
    """
    with tempfile.TemporaryDirectory(prefix="flashevolve-") as folder:
        paths = [Path(folder, name) for name in ("ours", "base", "theirs")]
        for path, data in zip(paths, (ours, base, theirs), strict=True):
            path.write_bytes(data)
        command = ["git", "merge-file", "--stdout", "--quiet", *map(str, paths)]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, timeout=SECONDS, check=False)  # noqa: S603 - files alone are the candidate's
        except subprocess.TimeoutExpired:
            return None
    return done.stdout if done.returncode == 0 else None
