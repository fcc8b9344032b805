"""What is noted of a run: requests in flight, pool changes, and what TurboGEPA evaluated."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from flashevolve_plugins.benchmarks import Landscape
from flashevolve_plugins.benchmarks.bench.observer import Gauge, Observer, shares
from flashevolve_plugins.benchmarks.bench.turbo import Watch
from flashevolve_plugins.benchmarks.presets import SEED_INSTRUCTION


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_requests_in_flight_are_averaged_over_parts_of_the_run(clock):
    gauge = Gauge(clock)
    for at, by in ((1.0, 1), (2.0, 1), (2.5, -1), (4.0, -1)):
        clock.now = at
        gauge.change(by)
    assert gauge.means(5.0, 5) == pytest.approx([0.0, 1.0, 1.5, 1.0, 0.0])
    assert gauge.means(5.0, 1) == pytest.approx([3.5 / 5])
    assert (gauge.requests, gauge.most) == (2, 2)
    assert gauge.integral(lambda level: level**2, 1.5, 3.0) == pytest.approx(0.5 + 4 * 0.5 + 0.5)
    assert gauge.means(0.0, 2) == [0.0, 0.0]


def validated(number, parents, score, text):
    return {"candidate_idx": number, "parent_ids": parents, "average_score": score, "candidate": {"it": text}}


def test_the_curve_follows_the_best_by_validation_and_its_ancestors(clock):
    true = {"seed": 0.2, "lucky": 0.1, "good": 0.6}
    observer = Observer(clock, lambda: int(10 * clock.now), lambda candidate: true[candidate["it"]])
    for at, event in (
        (1.0, validated(0, [], 0.3, "seed")),
        (2.0, validated(1, [0], 0.5, "lucky")),
        (3.0, validated(2, [1], 0.4, "good")),  # better in truth, but not by validation
        (4.0, validated(3, [2, 1], 0.9, "good")),
    ):
        clock.now = at
        observer.on_valset_evaluated(event)
    assert observer.curve == [(1.0, 10, 0.2), (2.0, 20, 0.1), (3.0, 30, 0.1), (4.0, 40, 0.6)]
    assert (observer.best, observer.depth, observer.counts["sweeps"]) == (0.9, 3, 4)


def test_the_stages_of_a_synchronous_host_fill_its_time(clock):
    observer = Observer(clock, int, None)
    for seconds, event in (
        (4.0, ("on_valset_evaluated", validated(0, [], 0.3, "seed"))),
        (0.0, ("on_iteration_start", {})),
        (1.0, ("on_evaluation_end", {"candidate_idx": 0})),
        (2.0, ("on_proposal_end", {})),
        (1.0, ("on_evaluation_end", {"candidate_idx": None})),
        (8.0, ("on_valset_evaluated", validated(1, [0], 0.4, "new"))),
        (0.0, ("on_iteration_end", {})),
    ):
        clock.now += seconds
        getattr(observer, event[0])(event[1])
    assert shares(observer.stages) == pytest.approx(
        {"validate": 0.75, "rollout": 1 / 16, "propose": 1 / 8, "gate": 1 / 16, "other": 0.0}
    )
    assert observer.curve[-1].score == 0.4  # no true score is known
    assert shares({}) == {}


def test_the_curve_of_turbogepa_follows_what_it_holds_for_the_best():
    landscape = Landscape()
    rule = landscape.book[0].statement
    watch = Watch(landscape, 2, 5)
    seed = SimpleNamespace(text=SEED_INSTRUCTION, fingerprint="s", meta={})
    child = SimpleNamespace(text=rule, fingerprint="c", meta={"parent": "s"})
    for candidate, example in ((seed, "a"), (child, "a"), (seed, "b"), (seed, "b")):
        watch.note(candidate, example)
    assert (watch.sweeps, watch.best_text, watch.depth, len(watch.curve)) == (1, SEED_INSTRUCTION, 0, 1)
    assert not watch.spent.is_set()
    watch.pick = lambda: (rule, 0.4)
    watch.note(child, "b")
    assert (watch.calls, watch.proposals, watch.sweeps) == (5, 1, 2)
    assert (watch.best, watch.best_text, watch.depth) == (0.4, rule, 1)
    assert watch.curve[-1].calls == 5
    assert watch.curve[-1].score == landscape.true_score(rule) > watch.curve[0].score
    assert watch.spent.is_set()
