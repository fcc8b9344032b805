"""The simulated model's answers to our own merge and verdict prompts, read by our own parser."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest

from flashevolve_plugins._model import Change, Verdict
from flashevolve_plugins.benchmarks import Landscape
from flashevolve_plugins.benchmarks.server.chat import Message
from flashevolve_plugins.benchmarks.server.replies import reply
from flashevolve_plugins.hooks.prompts import MERGE_TASK, VERDICT_TASK, HistoryEntry, ask_verdict, write_merge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

FAITHFUL = Landscape(lost=0.0)
STATEMENTS = [rule.statement for rule in FAITHFUL.book]


def model(landscape: Landscape) -> Callable[[str], str]:
    """Return the simulated model, with other luck at every call."""
    luck = count()
    return lambda prompt: reply(landscape, [Message("user", prompt)], {}, next(luck))


def prompt(*statements: str) -> str:
    """Return an instruction that states the given sentences."""
    return "\n".join(["Reply to the customer.", *statements])


def sorted_lines(artifact: dict[str, str]) -> dict[str, list[str]]:
    """Return the lines of every component in one order."""
    return {name: sorted(text.split("\n")) for name, text in artifact.items()}


@pytest.mark.parametrize("changes", [1, 3, 16])
def test_a_merge_states_what_every_change_adds_and_nothing_it_drops(changes: int) -> None:
    old, known, *new = STATEMENTS
    parent, current = {"a": prompt(old), "b": prompt(old)}, {"a": prompt(old, known), "b": prompt(old, known)}
    made = [
        Change(parent, {"a": prompt(old, new[n]), "b": prompt(new[n + 1])}, f"Broken rule {new[n]}")
        for n in range(changes)
    ]
    merged = write_merge(model(FAITHFUL), current, made)
    assert sorted_lines(merged) == {
        "a": sorted(prompt(old, known, *new[:changes]).split("\n")),
        "b": sorted(prompt(known, *new[1 : changes + 1]).split("\n")),
    }


def test_a_merge_loses_what_the_landscape_says() -> None:
    careless = Landscape(lost=0.5)
    parent, current = prompt(), prompt(STATEMENTS[0])
    changes = [Change({"a": parent}, {"a": prompt(statement)}) for statement in STATEMENTS[1:17]]
    ask = model(careless)
    kept = [len(careless.stated(write_merge(ask, {"a": current}, changes)["a"])) - 1 for _ in range(50)]
    assert sum(kept) / len(kept) == pytest.approx(8, abs=1)


def judge(proposal: Iterable[str], current: Iterable[str]) -> tuple[Verdict, dict[str, str] | None]:
    """Return the simulated model's verdict and patch on a proposal that was made from a prompt with one statement."""
    answer = ask_verdict(
        model(FAITHFUL),
        parent={"a": prompt(STATEMENTS[0]), "b": "Stay."},
        proposal={"a": prompt(*proposal), "b": "Go."},
        current={"a": prompt(*current), "b": "Stay."},
        feedback=f"Broken rule {STATEMENTS[1]}",
        history=[HistoryEntry({"a": prompt()}, {"a": prompt(STATEMENTS[3])}, 0.2)],
    )
    assert answer.reason
    return answer.verdict, answer.artifact


def test_a_proposal_is_patched_onto_the_current_texts() -> None:
    first, second, third, *_ = STATEMENTS
    verdict, patched = judge([first, second], [first, third])
    assert (verdict, patched) == (Verdict.PATCH, {"a": prompt(first, third, second), "b": "Stay."})
    assert judge([second], [first, second])[1] == {"a": prompt(second), "b": "Stay."}


def test_a_proposal_whose_statements_are_all_known_is_discarded() -> None:
    first, second, third, *_ = STATEMENTS
    assert judge([first, second], [first, third, second]) == (Verdict.DISCARD, None)


@pytest.mark.parametrize("task", [MERGE_TASK, VERDICT_TASK])
def test_a_task_that_quotes_our_prompts_is_answered_as_a_task(task: str) -> None:
    question = f"{FAITHFUL.examples('train', 1)[0].question}\n{task}\n````\n\n````"
    assert reply(FAITHFUL, [Message("user", question)], {}, 1) == FAITHFUL.answer(question, question, 1)
