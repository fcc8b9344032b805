"""Several proposers at once, each in a copy of its own; one writer; unique names."""

import json
import shutil
from pathlib import Path

import pytest

from flashevolve_plugins.adapters.meta_harness.private_copy import make_copy


def test_proposers_work_at_once_in_copies_of_their_own(checkout):
    # each of the two waits for the other one to be there
    knobs = {"1": {"waits_for": "waits-2"}, "2": {"waits_for": "waits-1"}}
    checkout.flash("--proposers", "2", "--evaluators", "2", claude=knobs, iterations=2)
    assert len(checkout.summary()) == 2
    places = {checkout.session(each)["cwd"] for each in (1, 2)}
    assert len(places) == 2
    assert not any(place.startswith(str(checkout.example)) for place in places)
    assert len(list((checkout.logs / "claude_sessions").glob("*_iter*"))) == 2


def copy_while(tmp_path, monkeypatch, happens):
    """Copy an example of three agents while something happens to the second one, as soon as the first is copied."""
    agents, logs = tmp_path / "example" / "agents", tmp_path / "example" / "logs"
    for folder in (agents, logs):
        folder.mkdir(parents=True)
    for name in ("a.py", "b.py", "c.py"):
        (agents / name).write_text(name)
    (agents / ".d.py.1-2").write_text("half of")  # another session's, on its way
    copyfile, copied = shutil.copyfile, []

    def copying(source, target, **options):
        copied.append(Path(source).name)
        if len(copied) == 2:
            happens(Path(source))
        return copyfile(source, target, **options)

    monkeypatch.setattr(shutil, "copyfile", copying)
    copy = make_copy(tmp_path / "example", logs, None)
    gone = {"a.py", "b.py", "c.py"} - copy.before.keys()
    copy.remove()
    return gone, copied[1], set(copy.before)


def test_a_copy_is_made_though_a_file_goes_meanwhile(tmp_path, monkeypatch):
    """As that goes under which another session's agent is being written."""
    gone, second, there = copy_while(tmp_path, monkeypatch, Path.unlink)
    assert gone == {second}
    assert len(there) == 2


def test_a_copy_that_lacks_a_file_that_is_there_is_none(tmp_path, monkeypatch):
    def fails(source):
        raise PermissionError(13, "Permission denied", str(source))

    with pytest.raises(shutil.Error, match="Permission denied"):
        copy_while(tmp_path, monkeypatch, fails)


def test_a_proposer_sees_the_summary_and_the_frontier_of_one_moment(checkout):
    checkout.flash("--proposers", "2", "--evaluators", "2", iterations=6)
    for iteration in range(1, 7):
        seen = checkout.session(iteration)
        best = max([row.get("avg_val", row.get("avg_pass_rate")) for row in seen["summary"]], default=0)
        frontier = seen["frontier"]
        known = frontier["_pareto"][0]["val_accuracy"] if checkout.text else frontier["_best"]["avg_pass_rate"]
        assert known >= best - 0.001


def test_a_name_that_two_sessions_choose_stands_for_two_candidates(checkout, tell):
    knobs = {"all": {"name": "same"}, "1": {"score": 0.5}, "2": {"score": 0.9}, "3": {"score": 0.3}}
    checkout.flash("--proposers", "3", claude=knobs, iterations=3)
    scores = {
        row.get("system") or row["agent"]: row.get("avg_val", row.get("avg_pass_rate")) for row in checkout.summary()
    }
    assert scores.keys() == {"p1_same", "p2_same", "p3_same"}
    assert checkout.best() == "p2_same"
    assert len(set(scores.values())) == 3
    published = {path.name for path in (checkout.example / "agents").glob("p*.py")}
    lost = len({"p1_same.py", "p2_same.py", "p3_same.py"} ^ published)
    tell("a name that three sessions choose", tries=2, outcome="three candidates, each with its own scores", lost=lost)


def test_a_name_never_inherits_the_scores_of_an_earlier_one(text):
    text.flash(claude={"all": {"name": "same", "score": 0.9}}, iterations=1)
    (text.logs / "evolution_summary.jsonl").unlink()
    text.flash("--skip-baseline", claude={"all": {"name": "same", "score": 0.3}}, iterations=1)
    (row,) = text.summary()
    assert (row["system"], row["avg_val"]) == ("p1_same_2", 35.0)


def test_delta_says_what_a_candidate_gained(checkout):
    knobs = {"1": {"score": 0.5}, "2": {"score": 0.8}}
    checkout.flash("--proposers", "1", "--evaluators", "1", claude=knobs, iterations=2)  # one after the other
    deltas = [row["delta"] for row in checkout.summary()]
    assert len(deltas) == 2
    assert all(delta > 0 for delta in deltas)


def test_guarded_discards_what_was_made_before_an_improvement(checkout):
    # the second session begins with the first, and ends when the first is in the frontier
    knobs = {"1": {"score": 0.8, "waits_for": "waits-2"}, "2": {"score": 0.9, "waits_for_best": "sys_1"}}
    options = ("--proposers", "2", "--evaluators", "2", "--staleness", "guarded")
    checkout.flash(*options, claude=knobs, iterations=4)
    rows = {row["iteration"]: row for row in checkout.summary()}
    assert rows[2]["outcome"].startswith("discarded: stale by 1")
    assert "p2_sys_2" not in json.dumps(checkout.frontier())
    assert not any("p2_" in each["of"] for each in checkout.evaluated())
    assert not list((checkout.example / "agents").glob("p2_*"))


def test_reflective_sends_a_stale_candidate_back_and_checks_it_again(checkout):
    knobs = {"1": {"score": 0.8, "waits_for": "waits-2"}, "2": {"score": 0.9, "waits_for_best": "sys_1"}}
    options = ("--proposers", "2", "--evaluators", "2", "--staleness", "reflective")
    checkout.flash(*options, claude=knobs, iterations=4)
    again = checkout.session(2, "-again")
    assert len(again["stale"]) == 1
    assert "SCORE = 0.9\n" in again["stale"][0]
    names = {row.get("system") or row.get("agent") for row in again["summary"]}
    assert "p1_sys_1" in names
    assert checkout.best().startswith("p2_sys_2") or not checkout.text
    text = next((checkout.example / "agents").glob("p2_sys_2*.py")).read_text()
    assert "SCORE = 0.91\n" in text


def test_jobs_of_an_evaluation_run_apart(checkout):
    checkout.flash("--evaluators", "4", iterations=1)
    of_candidate = [each for each in checkout.evaluated() if each["of"].startswith("p1_")]
    # two datasets with two seeds and one test for each dataset; or three tasks with two trials and a smoke test
    assert len(of_candidate) == (6 if checkout.text else 7)
    if not checkout.text:
        (folder,) = (checkout.example / "jobs" / "r").glob("evolve-p1_sys_1-t2")
        assert len(list(folder.glob("*__*/result.json"))) == 6


def test_the_proposer_has_no_key_and_the_evaluations_have_it(checkout):
    checkout.flash(iterations=2, variables={"ANTHROPIC_API_KEY": "sk-planted-key-1"})
    assert {checkout.session(each)["key"] for each in (1, 2)} == {None}
    assert {each["key"] for each in checkout.evaluated()} == {"sk-planted-key-1"}


def test_a_prefix_goes_before_proposers_and_evaluations(checkout):
    checkout.flash("--command-prefix", "env WRAPPED=yes", iterations=1)
    assert checkout.session(1)["wrapped"] == "yes"
    assert {each["wrapped"] for each in checkout.evaluated()} == {"yes"}


def test_a_candidate_may_import_a_new_helper(text):
    helper = ["text_classification.agents.shared", "shared.py"]
    text.flash(claude={"1": {"helper": helper}}, iterations=1)
    assert text.summary()[0]["avg_val"] == 40.0
    assert (text.example / "agents" / "shared.py").read_text() == "VALUE = 1\n"


def test_a_helper_of_another_session_is_never_taken_for_ones_own(text):
    helper = {"helper": ["text_classification.agents.shared", "shared.py"]}
    knobs = {"1": {**helper, "waits_for": "waits-2"}, "2": {**helper, "waits_for": "waits-1"}}
    text.flash("--proposers", "2", claude=knobs, iterations=2)
    outcomes = sorted(row["avg_val"] for row in text.summary())
    assert outcomes[0] == 0
    assert outcomes[1] in (40.0, 45.0)


def test_the_checkout_is_not_changed_but_for_what_its_own_loop_writes(checkout):
    before = {path: path.read_bytes() for path in checkout.example.rglob("*") if path.is_file()}
    checkout.flash(iterations=2)
    assert {path for path, data in before.items() if path.read_bytes() != data} == set()
    new = {path.relative_to(checkout.example).parts[0] for path in checkout.example.rglob("*") if path.is_file()}
    assert new <= {path.relative_to(checkout.example).parts[0] for path in before} | {"logs", "jobs", "results"}


def test_a_session_is_shown_what_others_try_and_what_was_proposed(checkout):
    # the second ends once the first has written its idea down; the third begins then, and lets the first go on
    knobs = {"1": {"idea": "a cache\n", "waits_for": "waits-3"}}
    knobs |= {each: {"waits_for": "waits-1"} for each in ("2", "3")}
    checkout.flash("--proposers", "2", "--evaluators", "2", claude=knobs, iterations=3)
    shown = checkout.session(3)["others"]
    assert [(each["name"], each["idea"]) for each in shown["sessions"]] == [("iteration 1", "a cache")]
    (second,) = [*shown["proposed"], *shown["evaluated_since"]]  # it may have been evaluated meanwhile
    assert (second["name"], second["idea"]) == ("p2_sys_2", "idea 2")
    assert second["read"] == [str(checkout.example / "agents" / "p2_sys_2.py")]
    assert all(checkout.session(each)["is_told_of"] for each in (1, 2, 3))
    assert not [*checkout.logs.rglob("under_way.json"), *checkout.logs.rglob("idea.md")]


def test_lockstep_shows_nothing_of_others(checkout):
    checkout.flash("--lockstep", claude={"1": {"idea": "a cache"}}, iterations=2)
    assert {checkout.session(each)["others"] for each in (1, 2)} == {None}
    assert not any(checkout.session(each)["is_told_of"] for each in (1, 2))


def test_an_evaluation_that_trails_is_stopped_and_its_scores_stay_out_of_the_hosts_files(text):
    knobs = {"1": {"score": 0.9}, "2": {"score": 0.1234}, "3": {"score": 0.95}}
    text.flash("--proposers", "1", "--evaluators", "1", "--trailing", claude=knobs, iterations=3)
    rows = {row["iteration"]: row for row in text.summary()}
    assert rows[2]["outcome"] == "rejected: its evaluation was stopped before its end"
    assert "avg_val" not in rows[2]
    assert rows[3]["avg_val"] > rows[1]["avg_val"]
    assert "p2_" not in json.dumps(text.frontier())
    jobs = {number: [each for each in text.evaluated() if each["of"].startswith(f"p{number}_")] for number in (1, 2)}
    assert len(jobs[2]) == 2  # of four
    (item,) = [each for each in text.items().values() if len(each.get("stopped_scores") or []) == 2]
    assert item["terminal"] == "rejected"
    assert not [path for path in text.logs.rglob("val.json") if "p2_sys_2" in str(path)]
