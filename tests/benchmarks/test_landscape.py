"""The landscape: its true score is what answers earn on average, and it rises and falls as promised."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashevolve_plugins.benchmarks import Landscape
from flashevolve_plugins.benchmarks.presets import PRESETS

PLAIN = Landscape()
HELPFUL = [rule for rule in PLAIN.book if rule.helps]
HARMFUL = [rule for rule in PLAIN.book if not rule.helps]


def prompt(*statements: str) -> str:
    """Return an instruction that states the given sentences."""
    return "\n".join(["Reply to the customer.", *statements])


@pytest.mark.parametrize(
    "landscape",
    [
        PLAIN,
        Landscape(seed=5, steadiness=0.0),
        Landscape(seed=6, distractor_harm=0.3, length_limit=4, length_harm=0.2, conflicts=5),
    ],
    ids=["default", "no common luck", "every hazard"],
)
def test_the_true_score_is_what_answers_earn_on_average(landscape: Landscape) -> None:
    stated = [*landscape.book[:8], landscape.book[-1]]
    instruction = prompt(*(rule.statement for rule in stated))
    earned = [
        landscape.score(example.question, landscape.answer(instruction, example.question, luck))
        for luck, example in enumerate(landscape.examples("test", 4000))
    ]
    assert sum(earned) / len(earned) == pytest.approx(landscape.true_score(instruction), abs=0.012)


def test_an_empty_and_a_full_prompt_score_the_two_chances() -> None:
    assert PLAIN.true_score("Reply.") == pytest.approx(PLAIN.keep_unstated)
    assert PLAIN.true_score(prompt(*(rule.statement for rule in HELPFUL))) == pytest.approx(PLAIN.keep_stated)


@given(st.sets(st.sampled_from(range(len(PLAIN.book))), max_size=15), st.sampled_from(HELPFUL))
def test_stating_one_more_rule_raises_the_true_score(stated: set[int], extra: Any) -> None:
    before = [PLAIN.book[index].statement for index in stated if PLAIN.book[index] != extra]
    assert PLAIN.true_score(prompt(*before, extra.statement)) > PLAIN.true_score(prompt(*before))


@given(st.sets(st.sampled_from(range(len(PLAIN.book))), max_size=15), st.sampled_from(HARMFUL))
def test_stating_one_more_distractor_lowers_the_true_score(stated: set[int], extra: Any) -> None:
    before = [PLAIN.book[index].statement for index in stated if PLAIN.book[index] != extra]
    assert PLAIN.true_score(prompt(*before, extra.statement)) < PLAIN.true_score(prompt(*before))


def test_above_the_length_limit_every_sentence_weakens_all() -> None:
    limited = Landscape(length_limit=2, length_harm=0.5)
    first, second, third = (rule.statement for rule in limited.book[:3])
    assert limited.true_score(prompt(first, second)) == Landscape().true_score(prompt(first, second))
    assert limited.true_score(prompt(first, second, third)) < limited.true_score(prompt(first, second))


def test_two_conflicting_rules_are_worth_neither() -> None:
    rivals = Landscape(conflicts=1)
    first, second, third = (rule.statement for rule in rivals.book[:3])
    assert rivals.true_score(prompt(first, second)) == pytest.approx(rivals.true_score(prompt()))
    assert rivals.true_score(prompt(first, third)) > rivals.true_score(prompt(first))


def test_splits_share_no_example_and_a_seed_always_gives_the_same() -> None:
    splits = [{example.id for example in PLAIN.examples(name, 300)} for name in ("train", "val", "test")]
    assert len(set.union(*splits)) == 900
    assert PLAIN.examples("val", 5) == Landscape().examples("val", 5)
    assert PLAIN.examples("val", 5) != Landscape(seed=1).examples("val", 5)
    assert Landscape() == PLAIN
    assert PLAIN.book != Landscape(seed=1).book


def test_a_question_gives_nothing_away_and_needs_three_to_six_rules() -> None:
    for example in PLAIN.examples("train", 100):
        needed = PLAIN.needed_rules(example.question) or ()
        assert len(set(needed)) == len(needed)
        assert len(needed) in range(3, 7)
        assert not PLAIN.stated(example.question)


def test_feedback_names_broken_rules_and_sometimes_a_wrong_one() -> None:
    right, wrong, distractors = 0, 0, 0
    for example in PLAIN.examples("train", 400):
        answer = PLAIN.answer("Reply.", example.question, 1)
        score, text = PLAIN.feedback(example.question, answer)
        assert (score, text) == PLAIN.feedback(example.question, answer)
        assert score == PLAIN.score(example.question, answer)
        broken = {code for code in PLAIN.needed_rules(example.question) or () if f"[{code}]" not in answer}
        named = PLAIN.named_rules(text)
        assert len(named) == min(PLAIN.named, len(broken))
        right += sum(code in broken for code in named)
        wrong += sum(code not in broken for code in named)
        distractors += sum(code in {rule.code for rule in HARMFUL} for code in named)
    assert wrong / (right + wrong) == pytest.approx(PLAIN.wrong_name, abs=0.04)
    assert distractors / wrong == pytest.approx(PLAIN.distractor_name, abs=0.1)


def test_feedback_on_a_perfect_answer_names_nothing() -> None:
    question = PLAIN.examples("train", 1)[0].question
    perfect = " ".join(f"[{code}]" for code in PLAIN.needed_rules(question) or ())
    score, text = PLAIN.feedback(question, perfect)
    assert score == 1.0
    assert PLAIN.named_rules(text) == []


def test_a_reflection_adds_one_or_two_named_rules_and_keeps_the_rest() -> None:
    sure = Landscape(missed=0.0)
    named = [rule.code for rule in sure.book[4:9]]
    before = prompt(sure.book[0].statement)
    added = [sure.stated(sure.reflect(before, named, luck)) - {sure.book[0].code} for luck in range(40)]
    assert {len(codes) for codes in added} == {1, 2}
    assert set.union(*map(set, added)) == set(named)
    assert all(sure.reflect(before, named, luck).startswith(before) for luck in range(40))


def test_a_reflection_that_finds_nothing_new_replaces_its_remark() -> None:
    first = PLAIN.reflect("Reply.", [], 1)
    second = PLAIN.reflect(first, [], 2)
    assert first != second
    assert len(first.splitlines()) == len(second.splitlines()) == 2
    assert not PLAIN.stated(second)


def test_a_forgetful_reflection_drops_sentences() -> None:
    forgetful = Landscape(forgotten=1.0)
    assert not forgetful.stated(forgetful.reflect(prompt(*(rule.statement for rule in forgetful.book)), [], 1))


def test_text_without_a_case_earns_nothing() -> None:
    assert PLAIN.needed_rules("What is the weather?") is None
    assert PLAIN.score("What is the weather?", PLAIN.book[0].statement) == 0.0
    assert "no case" in PLAIN.answer("Reply.", "What is the weather?", 1)
    assert PLAIN.feedback("What is the weather?", "Fine.")[0] == 0.0


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"rules": 2}, "needed"),
        ({"needed": (4, 3)}, "needed"),
        ({"distractors": -1}, "distractors"),
        ({"conflicts": 11}, "conflicts"),
        ({"named": 0}, "named"),
        ({"added": 0}, "added"),
        ({"length_limit": -1}, "length_limit"),
        ({"keep_stated": 1.5}, "keep_stated"),
        ({"missed": -0.1}, "missed"),
    ],
)
def test_a_parameter_out_of_its_range_is_named(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Landscape(**values)


@pytest.mark.parametrize(
    ("name", "rules", "distractors", "score"),
    [
        ("additive", 0, 0, 0.25),
        ("additive", 10, 0, 0.5 * 0.95 + 0.5 * 0.25),
        ("distractors", 20, 2, 0.95 * 0.88**2),
        ("length", 9, 0, (9 * 0.95 + 11 * 0.25) / 20),
        ("length", 12, 0, (12 * 0.95 + 8 * 0.25) / 20 * 0.95**3),
        ("conflicts", 16, 0, 0.25),
        ("conflicts", 20, 0, (4 * 0.95 + 16 * 0.25) / 20),
        ("all", 20, 1, (4 * 0.95 + 16 * 0.25) / 20 * 0.88 * 0.95**12),
        ("overwriting", 20, 0, 0.95),
    ],
)
def test_a_preset_scores_known_prompts_as_it_says(name: str, rules: int, distractors: int, score: float) -> None:
    landscape = PRESETS[name].landscape(4)
    stated = [*landscape.book[:rules], *landscape.book[landscape.rules : landscape.rules + distractors]]
    assert landscape.true_score(prompt(*(rule.statement for rule in stated))) == pytest.approx(score)


def test_a_program_of_several_parts_scores_each_rule_where_it_belongs() -> None:
    book = PLAIN.book
    right = ["\n".join(rule.statement for rule in book[part:20:3]) for part in range(3)]
    assert PLAIN.true_score(*right) == pytest.approx(0.95)
    assert PLAIN.true_score(right[1], right[2], right[0]) == pytest.approx(0.25)
    assert PLAIN.true_score(right[0], "", "") == pytest.approx((7 * 0.95 + 13 * 0.25) / 20)


def test_the_answers_of_the_parts_earn_the_true_score_together() -> None:
    texts = [PLAIN.book[0].statement, "\n".join(rule.statement for rule in PLAIN.book[1:20:3]), "Reply."]
    earned = []
    for luck, example in enumerate(PLAIN.examples("test", 3000)):
        asked = [PLAIN.part_question(example.question, part, 3) for part in (1, 2, 3)]
        answers = [PLAIN.answer(text, question, luck) for text, question in zip(texts, asked, strict=True)]
        earned.append(PLAIN.score(example.question, " ".join(answers)))
    assert sum(earned) / len(earned) == pytest.approx(PLAIN.true_score(*texts), abs=0.015)


def test_the_parts_of_an_example_need_its_rules_between_them() -> None:
    question = PLAIN.examples("val", 1)[0].question
    parts = [PLAIN.needed_rules(PLAIN.part_question(question, part, 3)) or () for part in (1, 2, 3)]
    assert sorted(code for part in parts for code in part) == sorted(PLAIN.needed_rules(question) or ())
    assert PLAIN.part_question(question, 1, 1) == question


def test_the_feedback_of_a_part_names_its_own_rules() -> None:
    precise = Landscape(wrong_name=0.0, named=20)
    for example in precise.examples("train", 20):
        question = precise.part_question(example.question, 2, 3)
        score, text = precise.feedback(question, "")
        named = precise.named_rules(text)
        assert sorted(named) == sorted(precise.needed_rules(question) or ())
        assert score == (0.0 if named else 1.0)


def changes(*additions: int) -> list[tuple[str, str]]:
    """Return changes that each add one rule to the same text."""
    return [(prompt(), prompt(PLAIN.book[rule].statement)) for rule in additions]


def test_a_merge_that_loses_nothing_states_what_every_change_states() -> None:
    careful = Landscape(lost=0.0)
    current = prompt(careful.book[9].statement)
    merged = careful.merge(current, changes(1, 2, 2), 0)
    assert merged == prompt(*(careful.book[rule].statement for rule in (9, 1, 2)))
    dropped = (prompt(careful.book[9].statement, careful.book[8].statement), prompt(careful.book[8].statement))
    assert careful.merge(current, [dropped], 0) == prompt()


def test_a_merge_loses_the_share_that_the_landscape_says() -> None:
    def kept(landscape: Landscape, size: int) -> float:
        found = [len(landscape.stated(landscape.merge(prompt(), changes(*range(size)), luck))) for luck in range(800)]
        return sum(found) / len(found) / size

    assert kept(PLAIN, 4) == pytest.approx(0.7, abs=0.03)
    assert kept(PRESETS["merges-lose-60"].landscape(0), 4) == pytest.approx(0.4, abs=0.03)
    assert kept(PRESETS["merges-lose-80"].landscape(0), 4) == pytest.approx(0.2, abs=0.03)
    growing = PRESETS["merges-lose-more"].landscape(0)
    assert kept(growing, 1) == pytest.approx(0.7, abs=0.05)
    assert kept(growing, 8) == pytest.approx(0.3 - 0.09, abs=0.03)
    assert PLAIN.merge(prompt(), changes(1, 2, 3), 5) == PLAIN.merge(prompt(), changes(1, 2, 3), 5)


def test_remarks_are_not_merged() -> None:
    remark = (prompt(), prompt("In general, be brief and be precise."))
    assert Landscape(lost=0.0).merge(prompt(), [remark], 0) == prompt()
