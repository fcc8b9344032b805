"""The token clock, fed with times by hand."""

from __future__ import annotations

import math
import random
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashevolve_plugins.benchmarks.server.latency import LatencyModel, OutputLengths, TokenClock
from flashevolve_plugins.benchmarks.server.profiles import PROFILES

MODEL = LatencyModel(base_token_time=0.01, half_batch=4, max_num_seqs=2, prefill_ratio=0.1)


def test_a_lone_request_takes_prefill_and_output_at_the_lone_rate() -> None:
    clock = TokenClock(MODEL)
    key = clock.submit(5.0, prompt_tokens=100, output_tokens=40)
    assert clock.next_time() == pytest.approx(5.0 + (10 + 40) * 0.01 * 1.25)
    assert clock.advance(5.6) == []
    (end,) = clock.advance(100.0)
    assert (end.key, end.mark, end.finished) == (key, 1, True)
    assert end.time == pytest.approx(5.625)
    assert clock.next_time() is None
    assert clock.slot_seconds == pytest.approx(0.625)


def test_requests_slow_each_other_down_only_while_both_run() -> None:
    clock = TokenClock(MODEL)
    clock.submit(0.0, 0, 100)
    clock.submit(0.0, 0, 50)
    short, long = clock.advance(10.0)
    assert short.time == pytest.approx(50 * 0.015)
    assert long.time == pytest.approx(50 * 0.015 + 50 * 0.0125)


def test_above_the_cap_requests_wait_in_the_order_they_came() -> None:
    clock = TokenClock(MODEL)
    keys = [clock.submit(0.0, 0, tokens) for tokens in (10, 20, 10, 1)]
    assert (clock.running, clock.waiting) == (2, 2)
    ends = clock.advance(10.0)
    assert [end.key for end in ends] == [keys[0], keys[1], keys[2], keys[3]]
    assert ends[1].time == pytest.approx(ends[2].time)
    assert (clock.running, clock.waiting) == (0, 0)


def test_an_abort_frees_the_slot_at_once() -> None:
    clock = TokenClock(MODEL)
    first, second, third, fourth = (clock.submit(0.0, 0, 1000) for _ in range(4))
    assert clock.abort(1.0, third)
    assert (clock.running, clock.waiting) == (2, 1)
    assert clock.abort(1.0, first)
    assert (clock.running, clock.waiting) == (2, 0)
    assert not clock.abort(1.0, first)
    assert [end.key for end in clock.advance(1e6)] == [second, fourth]


def test_marks_come_at_equal_parts_of_the_output() -> None:
    clock = TokenClock(LatencyModel(base_token_time=0.5, half_batch=1, prefill_ratio=1))
    clock.submit(0.0, prompt_tokens=2, output_tokens=8, marks=4)
    reached = clock.advance(100.0)
    assert [progress.time for progress in reached] == pytest.approx([4.0, 6.0, 8.0, 10.0])
    assert [progress.finished for progress in reached] == [False, False, False, True]


def test_a_time_scale_of_zero_answers_at_once_in_order() -> None:
    clock = TokenClock(LatencyModel(time_scale=0, max_num_seqs=1))
    keys = [clock.submit(3.0, 10, 500) for _ in range(3)]
    assert clock.next_time() == 3.0
    assert [end.key for end in clock.advance(3.0)] == keys
    assert clock.next_time() is None


def test_a_clock_that_goes_back_changes_nothing() -> None:
    clock = TokenClock(MODEL, now=10.0)
    clock.submit(9.0, 0, 100)
    assert clock.advance(8.0) == []
    assert clock.next_time() == pytest.approx(10.0 + 100 * 0.0125)


def brute_force(model: LatencyModel, jobs: list[tuple[float, int, float | None]]) -> list[float | None]:
    """Return when each (arrival, tokens, abort time) ends, by counting every job's work down."""
    left = {index: float(tokens) for index, (_, tokens, _) in enumerate(jobs)}
    ends: list[float | None] = [None] * len(jobs)
    changes = sorted(
        [(arrival, 1, index) for index, (arrival, _, _) in enumerate(jobs)]
        + [(abort, 0, index) for index, (_, _, abort) in enumerate(jobs) if abort is not None]
    )
    running: list[int] = []
    waiting: list[int] = []
    now = 0.0
    while changes or running:
        rate = model.token_time(len(running))
        due = min((now + left[index] * rate for index in running), default=float("inf"))
        until = min(due, changes[0][0] if changes else float("inf"))
        for index in running:
            left[index] -= (until - now) / rate
        now = until
        if due <= until:
            index = min(running, key=lambda one: left[one])
            running.remove(index)
            ends[index] = now
        else:
            _, arrives, index = changes.pop(0)
            if arrives:
                waiting.append(index)
            else:
                running = [one for one in running if one != index]
                waiting = [one for one in waiting if one != index]
        while waiting and len(running) < model.max_num_seqs:
            running.append(waiting.pop(0))
    return ends


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(1, 400), st.none() | st.integers(1, 60)), min_size=1, max_size=12
    ),
    st.integers(1, 5),
    st.lists(st.floats(0, 80), max_size=10),
)
def test_the_clock_agrees_with_counting_every_job_down(
    rows: list[tuple[int, int, int | None]], cap: int, glances: list[float]
) -> None:
    model = LatencyModel(base_token_time=0.1, half_batch=3, max_num_seqs=cap, prefill_ratio=0)
    # odd fractions keep arrivals, aborts and ends apart, so that the order of equal times doesn't matter
    jobs = [
        (at + 0.0137 * number, tokens, None if wait is None else at + wait + 0.00719 * number)
        for number, (at, tokens, wait) in enumerate(rows)
    ]
    clock = TokenClock(model)
    steps: list[tuple[float, str, int]] = [(arrival, "submit", number) for number, (arrival, _, _) in enumerate(jobs)]
    steps += [(abort, "abort", number) for number, (_, _, abort) in enumerate(jobs) if abort is not None]
    steps += [(time, "glance", 0) for time in glances]
    keys: dict[int, int] = {}
    times: dict[int, float] = {}
    for time, what, number in sorted(steps):
        if what == "submit":
            keys[number] = clock.submit(time, 0, jobs[number][1])
        elif what == "abort":
            clock.abort(time, keys[number])
        times.update((end.key, end.time) for end in clock.advance(time))
        assert clock.running <= cap
        assert clock.running == cap or not clock.waiting
    times.update((end.key, end.time) for end in clock.advance(1e9))
    expected = brute_force(model, jobs)
    assert {keys[number]: end for number, end in enumerate(expected) if end is not None} == pytest.approx(times)


def test_output_lengths_have_the_mean_after_the_cut() -> None:
    lengths = OutputLengths()
    median, source = lengths.median(), random.Random(1)
    drawn = [lengths.draw(source, median) for _ in range(60_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(699, rel=0.02)
    assert max(drawn) == 6000
    assert min(drawn) >= 1
    assert sum(length == 6000 for length in drawn) < 0.02 * len(drawn)


def test_a_share_of_the_lengths_belongs_to_the_example() -> None:
    lengths, plain = OutputLengths(maximum=10**9, share=0.5), OutputLengths(maximum=10**9)
    median, source = lengths.median(), random.Random(1)
    examples = [source.gauss(0, 1) for _ in range(4_000)]
    first, second = ([math.log(lengths.draw(source, median, each)) for each in examples] for _ in range(2))
    assert statistics.correlation(first, second) == pytest.approx(0.5, abs=0.05)
    assert statistics.stdev(first) == pytest.approx(lengths.sigma, rel=0.05)
    assert [plain.draw(random.Random(2), median, each) for each in (-3.0, 0.0, 3.0)] == [
        lengths.draw(random.Random(2), median)
    ] * 3


@pytest.mark.parametrize(("mean", "sigma", "maximum"), [(50, 0.0, 50), (50, 0.0, 90), (80, 2.0, 100), (1, 0.5, 10)])
def test_output_lengths_reach_odd_means_too(mean: float, sigma: float, maximum: int) -> None:
    lengths = OutputLengths(mean, sigma, maximum)
    median, source = lengths.median(), random.Random(2)
    drawn = [lengths.draw(source, median) for _ in range(20_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(mean, abs=0.02 * maximum)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (LatencyModel, {"base_token_time": -1}),
        (LatencyModel, {"time_scale": float("nan")}),
        (LatencyModel, {"prefill_ratio": float("inf")}),
        (LatencyModel, {"half_batch": 0}),
        (LatencyModel, {"max_num_seqs": 0}),
        (OutputLengths, {"mean": 7000}),
        (OutputLengths, {"mean": 0}),
        (OutputLengths, {"sigma": -1}),
        (OutputLengths, {"share": 1.1}),
        (OutputLengths, {"share": -0.1}),
    ],
)
def test_a_parameter_out_of_its_range_is_refused(kind: Any, values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must"):
        kind(**values)


def test_the_first_token_and_slowness_are_work_of_the_request() -> None:
    model = LatencyModel(base_token_time=0.1, half_batch=1e12, prefill_ratio=0.5, first_token=2.0)
    clock = TokenClock(model)
    clock.submit(0.0, prompt_tokens=4, output_tokens=10)
    assert clock.next_time() == pytest.approx(2.0 + 0.2 + 1.0)
    clock = TokenClock(model)
    clock.submit(0.0, prompt_tokens=4, output_tokens=10, slowness=3.0)
    assert clock.next_time() == pytest.approx(3 * 3.2)
    assert LatencyModel(base_token_time=0.0, first_token=2.0).prefill(0) == 0.0


def test_slowness_varies_as_the_spread_says() -> None:
    source = random.Random(5)
    assert LatencyModel().draw_slowness(source) == 1.0
    assert source.random() == random.Random(5).random()  # nothing was drawn
    logs = [math.log(LatencyModel(spread=0.67).draw_slowness(source)) for _ in range(4000)]
    assert sum(logs) / len(logs) == pytest.approx(0, abs=0.04)
    assert math.sqrt(sum(each**2 for each in logs) / len(logs)) == pytest.approx(0.67, abs=0.03)


def test_the_profiles_are_as_fast_as_the_figures_they_name() -> None:
    h100, api, laptop = (PROFILES[name].latency for name in ("h100", "api", "laptop"))
    assert 1 / h100.token_time(1) == pytest.approx(99, abs=1)
    assert 256 / h100.token_time(256) == pytest.approx(8500, rel=0.01)
    assert api.token_time(1) == pytest.approx(api.token_time(64)) == pytest.approx(1 / 60)
    assert math.exp(1.645 * api.spread) == pytest.approx(3, rel=0.01)
    assert 1 / laptop.token_time(1) == pytest.approx(41, abs=0.5)
    assert 4 * laptop.token_time(1) / laptop.token_time(4) == pytest.approx(1.94, abs=0.02)
