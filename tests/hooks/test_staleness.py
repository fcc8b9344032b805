"""The built-in staleness policies, and how policies compose."""

import inspect

import pytest

from flashevolve_plugins import FlashEvolveError, UnknownNameError, UsageError
from flashevolve_plugins._model import Verdict
from flashevolve_plugins.hooks import (
    Aggregate,
    BestFirst,
    Full,
    Guarded,
    Judgement,
    Merge,
    PolicySettings,
    Reflective,
    StalenessPolicy,
)
from flashevolve_plugins.hooks.manager import make_policy


class Fixed(StalenessPolicy):
    """Always gives the same judgement, and counts how often it was asked."""

    def __init__(self, judgement):
        self.judgement, self.asked = judgement, 0

    def judge(self, item, pool):
        self.asked += 1
        return self.judgement


YES, NO, OLD = Judgement(Verdict.ACCEPT), Judgement(Verdict.DISCARD, "no"), Judgement(Verdict.DISCARD, "old")


@pytest.mark.parametrize(
    ("first", "second", "both", "either"),
    [(YES, YES, YES, YES), (YES, NO, NO, YES), (NO, YES, NO, YES), (NO, OLD, NO, OLD)],
)
def test_and_accepts_what_both_accept_and_or_what_either_accepts(first, second, both, either, view, pool):
    assert (Fixed(first) & Fixed(second)).judge(view(1), pool) == both
    assert (Fixed(first) | Fixed(second)).judge(view(1), pool) == either


def test_the_second_policy_is_only_asked_when_it_matters(view, pool):
    second = Fixed(YES)
    (Fixed(NO) & second).judge(view(1), pool)
    (Fixed(YES) | second).judge(view(1), pool)
    assert second.asked == 0


@pytest.mark.parametrize(("staleness", "verdict"), [(1, Verdict.ACCEPT), (2, Verdict.DISCARD), (5, Verdict.ACCEPT)])
def test_compositions_compose(staleness, verdict, view, pool):
    class AtLeast(StalenessPolicy):
        def judge(self, item, pool):
            return self.accept() if item.staleness >= 4 else self.discard("young")

    policy = (Guarded(1) | AtLeast()) & Full()
    assert policy.judge(view(staleness), pool).verdict is verdict


@pytest.mark.parametrize("bound", [0, 1, 4])
def test_guarded_accepts_up_to_its_bound_and_says_why_it_discards(bound, view, pool):
    policy = Guarded(bound)
    assert policy.judge(view(bound), pool).verdict is Verdict.ACCEPT
    judgement = policy.judge(view(bound + 1), pool)
    assert judgement == Judgement(Verdict.DISCARD, f"stale by {bound + 1}, more than max_staleness={bound}")


def test_full_accepts_everything(view, pool):
    assert Full().judge(view(10**6), pool).verdict is Verdict.ACCEPT


NO_COUNT = (1.5, "4", True, float("nan"))
COUNTS = {
    (Guarded, "max_staleness"): (0, (-1, None)),
    (Reflective, "max_staleness"): (0, (-1, None)),
    (Reflective, "max_patches"): (0, (-1, None)),
    (Reflective, "max_characters"): (4_000, (3_999, None)),
    (BestFirst, "max_items"): (1, (0,)),
    (Merge, "max_items"): (1, (0,)),
    (Aggregate, "group"): (1, (0,)),
    (Aggregate, "max_items"): (1, (0,)),
    (Merge, "max_batch"): (1, (0,)),
    (Merge, "max_characters"): (1, (0,)),
    (Merge, "least"): (1, (0,)),
}


@pytest.mark.parametrize(("policy", "option"), COUNTS)
def test_a_count_that_cannot_work_is_refused_with_policy_option_and_what_is_allowed(policy, option):
    least, bad = COUNTS[policy, option]
    assert getattr(policy(**{option: least}), option) == least
    for value in (*bad, *NO_COUNT):
        with pytest.raises(UsageError) as caught:
            policy(**{option: value})
        words = f"{policy.__name__}({option}={value!r}) must be a whole number of at least {least}"
        assert str(caught.value).startswith(words)


WORDS = {
    (Reflective, "fallback"): "'accept', 'discard'",
    (Merge, "onto"): "'best', 'frontier'",
}


@pytest.mark.parametrize("bad", ["patch", None, True, ["accept"]])
@pytest.mark.parametrize(("policy", "option"), WORDS)
def test_another_word_is_refused_with_those_that_are_allowed(policy, option, bad):
    known = rf"{policy.__name__}\({option}=.*: known are {WORDS[policy, option]}"
    with pytest.raises(UsageError, match=known) as caught:
        policy(**{option: bad})
    assert repr(bad) in str(caught.value)


def test_every_option_of_every_built_in_policy_is_checked_above():
    kinds = (Full, Guarded, Reflective, BestFirst, Merge, Aggregate)
    options = {(kind, option) for kind in kinds for option in inspect.signature(kind).parameters}
    assert options == {*COUNTS, *WORDS}


@pytest.mark.parametrize("name", ["full", "best-first", "merge"])
def test_a_bound_for_a_policy_without_one_is_refused_with_those_that_have_one(name):
    with pytest.raises(UsageError, match=f"max_staleness=3 does not go with the policy '{name}'.*'guarded' or 'refl"):
        make_policy(name, PolicySettings(max_staleness=3))


def test_a_policy_by_name_takes_the_runs_bound_or_its_own_default():
    for name in ("guarded", "reflective"):
        assert make_policy(name, PolicySettings(max_staleness=3)).max_staleness == 3
    assert make_policy("guarded", PolicySettings()).max_staleness == Guarded().max_staleness != 3
    assert isinstance(make_policy("full", PolicySettings()), Full)


def test_every_run_gets_a_policy_of_its_own():
    assert make_policy("guarded", PolicySettings()) is not make_policy("guarded", PolicySettings())


def test_an_unknown_policy_lists_the_known_ones():
    with pytest.raises(UnknownNameError, match="Unknown staleness policy 'gaurded'") as caught:
        make_policy("gaurded", PolicySettings())
    assert {"full", "guarded"} <= set(caught.value.known)
    assert isinstance(caught.value, FlashEvolveError)
    assert "'full'" in str(caught.value)


def test_a_policy_without_judge_cannot_be_made():
    with pytest.raises(TypeError, match="judge"):
        type("Lazy", (StalenessPolicy,), {})()
