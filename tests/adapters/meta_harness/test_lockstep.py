"""In lockstep an example's run is its own loop's: the same candidates, scores and files."""

import json

import pytest

CASES = {
    "plain": ({}, {}),
    "names that collide": ({"all": {"name": "same"}}, {}),
    "failures": ({"1": {"fails": 1}, "2": {"no_pending": 1}, "3": {"bad_import": 1}}, {}),
    "evaluations that fail": ({}, {"sys_2": {"fails": "second"}, "sys_3": {"fails": "hard"}}),
}


@pytest.mark.parametrize("case", CASES)
def test_lockstep_is_the_hosts_own_loop(checkout, make_checkout, tmp_path, case, told):
    claude, uv = CASES[case]
    other = make_checkout(tmp_path / "other", checkout.example)
    checkout.own_loop(claude=claude, uv=uv, iterations=3)
    other.flash("--lockstep", claude=claude, uv=uv, iterations=3)
    own, ours = told(checkout), told(other)
    assert own.keys() == ours.keys()
    assert {name: (own[name], ours[name]) for name in own if own[name] != ours[name]} == {}
    assert checkout.evaluated() == other.evaluated()
    assert "evolution_summary.jsonl" in str(own.keys()) or case == "failures"


def test_a_run_begun_by_one_loop_goes_on_with_the_other(text):
    text.own_loop(iterations=2)
    text.flash(iterations=2)
    text.own_loop(iterations=1)
    assert [row["iteration"] for row in sorted(text.summary(), key=lambda row: row["iteration"])] == [1, 2, 3, 4, 5]
    names = ["sys_1", "sys_2", "p3_sys_3", "p4_sys_4", "sys_5"]
    assert sorted(row["system"] for row in text.summary()) == sorted(names)


def test_a_line_that_was_cut_off_gets_no_company(text):
    text.own_loop(iterations=1)
    path = text.logs / "evolution_summary.jsonl"
    path.write_text(path.read_text().rstrip("\n"))
    text.flash(iterations=1)
    assert [row["iteration"] for row in text.summary()] == [1, 2]
    assert json.loads(path.read_text().splitlines()[1])["system"] == "p2_sys_2"
