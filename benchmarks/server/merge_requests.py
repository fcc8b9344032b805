"""Merge and verdict requests: what their prompts show, and the simulated model's answers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from flashevolve_plugins.hooks.prompts import CHANGE_TITLE, CURRENT_TITLE, MERGE_TASK, VERDICT_TASK, split_fenced

if TYPE_CHECKING:
    from typing import TypeAlias

    from flashevolve_plugins.benchmarks.landscape import Landscape
    from flashevolve_plugins.benchmarks.playbook_landscape import PlaybookLandscape

    Merging: TypeAlias = Landscape | PlaybookLandscape

__all__ = ["merge_reply"]

_FENCE = re.compile(r"^`{4,}$", re.MULTILINE)


def merge_reply(landscape: Merging, prompt: str, luck: int) -> str | None:
    """Answer a merge or verdict prompt of ours; None for every other prompt.

    A merge loses what the landscape says. A proposal is patched onto the current texts, or discarded if they already
    state what it adds and lack what it drops.

    Args:
        landscape: decides what a merge keeps.
        prompt: text of the request's last message.
        luck: seed of this answer.
    """
    if not prompt.startswith((MERGE_TASK, VERDICT_TASK)) or not (fence := _FENCE.search(prompt)):
        return None
    mark = fence.group()
    sections, _ = split_fenced(prompt, mark)
    names = [title[len(CURRENT_TITLE) :].strip() for title, _ in sections if title.startswith(CURRENT_TITLE)]
    current = [text for title, text in sections if title.startswith(CURRENT_TITLE)]
    changes = [_sides(text) for title, text in sections if title.startswith(CHANGE_TITLE)]
    if prompt.startswith(MERGE_TASK):
        return f"{mark}\n{landscape.merge(current[0], changes, luck)}\n{mark}"
    if not any(_brings_news(landscape, text, change) for text, change in zip(current, changes, strict=True)):
        return "VERDICT: discard\nREASON: The current texts already state what the proposal states."
    lines = ["VERDICT: patch", "REASON: What the proposal states is carried onto the current texts."]
    for place, (name, text, change) in enumerate(zip(names, current, changes, strict=True)):
        lines += [f"COMPONENT: {name}", mark, landscape.merge(text, [change], luck + place), mark]
    return "\n".join(lines)


def _sides(diff: str) -> tuple[str, str]:
    """Return the lines before and the lines after that a diff shows."""
    lines = diff.split("\n")
    before, after = ([line[1:] for line in lines if line[:1] in {sign, " "}] for sign in "-+")
    return "\n".join(before), "\n".join(after)


def _brings_news(landscape: Merging, current: str, change: tuple[str, str]) -> bool:
    """Return whether a change adds a statement that the current text lacks, or drops one that it has."""
    now, before, after = (landscape.stated(text) for text in (current, *change))
    return bool((after - before) - now or (before - after) & now)
