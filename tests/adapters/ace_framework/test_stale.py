"""Operations on a skill that has changed since its curator read it: the policy decides, and the rest lands anyway."""

import threading

import pytest
from framework_task import NumberModel, book_of, contents, counters, make_ace, make_dedup, make_samples, run

from flashevolve_plugins import Flash
from flashevolve_plugins.hooks import hookimpl

OLD = "strategies-00001"
UPDATE = {"type": "UPDATE", "section": "", "skill_id": OLD, "content": "sharpest"}
REMOVE = {"type": "REMOVE", "section": "", "skill_id": OLD}


class Watch:
    """Keeps records, and says when the pool has grown."""

    def __init__(self):
        self.records, self.applied = [], threading.Event()

    @hookimpl
    def flashevolve_item_ended(self, record):
        self.records.append(record)

    @hookimpl
    def flashevolve_pool_updated(self, entry):
        if entry.version > 1:
            self.applied.set()


def stale(policy, second, *, folds=(), first="sharper", verdict="discard"):
    """Two curations of one skillbook: the first changes ``old``; the second adds, and does what ``second`` says."""
    read, watch = threading.Barrier(2), Watch()

    def operations(learned, prompt):
        assert f"{OLD}\tstrategies\told" in prompt
        read.wait(60)
        if learned == ["rule 0"]:
            return [{**UPDATE, "content": first}] if first else [REMOVE]
        assert watch.applied.wait(60)
        add = {"type": "ADD", "section": "strategies", "content": learned[0]}
        update = {"reasoning": "", "operations": [add, *second]}
        return {"update": update, "consolidation_operations": list(folds)}

    model = NumberModel(operations, verdict=verdict)
    flash = Flash(progress=False, plugins=[watch], evaluate="example", max_concurrency=2, staleness=policy)
    dedup = make_dedup(enabled=False) if folds else None
    ace = make_ace(model, executor=flash, dedup=dedup, skillbook=book_of("old", "older"))
    results = run(ace, make_samples(2))
    assert [each.step for each in results] == [1, 2]
    (judged,) = [record for record in watch.records if record.number == 2]
    return ace, judged, model


@pytest.mark.parametrize(("second", "left"), [(UPDATE, ["older", "rule 1", "sharpest"]), (REMOVE, ["older", "rule 1"])])
def test_full_lets_it_through(second, left):
    ace, record, _ = stale("full", [second])
    assert contents(ace) == left
    assert record.terminal.value == "committed"
    assert [(check.stage, check.staleness, check.verdict.value) for check in record.checks] == [("apply", 1, "accept")]


@pytest.mark.parametrize("second", [UPDATE, REMOVE])
def test_guarded_drops_it_and_the_addition_lands(second):
    ace, record, _ = stale("guarded", [second])
    assert contents(ace) == ["older", "rule 1", "sharper"]
    assert (record.terminal.value, record.entries) == ("discarded", (3,))


def test_the_counters_of_an_update_that_is_dropped_count():
    ace, _, _ = stale("guarded", [{**UPDATE, "metadata": {"helpful": 2}}])
    assert counters(ace)["sharper"] == (2, 0, 0)


def test_a_tag_of_a_skill_that_has_changed_is_no_conflict():
    ace, record, _ = stale("guarded", [{"type": "TAG", "section": "", "skill_id": OLD, "metadata": {"harmful": 2}}])
    assert counters(ace)["sharper"] == (0, 2, 0)
    assert record.checks == ()


def test_an_update_of_what_was_removed_is_a_conflict():
    ace, record, _ = stale("guarded", [UPDATE], first=None)
    assert contents(ace) == ["older", "rule 1"]
    assert record.terminal.value == "discarded"


def test_the_reflective_policy_reads_it():
    ace, record, model = stale("reflective", [UPDATE])
    assert contents(ace) == ["older", "rule 1", "sharper"]
    assert record.reason == "read and discarded: it was sharpened meanwhile"
    (prompt,) = [prompt for role, prompt in model.calls if role == "judge"]
    for text in ("old", "sharper", "sharpest", "insight 1"):
        assert text in prompt


@pytest.mark.parametrize("second", [UPDATE, REMOVE])
def test_a_patch_is_what_the_skill_becomes(second):
    ace, record, _ = stale("reflective", [second], verdict="patch")
    assert contents(ace) == ["older", "rule 1", "sharper and sharpest"]
    assert record.terminal.value == "committed"


FOLD = {"type": "MERGE", "source_ids": [OLD, "strategies-00002"], "keep_id": "strategies-00002"}


@pytest.mark.parametrize(
    ("fold", "full"),
    [
        ({**FOLD, "merged_content": "both"}, ["both", "rule 1"]),
        ({**FOLD, "keep_id": OLD, "merged_content": "both"}, ["both", "rule 1"]),
        ({**FOLD, "keep_id": OLD}, ["rule 1", "sharper"]),
        ({"type": "DELETE", "skill_id": OLD}, ["older", "rule 1"]),
        ({"type": "UPDATE", "skill_id": OLD, "new_content": "apart"}, ["apart", "older", "rule 1"]),
    ],
)
def test_a_consolidation_of_what_has_changed_is_a_conflict(fold, full):
    assert contents(stale("full", [], folds=[fold])[0]) == full
    ace, record, _ = stale("guarded", [], folds=[fold])
    assert contents(ace) == ["older", "rule 1", "sharper"]
    assert record.terminal.value == "discarded"


def test_a_deletion_is_a_conflict_where_something_else_has_gone():
    """That may be what made the deleted one redundant."""
    ace, record, _ = stale("guarded", [], folds=[{"type": "DELETE", "skill_id": "strategies-00002"}], first=None)
    assert contents(ace) == ["older", "rule 1"]
    assert record.terminal.value == "discarded"


def test_the_reflective_policy_reads_a_consolidation():
    ace, _, model = stale("reflective", [], folds=[{**FOLD, "keep_id": OLD, "merged_content": "both"}])
    assert contents(ace) == ["older", "rule 1", "sharper"]
    (prompt,) = [prompt for role, prompt in model.calls if role == "judge"]
    assert "both" in prompt


def test_a_decision_to_keep_both_is_no_conflict():
    ace, record, _ = stale("guarded", [], folds=[{"type": "KEEP", "skill_ids": [OLD, "strategies-00002"]}])
    assert ace.skillbook.has_keep_decision(OLD, "strategies-00002")
    assert record.checks == ()


def test_with_a_merge_queue_the_second_curator_reads_what_the_first_has_written():
    read = []

    def operations(learned, prompt):
        read.append(sorted(set(prompt.split("BOOK\n")[1].split()) & {"old", "sharper"}))
        return [{**UPDATE, "content": "sharper"}] if learned == ["rule 0"] else [REMOVE]

    flash = Flash(progress=False, evaluate="example", max_concurrency=1, staleness="merge")
    ace = make_ace(NumberModel(operations), executor=flash, skillbook=book_of("old"))
    run(ace, make_samples(2))
    assert read == [["old"], ["sharper"]]
    assert contents(ace) == []
