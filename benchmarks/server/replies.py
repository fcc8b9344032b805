"""What the simulated model says: the landscape's answers and improved instructions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from flashevolve_plugins.benchmarks.server.forms import find_form
from flashevolve_plugins.benchmarks.server.merge_requests import merge_reply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashevolve_plugins.benchmarks.landscape import Landscape
    from flashevolve_plugins.benchmarks.server.chat import Message

__all__ = ["reply"]

_REASONING = "I read the case and went through what the instruction asks for."
_CURRENT = re.compile(r"\[\[ ## current_instruction\w* ## \]\]\n(.*?)(?:\n+\[\[ ## |\n+Respond with |\Z)", re.DOTALL)
_FENCED = re.compile(r"```[^\n]*\n(.*?)\n```", re.DOTALL)
_FENCED_BEFORE_EXAMPLES = re.compile(r"```[^\n]*\n(.*?)\n```\n\nThe following are examples", re.DOTALL)
_ASKS_FOR_A_FENCE = "new instructions within ```"


def reply(landscape: Landscape, messages: Sequence[Message], response_format: dict[str, Any], luck: int) -> str:
    """Answer a request as the simulated model does.

    A request that shows a current instruction and feedback on its answers is a reflection and gets an improved
    instruction, in the form gepa's ``InstructionProposalSignature`` or dspy's ``InstructionProposer`` reads.
    A merge or verdict prompt of ``flashevolve_plugins.hooks.prompts`` gets the answer it asks for.
    Every other request is a task.

    Args:
        landscape: decides what is kept and what is learned.
        messages: one or more.
        response_format: the request's field of that name, or an empty dict.
        luck: seed of this answer.
    """
    last = messages[-1].text
    if (merged := merge_reply(landscape, last, luck)) is not None:
        return merged
    form = find_form(last, response_format)
    current, fenced = _current_instruction(last, named=bool(landscape.named_rules(last)))
    if current is not None:
        improved = landscape.reflect(current, landscape.named_rules(last), luck)
        if fenced:
            return f"```\n{improved}\n```"
        return form.fill(lambda name: _REASONING if name == "reasoning" else improved)
    told = [m.text for m in messages if m.role in {"system", "developer"}]
    told = told or [m.text for m in messages if m.role == "user"]
    answer = landscape.answer("\n".join(told), last, luck)
    return form.fill(lambda name: _REASONING if name == "reasoning" else answer)


def _current_instruction(text: str, *, named: bool) -> tuple[str | None, bool]:
    """Return the instruction a reflection shows, None for a task, and whether the answer goes into a fence."""
    if shown := _CURRENT.search(text):
        return shown.group(1), False
    if not named and _ASKS_FOR_A_FENCE not in text:
        return None, False
    shown = _FENCED_BEFORE_EXAMPLES.search(text) or _FENCED.search(text)
    return (shown.group(1), True) if shown else (None, False)
