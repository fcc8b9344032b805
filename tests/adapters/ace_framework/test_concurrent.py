"""Many turns at once: nothing is lost, nothing counts twice, one writer."""

import json
import threading

import pytest
from framework_task import (
    NumberModel,
    add_all,
    anything,
    book_of,
    contents,
    counters,
    make_ace,
    make_dedup,
    make_samples,
    run,
    shown,
    timeless,
)

from flashevolve_plugins import Flash
from flashevolve_plugins.hooks import Aggregate

POLICIES = ["full", "guarded", "reflective", "best-first", "merge", "aggregate"]


def flash(**settings):
    return Flash(progress=False, **{"evaluate": "example", "max_concurrency": 4, "staleness": "full", **settings})


def together(number, role="manager"):
    """The first so many calls of a role wait for each other, so that all of them have read the same skillbook."""
    barrier, left, lock = threading.Barrier(number), [number], threading.Lock()

    def reached(called, prompt):
        if called != role:
            return
        with lock:
            left[0] -= 1
            waits = left[0] >= 0
        if waits:
            barrier.wait(60)

    return reached


def test_every_addition_of_curations_from_one_skillbook_lands_under_an_id_of_its_own():
    def operations(learned, prompt):
        assert shown(prompt) == ["strategies-00001"]
        add = {"type": "ADD", "section": "strategies", "skill_id": "strategies-00001"}
        return [{**add, "content": rule} for rule in learned] + [{**add, "content": "again", "skill_id": "mine-00007"}]

    ace = make_ace(NumberModel(operations, reached=together(4)), executor=flash(), skillbook=book_of("old"))
    results = run(ace, make_samples(4))
    assert len(results) == 4
    assert contents(ace) == ["again"] * 4 + ["old"] + [f"rule {n}" for n in range(4)]
    assert list(ace.skillbook._skills) == [f"strategies-{n:05d}" for n in range(1, 10)]
    assert ace.skillbook._sections == {"strategies": list(ace.skillbook._skills)}


def test_counting_on_passes_over_ids_that_are_taken():
    book = book_of()
    book.add_skill("strategies", "taken", skill_id="strategies-00002")
    ace = make_ace(NumberModel(), executor=flash(), skillbook=book)
    run(ace, make_samples(4))
    assert contents(ace) == [f"rule {n}" for n in range(4)] + ["taken"]


def test_every_tag_of_reflections_and_of_curations_counts():
    tags = {"type": "TAG", "section": "", "skill_id": "strategies-00001", "metadata": {"helpful": 2, "neutral": 1}}
    ace = make_ace(
        NumberModel(lambda learned, prompt: [tags], reached=together(4)),
        executor=flash(),
        skillbook=book_of("rule 3"),
    )
    run(ace, make_samples(1, first=3) * 4)
    assert counters(ace) == {"rule 3": (4 + 4 * 2, 0, 4)}


def test_counters_that_an_update_sets_are_increments():
    def operations(learned, prompt):
        assert "\t1\t0\t0" in prompt.split("BOOK\n")[1]  # the curator sees what its own turn has tagged
        update = {"type": "UPDATE", "section": "", "skill_id": "strategies-00001"}
        return [{**update, "metadata": {"helpful": 3}}, {**update, "metadata": {"helpful": 5, "harmful": 1}}]

    ace = make_ace(NumberModel(operations, reached=together(3)), executor=flash(), skillbook=book_of("rule 3"))
    run(ace, make_samples(1, first=3) * 3)
    assert counters(ace) == {"rule 3": (3 * 5, 3, 0)}  # each: one by its reflection, four by its curator


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("clock", ["local", "virtual"])
def test_a_run_learns_every_rule_and_counts_every_tag(policy, clock):
    ace = make_ace(NumberModel(), executor=flash(max_concurrency=16, staleness=policy, clock=clock))
    results = run(ace, make_samples(40), epochs=2)
    assert sorted((each.epoch, each.step) for each in results) == [(e, n) for e in (1, 2) for n in range(1, 41)]
    assert set(contents(ace)) == {f"rule {n}" for n in range(40)}
    learned = sum(len(each.reflection.extracted_learnings) for each in results)
    assert len(contents(ace)) == learned
    assert sum(each[0] for each in counters_of_all(ace)) == sum(len(each.reflection.skill_tags) for each in results)
    assert len(ace._recent_reflections) == 3
    assert ace.skillbook.as_prompt() in {each.skillbook_snapshot for each in results}


def counters_of_all(ace):
    return [(skill.helpful, skill.harmful, skill.neutral) for skill in ace.skillbook.skills(include_invalid=True)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("policy", POLICIES)
def test_operations_of_every_kind_leave_a_sound_skillbook(policy, seed):
    model = NumberModel(anything(seed))
    ace = make_ace(
        model, executor=flash(max_concurrency=8, staleness=policy), dedup=make_dedup(similarity_threshold=0.9)
    )
    results = run(ace, make_samples(30))
    book = ace.skillbook
    filed = [name for names in book._sections.values() for name in names]
    assert sorted(filed) == sorted(book._skills)
    assert all(skill.id == name for name, skill in book._skills.items())
    added = {f"rule {n}" for n in range(30)}
    assert {skill.content for skill in book.skills(include_invalid=True)} & added
    assert len(results) > 15


def test_virtual_runs_repeat_themselves():
    def once():
        ace = make_ace(
            NumberModel(anything(5)),
            executor=flash(max_concurrency=8, clock="virtual"),
            dedup=make_dedup(similarity_threshold=0.9),
        )
        results = run(ace, make_samples(30))
        return timeless(ace.skillbook), [(each.step, each.skillbook_snapshot) for each in results]

    assert once() == once()


def test_a_merge_is_one_call_with_all_lessons_and_each_sample_gets_its_result():
    model = NumberModel()
    ace = make_ace(model, executor=flash(staleness=Aggregate(group=4)))
    results = run(ace, make_samples(4))
    (several,) = [prompt for role, prompt in model.calls if role == "manager"]
    for n in range(4):
        assert f"question: question {n}\n" in several
        assert f'"learning": "rule {n}"' in several
        assert f"about {n}" in several
    assert "PROGRESS epoch 1/1 · sample " in several
    assert sorted(each.step for each in results) == [1, 2, 3, 4]
    assert contents(ace) == [f"rule {n}" for n in range(4)]
    assert len({id(each.skill_manager_output) for each in results}) == 1


def test_an_operation_of_a_merge_that_the_host_cannot_apply_costs_nothing_else(caplog):
    def operations(learned, prompt):
        wrong = {"type": "ADD", "section": " ", "content": "of no section"}
        return [wrong] * (len(learned) > 1) + add_all(learned, prompt)

    ace = make_ace(
        NumberModel(operations, reached=together(4, "reflector")), executor=flash(staleness=Aggregate(group=4))
    )
    assert len(run(ace, make_samples(4))) == 4
    assert contents(ace) == [f"rule {n}" for n in range(4)]
    assert caplog.text.count("An operation for several samples was dropped: IndexError") == 1


# -- deduplication --------------------------------------------------------------------------------------------------


def folding(*folds):
    """Curations from one skillbook, each with its own consolidation, by the number of its sample."""

    def operations(learned, prompt):
        number = int(learned[0].split()[1])
        return {"update": {"reasoning": "", "operations": []}, "consolidation_operations": [folds[number]]}

    model = NumberModel(operations, reached=together(len(folds)))
    book = book_of("old", "older")
    book.tag_skill("strategies-00002", "helpful", 3)
    ace = make_ace(model, executor=flash(), skillbook=book, dedup=make_dedup(similarity_threshold=0.9))
    assert len(run(ace, make_samples(len(folds)))) == len(folds)
    return ace


MERGE = {"type": "MERGE", "source_ids": ["strategies-00001", "strategies-00002"], "keep_id": "strategies-00001"}


def test_a_consolidation_lands_on_the_live_skillbook():
    ace = folding({**MERGE, "merged_content": "both"}, {"type": "KEEP", "skill_ids": ["strategies-00001", "x-00001"]})
    assert counters(ace) == {"both": (3, 0, 0)}
    assert ace.skillbook.get_skill("strategies-00002").status == "invalid"
    assert ace.skillbook.has_keep_decision("strategies-00001", "x-00001")


def test_what_two_curations_merge_is_counted_once():
    assert counters(folding(MERGE, MERGE)) == {"old": (3, 0, 0)}


def test_of_two_curations_that_merge_each_others_way_one_skill_stays():
    ace = folding(MERGE, {**MERGE, "keep_id": "strategies-00002"})
    assert [each[0] for each in counters(ace).values()] == [3]


def test_texts_are_embedded_in_copies_and_kept_in_the_skillbook():
    embedded = []
    ace = make_ace(NumberModel(), executor=flash(max_concurrency=1), dedup=make_dedup(embedded), skillbook=book_of("a"))
    run(ace, make_samples(4))
    assert sorted(embedded) == ["a", "rule 0", "rule 1", "rule 2"]
    assert [skill.content for skill in ace.skillbook.skills() if skill.embedding is None] == ["rule 3"]


def test_a_skill_manager_that_changes_what_it_is_given_changes_a_copy():
    def operations(learned, prompt):
        return add_all(learned, prompt)

    ace = make_ace(NumberModel(operations), executor=flash())
    update = ace.skill_manager.update_skills

    def changes(*, skillbook, **given):
        assert skillbook is not ace.skillbook
        skillbook.add_skill("mine", "of the copy")
        return update(skillbook=skillbook, **given)

    ace.skill_manager.update_skills = changes
    run(ace, make_samples(3))
    assert contents(ace) == [f"rule {n}" for n in range(3)]


def test_the_pool_version_counts_deltas_that_changed_something():
    settings = flash()
    ace = make_ace(NumberModel(lambda learned, prompt: []), executor=settings, skillbook=book_of("rule 2"))
    assert len(run(ace, make_samples(5))) == 5
    assert settings.last_run.version == 2  # the tag of one reflection
    assert settings.last_run.ended == {"committed": 1, "skipped": 4}


def test_checkpoints_are_the_live_skillbook_after_so_many_results(tmp_path):
    ace = make_ace(NumberModel(), executor=flash())
    run(ace, make_samples(10), checkpoint_interval=4, checkpoint_dir=str(tmp_path / "kept"))
    files = {each.name: json.loads(each.read_text()) for each in (tmp_path / "kept").iterdir()}
    assert set(files) == {"ace_checkpoint_4.json", "ace_checkpoint_8.json", "ace_latest.json"}
    assert len(files["ace_checkpoint_4.json"]["skills"]) >= 4
    assert files["ace_latest.json"] == files["ace_checkpoint_8.json"]
