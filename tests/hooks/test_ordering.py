"""In which order the built-in policies let a validation's samples start, and what a run makes of a wrong answer."""

import pytest

from flashevolve_plugins import PluginError, UsageError
from flashevolve_plugins.hooks import (
    ExampleView,
    Full,
    LongestFirst,
    Pool,
    Reorder,
    SampleOrder,
    hookimpl,
)
from flashevolve_plugins.hooks.manager import RunHooks


def examples(*histories):
    """An example for each list of scores, oldest first."""
    return [ExampleView(place, dict(enumerate(scores, start=1))) for place, scores in enumerate(histories)]


def test_what_passed_three_times_in_a_row_goes_behind_the_rest_and_comes_back_when_it_fails():
    seen = [[1, 1, 1], [1, 1], [0, 1, 1, 1], [1, 1, 1, 0], [1, 0.9, 1, 1], []]
    assert Reorder().order(examples(*seen), Pool()) == [1, 3, 4, 5, 0, 2]
    seen[0].append(0)
    assert Reorder().order(examples(*seen), Pool()) == [0, 1, 3, 4, 5, 2]


def test_window_and_passing_score_are_options():
    seen = [[0.5], [0.4], [0.5, 0.4], [0.4, 0.5]]
    assert Reorder(window=1, passed=0.5).order(examples(*seen), Pool()) == [1, 2, 0, 3]


def test_what_took_longest_starts_first_and_what_is_not_known_counts_as_the_mean():
    seconds = (1.0, None, 5.0, 3.5, 5.0, None)
    order = LongestFirst().order([ExampleView(place, {}, each) for place, each in enumerate(seconds)], Pool())
    assert order == [2, 4, 1, 5, 3, 0]  # the mean is 3.625


def test_before_anything_is_known_the_order_is_the_hosts():
    for policy in (Reorder(), LongestFirst()):
        assert [*policy.order(examples([], [], []), Pool())] == [0, 1, 2]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Reorder(window=0), r"Reorder\(window=0\) must be a whole number of at least 1"),
        (lambda: Reorder(passed="all"), r"Reorder\(passed='all'\) must be a score, such as 1.0"),
        (lambda: Reorder(passed=float("nan")), r"Reorder\(passed=nan\) must be a score"),
        (lambda: Reorder(passed=True), r"Reorder\(passed=True\) must be a score"),
    ],
)
def test_an_option_that_cannot_work_is_told_in_one_sentence(make, sentence):
    with pytest.raises(UsageError, match=sentence):
        make()


class Answering(SampleOrder):
    def __init__(self, answer):
        self.answer = answer

    def order(self, examples, pool):
        return self.answer


class Silent:
    @hookimpl
    def flashevolve_order_samples(self):
        return None


def test_the_first_answer_wins_and_nobody_has_to_answer():
    shown = examples([], [])
    assert not RunHooks(Full()).orders
    assert RunHooks(Full()).order_samples("validate", shown, Pool()) is None
    hooks = RunHooks(Full(), [Answering([1, 0]), Silent()])
    assert hooks.orders
    assert hooks.order_samples("validate", shown, Pool()) == [1, 0]
    assert RunHooks(Full(), [Silent()]).order_samples("validate", shown, Pool()) is None


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ([0], "it must hold each position from 0 to 1 once"),
        ([0, 0], "it must hold each position from 0 to 1 once"),
        ([1, 2], "it must hold each position from 0 to 1 once"),
        ([True, False], "not all of its positions are whole numbers"),
        ("01", "not all of its positions are whole numbers"),
        ({0, 1}, "not a Sequence"),
    ],
)
def test_what_is_no_permutation_is_told_with_plugin_and_hook(answer, problem):
    with pytest.raises(PluginError, match=problem) as caught:
        RunHooks(Full(), [Answering(answer)]).order_samples("validate", examples([], []), Pool())
    assert caught.value.hook == "flashevolve_order_samples"
    assert "Plugin 'Answering#1' raised in flashevolve_order_samples for 2 examples of validate" in str(caught.value)
