"""What the built-in policies that leave stages early say of what they see."""

import random
from math import fsum

import pytest

from flashevolve_plugins import UsageError
from flashevolve_plugins.hooks import Decided, ItemView, Pool, PoolEntry, Progress, Speculative, Trailing


def view(stage, number=3):
    return ItemView(number, version=1, staleness=0, stage=stage)


def pool_of(*scores):
    pool = Pool()
    for version, each in enumerate(scores, 1):
        mean = fsum(each) / len(each)
        pool.append([PoolEntry(version, f"artifact {version}", mean, scores=dict(enumerate(each)))])
    return pool


def some(scores, total):
    return [*scores, *[None] * (total - len(scores))]


# -- decided --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(200))
def test_decided_never_says_what_the_missing_scores_could_still_change(seed):
    draw = random.Random(seed)
    after, before = ([draw.choice((0.0, 0.25, 0.5, 1.0)) for _ in range(6)] for _ in range(2))
    reaches = draw.random() < 0.5
    passes = fsum(after) >= fsum(before) if reaches else fsum(after) > fsum(before)
    policy, said = Decided(), []
    for known in range(1, 6):
        known_before = draw.randint(known - 1, 6)
        least = fsum(before[:known_before])
        progress = Progress(some(after[:known], 6), range(6), (least, least + 6 - known_before), reaches, hands_on=True)
        said.append(policy.flashevolve_release_stage(view("regate"), progress, Pool()))
    for each in filter(None, said):
        assert each.stops is not passes


def test_decided_stops_at_the_first_score_that_decides_and_not_before():
    policy = Decided()
    for scores, reaches, stops in (
        ([0.0], False, False),
        ([0.0, 0.0], False, True),  # 1 at most, and 1 is to be beaten
        ([0.0, 0.0], True, False),
        ([0.0, 0.0, 0.0], True, True),
    ):
        progress = Progress(some(scores, 3), range(3), (1.0, 1.0), reaches)
        release = policy.flashevolve_release_stage(view("gate"), progress, Pool())
        assert (release is not None) is stops
        assert release is None or (release.stops and "not better than 1" in release.reason)


def test_decided_hands_on_what_passes_only_where_the_item_can_go_on():
    for hands_on in (True, False):
        progress = Progress(some([1.0, 1.0], 3), range(3), (0.5, 1.5), hands_on=hands_on)
        release = Decided().flashevolve_release_stage(view("regate"), progress, Pool())
        assert (release is not None and not release.stops) is hands_on


def test_decided_says_nothing_where_sums_do_not_decide():
    assert Decided().flashevolve_release_stage(view("gate"), Progress([0.0, None], range(2)), Pool()) is None


# -- speculative ----------------------------------------------------------------------------------------------------


def test_an_artifact_is_admitted_from_its_share_on_if_it_is_above_best_and_parents_on_the_same_examples():
    pool = pool_of([0.0] * 10, [0.5] * 4 + [0.0] * 6)  # the second is the best
    policy = Speculative(evaluate=0.4)
    for scores, parents, admitted in (
        ([1.0] * 3, (1,), False),  # too few
        ([1.0] * 4, (1,), True),
        ([0.5] * 4, (1,), False),  # only as good as the best
        ([0.6] * 4, (2,), True),
        ([0.4] * 4, (1,), False),
    ):
        progress = Progress(some(scores, 10), range(10), parents=parents, validates=True)
        assert policy.flashevolve_admit_provisional(progress, pool) is admitted


def test_a_rollout_is_handed_on_with_its_share_and_no_other_stage_is():
    policy = Speculative(rollout=0.6)
    for stage, known, hands_on, released in (
        ("rollout", 1, True, False),
        ("rollout", 2, True, True),
        ("rollout", 2, False, False),
        ("gate", 2, True, False),
    ):
        progress = Progress(some([0.5] * known, 3), range(3), hands_on=hands_on)
        assert (policy.flashevolve_release_stage(view(stage), progress) is not None) is released


# -- trailing -------------------------------------------------------------------------------------------------------


def test_a_validation_is_stopped_where_its_chance_is_below_the_risk():
    best = [0.5, 1.0, 0.5, 1.0] * 5
    pool = pool_of(best)
    policy = Trailing(after=0.5, risk=0.05)

    def stopped(difference, known, number=3):
        scores = [each - difference + 0.1 * (-1) ** place for place, each in enumerate(best[:known])]
        progress = Progress(some(scores, 20), range(20), validates=True)
        return policy.flashevolve_release_stage(view("validate", number), progress, pool) is not None

    assert not stopped(0.4, 9)  # before its share
    assert stopped(0.4, 10)
    assert not stopped(0.0, 10)
    assert not stopped(-0.4, 10)
    pool.admit_provisionally(PoolEntry(0, "new", 1.0, item=3))
    assert not stopped(0.4, 10)  # it is built on
    assert stopped(0.4, 10, number=4)


@pytest.mark.parametrize(("differs", "stops"), [(0.0, False), (-0.1, True), (0.1, False)])
def test_where_all_that_is_known_differs_by_the_same_a_tie_is_not_taken_for_a_loss(differs, stops):
    pool, known = pool_of([0.5] * 8), [0.5 + differs] * 2
    asked = Progress(some(known, 8), range(8), validates=True)
    released = Trailing(after=0.25, risk=0.05).flashevolve_release_stage(view("validate"), asked, pool)
    assert (released is not None) is stops


def test_no_more_than_the_risk_is_stopped_of_what_would_end_above_the_best():
    """Of artifacts no better or worse than the best on average, half end above it: 5 % of these at most are stopped."""
    wrong = ended_above = 0
    for seed in range(600):
        draw = random.Random(seed)
        best, new = ([draw.random() for _ in range(60)] for _ in range(2))
        pool, policy = pool_of(best), Trailing(after=0.5, risk=0.05)
        if fsum(new) <= fsum(best):
            continue
        ended_above += 1
        progress = Progress(some(new[:30], 60), range(60), validates=True)
        wrong += policy.flashevolve_release_stage(view("validate"), progress, pool) is not None
    assert ended_above > 200
    assert wrong <= 0.05 * ended_above


@pytest.mark.parametrize(
    ("kind", "option", "allowed"),
    [
        (Speculative, {"evaluate": 0}, "a share above 0 and up to 1"),
        (Speculative, {"rollout": 1.5}, "a share above 0 and up to 1"),
        (Speculative, {"evaluate": "half"}, "a share above 0 and up to 1"),
        (Trailing, {"after": float("nan")}, "a share above 0 and up to 1"),
        (Trailing, {"risk": True}, "a number from 0 to 0.5"),
        (Trailing, {"risk": 0.6}, "a number from 0 to 0.5"),
    ],
)
def test_an_option_that_cannot_work_is_refused_with_policy_option_and_what_is_allowed(kind, option, allowed):
    ((name, value),) = option.items()
    with pytest.raises(UsageError) as refused:
        kind(**option)
    assert str(refused.value) == f"{kind.__name__}({name}={value!r}) must be {allowed}."
