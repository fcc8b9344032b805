"""What the order of a validation's samples is worth, reckoned from lengths and pools."""

import sys

import pytest

from flashevolve_plugins.benchmarks.bench import early, prefixes, repeats, tails
from flashevolve_plugins.benchmarks.bench.cells import Cell
from flashevolve_plugins.hooks import Evidence, ItemRecord, PoolEntry, Terminal


def test_the_longest_first_ends_a_validation_sooner():
    lengths = [100] * 8 + [1000]
    late, early = tails.seconds(lengths, range(9), 4), tails.seconds(lengths, [8, *range(8)], 4)
    assert early < 0.9 * late
    assert tails.seconds(lengths, range(9), 1) == pytest.approx(tails.seconds(lengths, [8, *range(8)], 1))


def test_the_more_is_known_of_the_lengths_the_sooner_a_validation_ends():
    runs = [tails.validation(seed, 100, 16, 0.5) for seed in range(12)]
    host, one, _, ten, everything = (sum(column) for column in zip(*runs, strict=True))
    assert everything < ten < one < host
    assert tails.validation(3, 50, 8, 0.5) == tails.validation(3, 50, 8, 0.5)


def entry(version, scores):
    return PoolEntry(version, {"value": sum(scores)}, sum(scores) / len(scores), scores=dict(enumerate(scores)))


def test_the_first_part_of_a_validation_is_held_against_the_best_and_against_the_truth():
    rows = [[1.0] * 5 + [0.0] * 5, [1.0] * 4 + [0.5] * 6, [1.0] * 4 + [0.0] * 6, [0.0] * 3 + [1.0] * 7]
    entries = [entry(*each) for each in enumerate(rows, start=1)]
    found = prefixes.judged(entries, lambda artifact: artifact["value"] / 10)
    # The best of the first three has 0.7, and so has the fourth: on the first half it has less, on the other half more.
    assert set(found) == {(name, share) for name in prefixes.ORDERS for share in prefixes.SHARES}
    ((says, better, off),) = found["host", 0.5]
    assert (says, better) == (False, False)
    assert off == pytest.approx(-0.5)
    ((says, _, off),) = found["reorder", 0.5]  # the four that all passed go behind
    assert (says, off) == (True, pytest.approx(0.5))
    ((_, _, off),) = found["host", 1.0]
    assert off == pytest.approx(0.0)


def test_a_repeat_is_the_same_text_from_the_same_candidate_after_a_rejection():
    count = repeats.Repeats()
    gates = [(1, "a", 0), (1, "a", 0), (1, "a", 1), (1, "a", 0), (2, "a", 0), (1, "b", 1), (1, "b", 1)]
    for parent, text, after in gates:
        evidence = Evidence({"part": text}, parent, (0.0,), (float(after),))
        count.flashevolve_item_ended(ItemRecord(1, Terminal.REJECTED, "", 1, 0, 0, (), evidence=evidence))
    count.flashevolve_item_ended(ItemRecord(1, Terminal.SKIPPED, "", 1, 0, 0, ()))
    assert (count.items, count.repeated, count.passed) == (8, 2, 1)


def test_they_print_their_tables(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tails", "--seeds", "2", "--slots", "8"])
    tails.main()
    assert capsys.readouterr().out.count("| 300 |") == len(tails.SHARES)
    options = ["--seeds", "1", "--val", "20", "--calls", "300", "--rivals", "full", "--landscape", "additive"]
    monkeypatch.setattr(sys, "argv", ["prefixes", *options])
    prefixes.main()
    printed = capsys.readouterr().out
    assert "full: additive, h100, 32 slots, valset 20, 300 calls, 1 seeds" in printed
    assert printed.count(" 10% |") == len(prefixes.ORDERS)
    monkeypatch.setattr(sys, "argv", ["repeats", "--seeds", "1", "--calls", "400", "--landscape", "additive"])
    repeats.main()
    assert "| additive | " in capsys.readouterr().out


def test_what_is_admitted_withdrawn_and_stopped_is_counted():
    cell = Cell(val=20, calls=600, slots=8)
    seen = early.watch("full", cell, 2, lambda **given: early.Admissions(0.3, **given))
    assert len(seen.admitted) > len(seen.withdrawn) > 0
    assert any(lead <= 0 for lead in seen.withdrawn)
    assert seen.sweeps > 0
    assert 0 < seen.score < 1
    stopping = early.watch("full", cell, 2, lambda **given: early.Stops(0.5, **given))
    assert stopping.stopped
    assert stopping.admitted == stopping.withdrawn == []


def test_each_share_and_risk_gets_a_row(monkeypatch, capsys):
    options = ["--seeds", "1", "--val", "10", "--calls", "200", "--rivals", "full", "--landscape", "additive"]
    monkeypatch.setattr(sys, "argv", ["early", *options])
    early.main()
    rows = [line.split(" | ")[0] for line in capsys.readouterr().out.splitlines() if line.startswith("| 0.")]
    assert rows == [f"| {each}" for each in (*early.SHARES, *early.RISKS)]
