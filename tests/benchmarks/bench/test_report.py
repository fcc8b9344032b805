"""The report is a function of the records."""

from __future__ import annotations

import pytest

from flashevolve_plugins.benchmarks.bench.pictures import on_grid
from flashevolve_plugins.benchmarks.bench.plan import Table
from flashevolve_plugins.benchmarks.bench.report import report


@pytest.fixture
def table(pair):
    return Table("made-up", "Made up", "virtual", (pair[0].cell,), ("sequential", "full"), 2)


def tables(text):
    """Each Markdown table of a text: first cell of a row to the others."""
    parts = [part.splitlines()[2:] for part in text.split("\n\n") if part.startswith("|")]
    rows = [[[cell.strip() for cell in row.split("|")[1:-1]] for row in part] for part in parts]
    return [{first: others for first, *others in each} for each in rows]


def test_a_cell_has_time_and_score_then_throughput_and_cost(table, pair):
    text, _ = report([table], pair)
    first, second = tables(text)
    assert "### additive, h100, 2 slots, valset 10, 100 calls, virtual time" in text
    assert first["sequential"][:5] == ["2", "120", "1", "0.20", "0.60 (0.60 to 0.60)"]
    assert first["full"][:5] == ["2", "30", "4.0 (4.0 to 4.0)", "0.50", "0.50 (0.30 to 0.70)"]
    assert first["full"][5:] == ["+0.10 (-2.44 to +2.64)", "+0.30 (-2.24 to +2.84)", "1 of 2", "-", "-"]
    assert second["full"][:9] == ["8.00", "4.00", "6.00", "200", "0.50", "0.80", "2", "2 (to 2)", "2.0"]


def test_the_same_figures_are_plain_data(table, pair):
    _, figures = report([table], pair)
    full = figures["made-up"][pair[0].cell.title]["full"]
    assert full["against"]["faster"][0] == pytest.approx(4)
    assert full["score"][1] == pytest.approx(0.5)


def test_several_cells_are_compared_in_one_matrix(pair, record, table):
    from dataclasses import replace

    other = replace(pair[0].cell, landscape="conflicts")
    runs = [*pair, *(replace(each, cell=other) for each in pair[:2])]
    text, _ = report([replace(table, cells=(pair[0].cell, other))], runs)
    assert "| sequential | 0.60 | 0.60 |" in text
    assert "| full | 0.50 (4.0x; 1/2) | - |" in text


def test_a_table_without_runs_says_so(table):
    text, figures = report([table], [])
    assert "No run of this table has been made yet." in text
    assert figures == {}


def test_a_curve_is_a_staircase(pair):
    grid = [0.0, 59.9, 60.0, 200.0]
    assert on_grid(pair[0].curve, lambda point: point.seconds, grid) == [0.2, 0.2, 0.4, 0.6]
    assert on_grid(pair[0].curve, lambda point: point.calls, [0.0, 100.0]) == [0.2, 0.6]
