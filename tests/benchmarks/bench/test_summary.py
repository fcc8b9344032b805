"""Figures from records that were made up, each checked by hand."""

from __future__ import annotations

import math

import pytest

from flashevolve_plugins.benchmarks.bench.plan import Table
from flashevolve_plugins.benchmarks.bench.record import dump, load
from flashevolve_plugins.benchmarks.bench.statistics import interval, ratio
from flashevolve_plugins.benchmarks.bench.summary import by_rival, summarize


@pytest.fixture
def table(pair):
    return Table("made-up", "Made up", "virtual", (pair[0].cell,), ("sequential", "full"), 2)


@pytest.fixture
def figures(table, pair):
    return summarize(by_rival(pair, table), "sequential")[pair[0].cell.title]


def test_a_rival_is_compared_seed_by_seed(figures):
    against = figures["full"].against
    assert against.pairs == 2
    assert against.faster.mean == pytest.approx(4)
    assert against.score.mean == pytest.approx(((0.7 - 0.4) + (0.3 - 0.4)) / 2)  # the first had 0.4 with 90 calls
    assert against.score_in_time.mean == pytest.approx(((0.7 - 0.2) + (0.3 - 0.2)) / 2)  # and 0.2 after 30 seconds
    assert against.first_in_time == pytest.approx(0.2)


def test_everybody_is_also_looked_at_when_the_fastest_is_done(figures):
    assert {name: (each.early_seconds, each.early) for name, each in figures.items()} == {
        "sequential": (30.0, pytest.approx(0.2)),
        "full": (30.0, pytest.approx(0.5)),
    }


def test_a_score_reached_in_half_of_the_seeds_has_a_count_and_no_median(figures):
    assert (figures["full"].against.reached, figures["full"].against.sooner) == (1, None)


def test_a_score_reached_in_most_seeds_has_a_median_in_which_the_others_count_as_never(record, table):
    slow = [(0.0, 10, 0.2), (120.0, 100, 0.6)]
    runs = [record("sequential", seed, slow) for seed in range(3)]
    runs += [record("full", seed, [(0.0, 10, 0.2), (20.0 * (seed + 1), 50, 0.6)]) for seed in range(2)]
    runs.append(record("full", 2, [(0.0, 10, 0.2), (20.0, 50, 0.3)]))
    three = Table("made-up", "Made up", "virtual", table.cells, table.rivals, 3)
    against = summarize(by_rival(runs, three), "sequential")[table.cells[0].title]["full"].against
    assert (against.reached, against.sooner, against.fewer_calls) == (2, 3.0, 2.0)  # of 6, 3 and never


def test_what_a_run_did_alone(figures):
    first, full = figures["sequential"], figures["full"]
    assert first.against is None
    assert (first.proposals, first.accepted, first.sweeps) == (2.0, 1.0, 1.5)  # in two minutes
    assert first.tokens == 50
    assert first.calls_per_tenth == pytest.approx(25)
    assert first.tokens_per_tenth == pytest.approx(1500)
    assert first.most_over == 0
    assert full.window_busy.mean == pytest.approx(0.8)
    assert full.staleness == {0: 1, 1: 1, 2: 3}
    assert full.score == (0.3, 0.5, 0.5, 0.7)


def test_a_run_that_gained_nothing_has_no_price(record, table):
    runs = [record("sequential", seed, [(0.0, 10, 0.2), (60.0, 100, 0.2)]) for seed in range(2)]
    assert summarize(by_rival(runs, table), "sequential")[table.cells[0].title]["sequential"].calls_per_tenth is None


def test_a_rival_without_a_partner_is_not_compared(pair, table):
    figures = summarize(by_rival(pair[2:], table), "sequential")[pair[0].cell.title]
    assert set(figures) == {"full"}
    assert figures["full"].against is None


def test_records_of_other_tables_are_left_out(pair, record, table):
    strangers = [record("guarded", 0, [(0.0, 10, 0.2)]), record("full", 7, [(0.0, 10, 0.2)])]
    assert by_rival([*pair, *strangers], table) == by_rival(pair, table)


def test_an_interval_is_students():
    assert interval([1.0, 2.0, 3.0]) == pytest.approx((2.0, 2 - 4.303 / math.sqrt(3), 2 + 4.303 / math.sqrt(3)))
    assert interval([5.0]) == (5.0, None, None)
    wide = interval([0.0, 1.0] * 21)  # 41 degrees of freedom
    assert wide.high - wide.mean == pytest.approx(2.0195 * 0.50606 / math.sqrt(42), rel=0.001)


def test_a_ratio_is_averaged_by_its_logarithm():
    assert ratio([(2.0, 1.0), (8.0, 1.0)]).mean == pytest.approx(4)
    low, high = ratio([(2.0, 1.0), (8.0, 1.0)])[1:]
    assert low * high == pytest.approx(16)  # as far below as above


def test_a_record_survives_being_kept(pair):
    assert load(dump(pair[2])) == pair[2]
