"""What became of each proposal is in the run directory, and the command tells why."""

import json

import pytest
from item_records import Records

from flashevolve_plugins._audit import FILE, read_items
from flashevolve_plugins._cli import main

POLICIES = ["guarded", "reflective", "merge", "best-first"]


@pytest.fixture
def recorded(kit, tmp_path):
    """A run in a directory of its own, and its records as an observer sees them."""

    def run(policy, calls=300, **options):
        records = Records()
        flash = kit.flash(staleness=policy, max_concurrency=8, plugins=[records])
        made = kit.run(flash, run_dir=str(tmp_path), calls=calls, **options)
        return made, records

    return run


@pytest.fixture
def items(tmp_path, capsys, monkeypatch):
    """What ``flashevolve items`` prints of that directory, in a wide terminal."""
    monkeypatch.setenv("COLUMNS", "500")

    def run(*options):
        assert main(["items", str(tmp_path), *map(str, options)]) == 0
        said = capsys.readouterr()
        assert said.err == ""
        return said.out

    return run


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("options", [{}, {"use_merge": True, "max_merge_invocations": 20}], ids=["plain", "merges"])
def test_every_item_of_a_run_is_recorded_once_as_it_ended(policy, options, recorded, kit, tmp_path):
    run, records = recorded(policy, seed_candidate=kit.TWO, **options)
    ((told,), unread) = read_items(str(tmp_path))
    assert unread == 0
    assert (told.header["policy"], told.header["host"]) == (policy, "gepa, Words")
    assert [item["item"] for item in told.items] == [each.number for each in records.all]
    assert len({item["item"] for item in told.items}) == len(told.items) > 20
    assert sum(item["calls"] for item in told.items) == run.result.total_metric_calls
    candidates = run.result.candidates
    for item, record in zip(told.items, records.all, strict=True):
        assert (item["terminal"], item.get("reason", "")) == (record.terminal.value, record.reason)
        assert tuple(item.get("members", ())) == record.members
        assert item.get("merged_into") == record.merged_into
        checks = [(each["stage"], each["staleness"], each["verdict"]) for each in item.get("checks", ())]
        assert checks == [(each.stage, each.staleness, each.verdict.value) for each in record.checks]
        assert [each["version"] for each in item.get("entries", ())] == list(record.entries)
        if record.evidence is not None:
            parent, changed = candidates[item["parent"] - 1], item.get("changed", {})
            assert {**parent, **changed} == record.evidence.artifact
            assert all(parent[name] != text for name, text in changed.items())
    entries = [entry for item in told.items for entry in item.get("entries", ())]
    assert [entry["score"] for entry in entries] == run.result.val_aggregate_scores


def test_a_rejected_prompt_is_found_by_its_text_and_says_why(recorded, items):
    _, records = recorded("full")
    rejected = records.first(lambda each: each.terminal.value == "rejected" and each.evidence is not None)
    text = rejected.evidence.artifact["a"]
    rows = items("--text", text, "--terminal", "rejected").splitlines()[2:]
    (row,) = [row for row in rows if row.split()[:1] == [str(rejected.number)]]
    assert row.endswith(rejected.reason)
    assert "subsample score" in rejected.reason
    told = items("--item", rejected.number)
    assert f"  reason      {rejected.reason}\n" in told
    assert f"  new text of a\n    {text}\n" in told
    assert "  feedback that led to it\n    component: a\n" in told


def test_a_verdict_is_told_with_the_words_of_the_reflection(recorded, items):
    _, records = recorded("reflective")
    patched = records.first(lambda each: "patch" in [check.verdict.value for check in each.checks])
    told = items("--item", patched.number)
    assert "  check       before validate, stale by " in told
    assert ": patch: read and patched: why not\n" in told


def test_a_merge_tells_its_members_and_a_member_its_merge(recorded, items):
    _, records = recorded("merge")
    merge = records.first(lambda each: len(each.members) > 1 and each.entries)
    told = items("--item", merge.number)
    for number in merge.members:
        assert f"  member      item {number}, merged into {merge.number}\n" in told
    assert f"  entered     pool version {merge.entries[0]}, validation score " in told
    told = items("--item", merge.members[0])
    assert f"  merged into item {merge.number}, committed: merge of " in told


def test_a_resumed_run_is_added_under_a_number_of_its_own(recorded, items):
    first, second = recorded("full", calls=150)[1], recorded("guarded", calls=300)[1]
    found = [json.loads(line) for line in items("--json").splitlines()]
    runs = [[item["item"] for item in found if item["run"] == number] for number in (1, 2)]
    assert runs == [[each.number for each in records.all] for records in (first, second)]
    titles = [line.partition(",")[0] for line in items().splitlines() if line.startswith("Run ")]
    assert titles == ["Run 1 (gepa", "Run 2 (gepa"]
    assert items("--run", 2).startswith("Run 2 (gepa, Words, policy guarded, started ")


def test_a_run_that_the_host_ends_with_an_error_has_its_records(kit, recorded, tmp_path):
    adapter = kit.Words()
    adapter.errors = {"evaluate": lambda number: number == 60}
    run, records = recorded("full", adapter=adapter, raise_on_exception=True, catch=True)
    assert run.error is not None
    ((told,), _) = read_items(str(tmp_path))
    assert [item["item"] for item in told.items] == [each.number for each in records.all]
    assert {"failed", "cancelled"} <= {item["terminal"] for item in told.items}


@pytest.mark.parametrize("lockstep", [False, True], ids=["no run_dir", "lockstep"])
def test_without_a_run_dir_and_in_lockstep_nothing_of_ours_is_written(lockstep, kit, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kit.run(kit.flash(lockstep=lockstep), run_dir=str(tmp_path) if lockstep else None, calls=60)
    assert list(tmp_path.rglob(FILE)) == []
    assert any(tmp_path.iterdir()) is lockstep
