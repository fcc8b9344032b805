"""A stale candidate is carried onto what is best now, without another session of its proposer."""

import json

import pytest
from harness_task import Evaluator, Proposer, Validator, manifests, run

from flashevolve_plugins import Flash
from flashevolve_plugins.adapters.meta_harness.three_way import Carried, carry
from flashevolve_plugins.adapters.meta_harness.watching import partial_scores
from flashevolve_plugins.hooks import Merge, hookimpl

TEXT = "one\ntwo\nthree\nfour\nfive\n"


class Lines(Evaluator):
    """The score is how many lines are in capitals."""

    def evaluate(self, workspace):
        from metaharness import EvaluationResult

        self.evaluated.append(workspace.parent.name)
        lines = (workspace / "lines.txt").read_text().split()
        return EvaluationResult(float(sum(each.isupper() for each in lines)))


class Capitals(Proposer):
    """Its n-th candidate writes the words of its own in capitals; c0001 is ready first."""

    def __init__(self, *words, **options):
        super().__init__(steps=lambda n: 0, seconds=lambda n: 3.0 + n, **options)
        self.words = words

    def invoke(self, request):
        path = request.workspace_dir / "lines.txt"
        text = path.read_text()
        for word in self.words[int(request.candidate_id[1:]) - 1].split():
            text = text.replace(word, word.upper())
        path.write_text(text)
        return super().invoke(request)


class Records:
    def __init__(self):
        self.checks = {}

    @hookimpl
    def flashevolve_item_ended(self, record):
        self.checks[record.number] = record.checks


def carrying(tmp_path, *words, staleness="merge", **options):
    """A run whose candidates all begin at once, the evaluator, and the judgements of each, in their order."""
    (tmp_path / "baseline").mkdir(parents=True)
    (tmp_path / "baseline" / "lines.txt").write_text(TEXT)
    records, evaluator, proposer = Records(), Lines(), Capitals(*words)
    flash = Flash(
        max_concurrency=4,
        reflection_concurrency=4,
        staleness=staleness,
        clock="virtual",
        progress=False,
        plugins=[records],
    )
    result, folder = run(tmp_path, flash, budget=len(words), proposer=proposer, evaluator=evaluator, **options)
    checks = [records.checks[number] for number in sorted(records.checks)][1:]  # the first is the baseline's
    return result, folder, evaluator, proposer, checks


def test_a_change_of_another_place_goes_onto_what_is_best_now(tmp_path):
    result, folder, evaluator, proposer, checks = carrying(tmp_path, "one", "three", "five")
    assert result.best_objective == 3
    assert checks[2]
    assert (result.best_workspace_dir / "lines.txt").read_text() == "ONE\ntwo\nTHREE\nfour\nFIVE\n"
    assert proposer.sessions == {1: 1, 2: 1, 3: 1}
    assert evaluator.evaluated.count("c0002") == evaluator.evaluated.count("c0003") == 1
    told = manifests(folder)
    assert [told[name]["parent_candidate_ids"] for name in ("c0002", "c0003")] == [["c0001"], ["c0002"]]
    assert [[(each.verdict.value, each.reason) for each in of] for of in checks] == [
        [],
        [("patch", "stale by 1: its change was carried onto what is best now")],
        [("patch", "stale by 1: its change was carried onto what is best now")] * len(checks[2]),
    ]
    kept = folder / "candidates/c0002/rebased/1"
    assert (kept / "workspace/lines.txt").read_text() == TEXT.replace("three", "THREE")
    assert "+THREE" in (kept / "proposal/workspace.diff").read_text()
    diff = (folder / "candidates/c0002/proposal/workspace.diff").read_text()
    changed = [line for line in diff.splitlines() if line[0] in "+-" and not line.startswith(("---", "+++"))]
    assert changed == ["-three", "+THREE"]  # against what it was carried onto
    assert json.loads((folder / "candidates/c0002/proposal/result.json").read_text())["applied"]


def test_what_was_carried_is_checked_again(tmp_path):
    class Never(Validator):
        def validate(self, workspace):
            from metaharness import ValidationResult

            lines = (workspace / "lines.txt").read_text()
            return ValidationResult(not ("ONE" in lines and "THREE" in lines), "both")

    result, folder, evaluator, *_ = carrying(tmp_path, "one", "three", validator=Never())
    assert "c0002" not in evaluator.evaluated
    assert manifests(folder)["c0002"]["valid"] is False
    assert result.best_candidate_id == "c0001"


def test_changes_that_meet_are_tried_as_they_were_made(tmp_path):
    _, folder, _, _, checks = carrying(tmp_path, "one", "one two")
    assert (folder / "candidates/c0002/workspace/lines.txt").read_text() == "ONE\nTWO\nthree\nfour\nfive\n"
    ((check,),) = (of for of in checks if of)
    assert check.verdict.value == "accept"
    assert check.reason == "stale by 1, goes on as it was made: lines.txt was changed in the same place"
    assert manifests(folder)["c0002"]["parent_candidate_ids"] == ["c0000"]


def test_a_change_that_the_best_holds_already_is_not_evaluated(tmp_path):
    _, folder, evaluator, _, _ = carrying(tmp_path, "one", "one")
    assert "c0002" not in evaluator.evaluated
    told = manifests(folder)["c0002"]
    assert (told["outcome"], told["outcome_summary"]) == ("discard", "what is best now holds its change already")


def test_a_merge_policy_of_ones_own_carries_and_keeps_its_limit(tmp_path):
    *_, checks = carrying(tmp_path / "many", "one", "three", "five", staleness=Merge(max_items=3))
    assert any(checks)
    result, *_, checks = carrying(tmp_path / "one", "one", "three", "five", staleness=Merge(max_items=1))
    assert not any(checks)  # one after the other: nothing is stale
    assert result.best_objective == 3


B = b"1\n2\n3\n4\n5\n"


@pytest.mark.parametrize(
    ("theirs", "ours", "files"),
    [
        ({"a": B}, {"a": b"x"}, {}),
        ({"a": B, "new": b"n"}, {"a": b"x"}, {"new": b"n"}),
        ({}, {"a": B, "new": b"n"}, {"a": None}),
        ({"a": b"0\n" + B}, {"a": B + b"6\n"}, {"a": b"0\n" + B + b"6\n"}),
        ({"a": B, "__pycache__/a.pyc": b"1"}, {"a": B, "__pycache__/a.pyc": b"2"}, {}),
        ({"a": b"x"}, {"a": b"x", "b": b"y"}, {}),
    ],
)
def test_what_one_side_alone_has_changed_is_carried(theirs, ours, files):
    assert carry({"a": B}, theirs, ours) == Carried(files)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"a": B + b"6\n"}, {"a": B + b"7\n"}),
        ({}, {"a": B + b"7\n"}),
        ({"a": B + b"6\n"}, {}),
        ({"a": b"\0" + B}, {"a": B + b"\0"}),
    ],
)
def test_what_both_sides_have_changed_is_a_conflict(theirs, ours):
    assert carry({"a": B}, theirs, ours) == Carried(conflict="a was changed in the same place")


def test_two_new_files_of_one_name_are_a_conflict():
    assert carry({}, {"a": b"x"}, {"a": b"y"}).conflict == "a was changed in the same place"


def test_without_git_nothing_is_carried_and_the_reason_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert carry({"a": B}, {"a": b"0\n" + B}, {"a": B + b"6\n"}).conflict == "there is no git here, which merges texts"


def test_partial_scores_are_those_of_the_jobs_that_have_ended():
    from metaharness import EvaluationResult

    from flashevolve_plugins.adapters.meta_harness.host import Ran

    results = [EvaluationResult(0.25), Ran(ok=True, score=0.5), Ran(ok=False), True, 3, None, "text", float("nan")]
    assert partial_scores(results) == [0.25, 0.5, None, 1.0, 3.0, None, None, None]
