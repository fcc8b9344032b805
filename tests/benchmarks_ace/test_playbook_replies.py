"""The simulated model as ACE's own roles hear it, and as a policy does that asks about a playbook."""

from __future__ import annotations

import random

import pytest
from ace import Bullet, Curator, Feedback, Generation, Generator, Playbook, Reflection, Reflector, Sample

from flashevolve_plugins._model import Verdict
from flashevolve_plugins.benchmarks.bench.ace_virtual import VirtualModel
from flashevolve_plugins.benchmarks.bench.virtual_server import VirtualServer
from flashevolve_plugins.benchmarks.playbook_landscape import PlaybookLandscape
from flashevolve_plugins.benchmarks.server.latency import LatencyModel
from flashevolve_plugins.benchmarks.server.settings import ServerSettings
from flashevolve_plugins.benchmarks.server.simulator import Simulator
from flashevolve_plugins.hooks.prompts import ask_verdict

SURE = PlaybookLandscape(
    rules=8, known=0.0, needed=(1, 1), keep_unstated=0.0, keep_stated=1.0, crowding=0.0, found=1.0, half_said=0.0,
    blamed=1.0, removed=1.0, lost=0.0, distractor_harm=0.0,
)  # fmt: skip
QUESTION = "What is the figure?"
RULE = next(iter(SURE.needed_rules(QUESTION)))
OTHER = next(code for n in range(100) for code in SURE.needed_rules(f"Case {n}?") if code != RULE)
DISTRACTOR = SURE.any_distractor(random.Random(0))


def model(landscape=SURE):
    return VirtualModel(Simulator(ServerSettings(playbook=landscape)), VirtualServer(LatencyModel()))


def playbook(*codes, full=True):
    book = Playbook()
    for number, code in enumerate(codes):
        book.add(Bullet(SURE.say(code, random.Random(number), full=full), section="strategies", id=f"ctx-{number}"))
    return book


def sample():
    return Sample("one", QUESTION, SURE.truth(QUESTION))


def reflect(book, *, right, rounds=1, landscape=SURE, reasoning="I applied what seemed plausible."):
    feedback = Feedback(correct=right, ground_truth=SURE.truth(QUESTION))
    return Reflector(model(landscape), rounds).reflect(sample(), Generation("0", reasoning), feedback, book)


def curate(book, *codes, diagnosis="", full=True, landscape=SURE):
    insights = [{"content": SURE.say(code, random.Random(7), full=full), "section": "strategies"} for code in codes]
    reflection = Reflection(insights=insights, diagnosis=diagnosis)
    return Curator(model(landscape)).curate(sample(), Generation("0"), reflection, book).operations


def test_the_generator_is_right_with_the_rule_and_wrong_without():
    with_it = Generator(model()).generate(sample(), playbook(OTHER, RULE))
    assert (with_it.answer, with_it.helpful_ids) == (SURE.truth(QUESTION), ["ctx-1"])
    without = Generator(model()).generate(sample(), playbook(OTHER))
    assert without.answer not in {"", SURE.truth(QUESTION)}
    assert without.helpful_ids == []


def test_the_reflector_finds_the_rule_that_was_missed():
    found = reflect(playbook(), right=False)
    assert [SURE.advice(each["content"]).code for each in found.insights] == [RULE]


def test_the_reflector_names_what_misled_and_the_curator_removes_it():
    found = reflect(playbook(OTHER, DISTRACTOR), right=False)
    assert found.harmful_ids == ["ctx-1"]
    removed = [
        each for each in curate(playbook(OTHER, DISTRACTOR), RULE, diagnosis=found.diagnosis) if each.op == "REMOVE"
    ]
    assert [each.target_id for each in removed] == ["ctx-1"]
    assert reflect(playbook(OTHER, DISTRACTOR), right=True).harmful_ids == []


def test_the_reflector_has_little_to_say_of_right_answers():
    silent = PlaybookLandscape(rules=8, known=0.0, needed=(1, 1), chatty=0.0)
    assert reflect(playbook(), right=True, landscape=silent).insights == []
    chatty = PlaybookLandscape(rules=8, known=0.0, needed=(1, 1), chatty=1.0)
    said = reflect(playbook(), right=True, landscape=chatty, reasoning=f"I applied {RULE}.").insights
    assert [SURE.advice(each["content"]).code for each in said] == [RULE]


def test_further_rounds_make_bad_advice_good():
    wrong = {"rules": 8, "known": 0.0, "needed": (1, 1), "found": 0.0, "misled": 0.0}
    stubborn = reflect(playbook(), right=False, rounds=5, landscape=PlaybookLandscape(**wrong, second_thought=0.0))
    assert [SURE.advice(each["content"]).code for each in stubborn.insights] == [None]
    vague = {**wrong, "found": 1.0, "half_said": 1.0, "second_thought": 1.0}
    said = [reflect(playbook(), right=False, rounds=n, landscape=PlaybookLandscape(**vague)).insights for n in (1, 2)]
    assert [SURE.advice(each[0]["content"]).full for each in said] == [False, True]


def test_the_curator_adds_what_the_playbook_lacks_and_sharpens_what_is_vague():
    assert [each.op for each in curate(playbook(OTHER), RULE)] == ["ADD"]
    (sharpened,) = curate(playbook(OTHER, RULE, full=False), RULE)
    assert (sharpened.op, sharpened.target_id, SURE.advice(sharpened.content).full) == ("UPDATE", "ctx-1", True)
    book = playbook(OTHER, RULE)
    (kept,) = curate(book, RULE, full=False)
    assert (kept.op, kept.target_id, kept.content) == ("UPDATE", "ctx-1", book.get("ctx-1").content)


def test_the_curator_takes_many_insights_in_at_once_and_loses_some():
    assert [each.op for each in curate(playbook(), RULE, OTHER, RULE)] == ["ADD", "ADD"]
    careless = PlaybookLandscape(rules=8, known=0.0, needed=(1, 1), lost=0.4)
    assert len(curate(playbook(), RULE, OTHER, landscape=careless)) <= 2
    assert len(curate(playbook(), RULE, landscape=careless)) == 1  # alone, nothing is lost


@pytest.mark.parametrize(
    ("current_full", "proposal_full", "verdict"), [(False, True, Verdict.PATCH), (True, True, Verdict.DISCARD)]
)
def test_a_stale_update_is_carried_over_if_it_says_more(current_full, proposal_full, verdict):
    parent, current, proposal = (
        {"ctx-1": SURE.say(RULE, random.Random(luck), full=full)}
        for luck, full in ((1, False), (2, current_full), (3, proposal_full))
    )
    model_says = model()
    answer = ask_verdict(
        lambda prompt: model_says.complete("", prompt),
        parent=parent, proposal=proposal, current=current, feedback="", history=[],
    )  # fmt: skip
    assert answer.verdict is verdict
    assert answer.artifact == (proposal if verdict is Verdict.PATCH else None)
