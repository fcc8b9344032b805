"""The landscape of playbooks: what a playbook is worth, by hand and by sampling."""

from __future__ import annotations

import random

import pytest
from ace.refine import _jaccard

from flashevolve_plugins.benchmarks.playbook_landscape import PlaybookLandscape

QUESTIONS = [f"What is the figure of case {number}?" for number in range(40)]


def said(landscape, codes, *, full=True):
    """Entries that state these rules."""
    draw = random.Random(0)
    return [landscape.say(code, draw, full=full) for code in codes]


def every_rule(landscape):
    return sorted({code for number in range(2000) for code in landscape.needed_rules(f"question {number}")})


SIMPLE = PlaybookLandscape(rules=6, known=0.0, distractors=3, needed=(1, 1), skew=0.0)


def test_an_empty_playbook_leaves_what_the_model_knows_and_guesses():
    assert SIMPLE.true_score([], QUESTIONS) == pytest.approx(0.15)
    knowing = PlaybookLandscape(rules=6, known=1.0, needed=(2, 2))
    assert knowing.true_score([], QUESTIONS) == pytest.approx(0.9**2)


@pytest.mark.parametrize(("full", "share"), [(True, 1.0), (False, 0.75)])
def test_advice_is_recalled_less_often_the_more_there_is(full, share):
    entries = said(SIMPLE, every_rule(SIMPLE), full=full)
    assert SIMPLE.true_score(entries, QUESTIONS) == pytest.approx(0.97 * share * (1 - 0.0015) ** 6)
    filled = [*entries, *(f"Check the answer to case {number} once more." for number in range(50))]
    assert SIMPLE.true_score(filled, QUESTIONS) == pytest.approx(0.97 * share * (1 - 0.0015) ** 56)


def test_a_distractor_harms_every_answer_once():
    distractor = SIMPLE.any_distractor(random.Random(0))
    assert SIMPLE.is_distractor(distractor)
    assert not any(map(SIMPLE.is_distractor, [*every_rule(SIMPLE), None, "XX-999"]))
    assert SIMPLE.true_score(said(SIMPLE, [distractor, distractor]), QUESTIONS) == pytest.approx(0.15 * 0.98)


def test_the_true_score_is_the_mean_of_what_is_sampled():
    landscape = PlaybookLandscape(rules=30, steadiness=0.0)
    entries = said(landscape, every_rule(landscape)[:12], full=False)
    right = [
        len(landscape.kept(entries, question, luck)) == len(landscape.needed_rules(question))
        for question in QUESTIONS
        for luck in range(200)
    ]
    assert sum(right) / len(right) == pytest.approx(landscape.true_score(entries, QUESTIONS), abs=0.015)


def test_entries_beyond_the_first_of_a_rule_are_duplicates():
    first, second, *_ = every_rule(SIMPLE)
    entries = [*said(SIMPLE, [first, first, second]), "Check the answer once more."]
    assert SIMPLE.duplicate_share(entries) == pytest.approx(1 / 4)
    assert SIMPLE.duplicate_share([]) == 0.0


def test_the_host_does_not_see_that_two_ways_of_saying_it_say_the_same():
    code = every_rule(SIMPLE)[0]
    ways = {SIMPLE.say(code, random.Random(luck), full=True) for luck in range(60)}
    assert len(ways) > 3
    assert {SIMPLE.advice(way).code for way in ways} == {code}
    assert max(_jaccard(one, other) for one in ways for other in ways if one != other) < 0.86


def test_everything_follows_from_the_seed():
    same, other = PlaybookLandscape(seed=1), PlaybookLandscape(seed=2)
    for question in QUESTIONS:
        assert PlaybookLandscape(seed=1).needed_rules(question) == same.needed_rules(question)
        assert PlaybookLandscape(seed=1).truth(question) == same.truth(question) != other.truth(question)


@pytest.mark.parametrize(
    "wrong", [{"needed": (0, 1)}, {"needed": (2, 200)}, {"distractors": -1}, {"crowding": 1.5}, {"skew": -1.0}]
)
def test_a_parameter_out_of_its_range_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong)) if "distractors" not in wrong else "rules"):
        PlaybookLandscape(**wrong)
