"""Requests of ACE's three roles, as ace-playbook words them, and the simulated model's answers."""

from __future__ import annotations

import ast
import json
import random
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from flashevolve_plugins.benchmarks.server.merge_requests import merge_reply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashevolve_plugins.benchmarks.playbook_landscape import PlaybookLandscape
    from flashevolve_plugins.benchmarks.server.chat import Message

__all__ = ["playbook_reply"]

_ROLE = re.compile(r"You are the (Generator|Reflector|Curator)\b")
_ENTRY = re.compile(r"^- \[([^\]\s]+)\] (.*?)(?:  \(helpful=\d+, harmful=\d+\))?$", re.MULTILINE)
_TASK = re.compile(r"QUERY:\n(.*?)\n\n(?:Solve it|GENERATOR REASONING:\n)", re.DOTALL)
_REASONING = re.compile(r"GENERATOR REASONING:\n(.*?)\n\nGENERATOR ANSWER:\n", re.DOTALL)
_RIGHT = re.compile(r"^Correct: True$", re.MULTILINE)
_PRIOR = re.compile(r"^PRIOR INSIGHTS[^\n]*:\n(.*)$", re.MULTILINE)
_INSIGHTS = re.compile(r"^NEW INSIGHTS[^\n]*:\n(.*)$", re.MULTILINE)
_NAMED = "Misleading: "
_MISLEADING = re.compile(rf"^{_NAMED}(.*)$", re.MULTILINE)


class _Entry(NamedTuple):
    name: str
    text: str


def playbook_reply(landscape: PlaybookLandscape, messages: Sequence[Message], luck: int) -> str | None:
    """Answer a request of one of ACE's roles, or of a policy about a playbook; ``None`` for every other request.

    Args:
        landscape: decides what is right and what is learned.
        messages: one or more.
        luck: seed of this answer.
    """
    asked, draw = messages[-1].text, random.Random(luck)
    role = _ROLE.search(messages[0].text)
    if role is None:
        return merge_reply(landscape, asked, luck) if landscape.codes(asked) else None
    if role.group(1) == "Curator":
        return json.dumps(_curate(landscape, asked, draw))
    task = _TASK.search(asked)
    if task is None:
        return None
    entries = [_Entry(*found) for found in _ENTRY.findall(asked[: task.start()])]
    if role.group(1) == "Generator":
        return json.dumps(_generate(landscape, entries, task.group(1), draw))
    return json.dumps(_reflect(landscape, entries, task.group(1), asked[task.end() :], draw))


def _generate(
    landscape: PlaybookLandscape, entries: Sequence[_Entry], question: str, draw: random.Random
) -> dict[str, Any]:
    """Right if every rule that the question needs is kept; entries that were of use are named."""
    kept = landscape.kept([entry.text for entry in entries], question, draw.getrandbits(64))
    right = len(kept) == len(landscape.needed_rules(question))
    answer = landscape.truth(question)
    return {
        "reasoning": f"I applied {', '.join(kept) or 'what seemed plausible'}.",
        "answer": answer if right else f"{float(answer) + draw.randint(1, 999):.2f}",
        "helpful_ids": [entry.name for entry in entries if landscape.advice(entry.text).code in kept],
        "harmful_ids": [],
    }


def _reflect(
    landscape: PlaybookLandscape, entries: Sequence[_Entry], question: str, rest: str, draw: random.Random
) -> dict[str, Any]:
    """One insight at most: a rule that was missed, or something worse."""
    right = _RIGHT.search(rest) is not None
    reasoning = _REASONING.search(f"GENERATOR REASONING:\n{rest}")
    applied = landscape.codes(reasoning.group(1)) if reasoning else []
    missed = [code for code in landscape.needed_rules(question) if code not in applied]
    insight: dict[str, Any] | None = None
    if prior := _PRIOR.findall(rest):
        insight = _refined(landscape, _read(prior[-1])[0], missed, question, draw)
    elif not right:
        insight = _found(landscape, missed, question, draw)
    elif applied and draw.random() < landscape.chatty:
        insight = _insight(landscape, draw.choice(applied), draw)
    blamed = [
        entry
        for entry in entries
        if not right and landscape.is_distractor(landscape.advice(entry.text).code) and draw.random() < landscape.blamed
    ]
    diagnosis = "The answer was right." if right else "A rule was missed."
    if blamed:
        diagnosis += "\n" + _NAMED + ", ".join(entry.name for entry in blamed)
    return {
        "diagnosis": diagnosis,
        "insights": [insight] if insight else [],
        "helpful_ids": [],
        "harmful_ids": [entry.name for entry in blamed],
    }


def _found(landscape: PlaybookLandscape, missed: Sequence[str], question: str, draw: random.Random) -> dict[str, Any]:
    """What a reflection on a wrong answer finds."""
    if missed and draw.random() < landscape.found:
        return _insight(landscape, draw.choice(missed), draw)
    distractor = landscape.any_distractor(draw) if draw.random() < landscape.misled else None
    if distractor is not None:
        return _insight(landscape, distractor, draw)
    words = " ".join(question.split()[-12:])
    return {"content": f"Where a question ends in '{words}', check that answer once more.", "section": "strategies"}


def _insight(landscape: PlaybookLandscape, code: str, draw: random.Random, *, full: bool = False) -> dict[str, Any]:
    said = landscape.say(code, draw, full=full or draw.random() >= landscape.half_said)
    return {"content": said, "section": landscape.section(code), "tags": []}


def _refined(
    landscape: PlaybookLandscape, insight: dict[str, Any], missed: Sequence[str], question: str, draw: random.Random
) -> dict[str, Any]:
    """An insight after another round: as it was, or better."""
    said = landscape.advice(insight["content"])
    if draw.random() >= landscape.second_thought:
        return insight
    if said.code is None or landscape.is_distractor(said.code):
        return _found(landscape, missed, question, draw)
    return insight if said.full else _insight(landscape, said.code, draw, full=True)


def _curate(landscape: PlaybookLandscape, asked: str, draw: random.Random) -> dict[str, Any]:
    """What the playbook lacks is added, what it states is sharpened, what misled is removed."""
    entries = dict(_ENTRY.findall(asked))
    found = _INSIGHTS.search(asked)
    insights = _read(found.group(1)) if found else []
    lost = min(1.0, landscape.lost * (len(insights) - 1))
    understood = [each for each in insights if draw.random() >= lost]
    misleading = [name for names in _MISLEADING.findall(asked) for name in names.split(", ") if name in entries]
    operations = [
        *_taken_in(landscape, entries, understood),
        *({"op": "REMOVE", "target_id": name} for name in misleading if draw.random() < landscape.removed),
    ]
    return {"operations": operations or _nothing_new(landscape, entries, insights)}


def _taken_in(
    landscape: PlaybookLandscape, entries: dict[str, str], insights: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Operations that bring insights into a playbook: one per rule, and none where it says as much already."""
    stated = _stated(landscape, entries)
    operations: dict[str, dict[str, Any]] = {}
    for insight in insights:
        content = insight["content"]
        said = landscape.advice(content)
        if said.code is None or said.code not in stated:
            if said.full or said.code not in operations:
                operations[said.code or content] = {"op": "ADD", **insight}
        elif said.full and not landscape.advice(entries[stated[said.code]]).full:
            operations[said.code] = {"op": "UPDATE", "target_id": stated[said.code], "content": content}
    return [*operations.values()]


def _nothing_new(
    landscape: PlaybookLandscape, entries: dict[str, str], insights: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """An update that changes nothing: told of no operation at all, the host adds every insight."""
    stated = _stated(landscape, entries)
    names = [stated[code] for insight in insights for code in landscape.codes(insight["content"]) if code in stated]
    return [{"op": "UPDATE", "target_id": name, "content": entries[name]} for name in names[:1]]


def _stated(landscape: PlaybookLandscape, entries: dict[str, str]) -> dict[str | None, str]:
    """Each rule that entries state, with the name of the first one that does."""
    first: dict[str | None, str] = {}
    for name, text in entries.items():
        first.setdefault(landscape.advice(text).code, name)
    return first


def _read(text: str) -> list[dict[str, Any]]:
    """Insights as the host writes them: a list of Python."""
    read = ast.literal_eval(text)
    return [dict(each) for each in read]
