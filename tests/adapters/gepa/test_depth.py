"""Policies that decide what is validated: what the host and its user see of merges, patches and what waits."""

import pytest
from item_records import Records

from flashevolve_plugins import Flash
from flashevolve_plugins.hooks import Judgement, Merge, StalenessPolicy, Verdict


@pytest.fixture
def recorded(kit):
    """A run under a policy, and its records."""

    def run(staleness="merge", *, calls=400, **options):
        records = Records()
        settings = {"max_concurrency": 16, "staleness": staleness, "plugins": [records]}
        made = kit.run(kit.flash(**settings), calls=calls, **options)
        kit.check(made, calls)
        return made, records

    return run


def seeds_with_merges(recorded, kit, **options):
    found = [recorded(seed=seed, seed_candidate=kit.TWO, **options) for seed in range(6)]
    found = [(run, records) for run, records in found if records.merges]
    assert len(found) > 2
    return found


def test_a_merged_candidate_has_all_its_members_parents_and_an_iteration_of_its_own(recorded, kit):
    for run, records in seeds_with_merges(recorded, kit):
        of = {record.number: record for record in records.all}
        accepted = {event["new_candidate_idx"]: event for event in run.callbacks.named("on_candidate_accepted")}
        for merge in records.merges:
            (version,) = merge.entries
            members = [of[number] for number in merge.members]
            expected = {merge.evidence.parent - 1, *(each.evidence.parent - 1 for each in members)}
            assert set(run.result.parents[version - 1]) == expected
            assert set(accepted[version - 1]["parent_ids"]) == expected
            assert run.result.parents[version - 1][0] == merge.evidence.parent - 1
            assert [each.terminal.value for each in members] == ["merged"] * len(members)
            assert {each.merged_into for each in members} == {merge.number}
        assert len(run.trace) == len(records.all) - 1  # every item but the seed is one iteration, merges included


def test_a_merge_is_gated_on_the_minibatches_of_all_its_members(recorded, kit):
    for run, records in seeds_with_merges(recorded, kit):
        of = {record.number: record for record in records.all}
        for merge in records.merges:
            examples = {each for number in merge.members for each in of[number].evidence.examples}
            assert set(merge.evidence.examples) == examples
            base = run.result.candidates[merge.evidence.parent - 1]
            assert list(merge.evidence.before) == [kit.score(each, base) for each in merge.evidence.examples]
            assert list(merge.evidence.after) == [
                kit.score(each, merge.evidence.artifact) for each in merge.evidence.examples
            ]


def test_what_waits_pays_for_fewer_validations_than_it_has_members(recorded, kit):
    for run, records in seeds_with_merges(recorded, kit):
        merged = records.ended("merged")
        assert len(run.result.candidates) == len(records.ended("committed"))
        assert sum(len(each.members) for each in records.merges) == len(merged) >= len(records.merges)


def test_changes_to_different_components_are_merged_without_a_call(kit, recorded):
    texts = {"a": "ant cat elk", "b": "bee doe fox"}

    def propose(candidate, reflective_dataset, components):
        return {name: texts[name] for name in components}

    run, records = recorded(
        seed_candidate=kit.TWO, custom_candidate_proposer=propose, calls=200, staleness=Merge(max_batch=8)
    )
    proposed = [record.evidence.artifact for record in records.ended("merged")]
    assert texts not in proposed  # each has one component alone, and no model is there that could be called
    assert [each for each in records.merges if each.evidence.artifact == texts]
    assert texts in run.result.candidates
    assert not records.ended("failed")


def test_without_a_reflection_model_it_goes_on_with_the_best_that_waits(kit, recorded):
    def propose(candidate, reflective_dataset, components):
        luck = kit.chance("proposal", candidate, reflective_dataset)
        return {name: " ".join(luck.sample(kit.WORDS, 3)) for name in components}

    policy = Merge()
    run, records = recorded(custom_candidate_proposer=propose, staleness=policy)
    assert not policy.merges
    assert len(run.result.candidates) > 2
    assert not records.ended("failed")


def test_where_a_validation_is_cheap_nothing_waits(recorded):
    run, records = recorded(valset=[100, 101, 102], calls=120)
    assert len(run.result.candidates) > 2
    assert not any("queue" in record.story for record in records.all)


def test_a_merge_whose_text_is_no_candidate_fails_alone_and_its_members_wait_again(recorded):
    class Broken(Merge):
        def _write(self, ask, current, changes):
            return {"z": "?"}

    _, records = recorded(staleness=Broken(), calls=200, raise_on_exception=False)
    failed = records.ended("failed")
    assert failed
    assert all(record.members and "no candidate with the components" in record.reason for record in failed)
    assert records.ended("committed")


def test_texts_that_are_none_fail_their_merge(recorded):
    class Numbers(Merge):
        def _write(self, ask, current, changes):
            return dict.fromkeys(current, 5)

    run, records = recorded(staleness=Numbers(), calls=200, raise_on_exception=False)
    assert records.ended("failed")
    assert all("no candidate with the components" in record.reason for record in records.ended("failed"))
    assert all(isinstance(text, str) for _, candidate in run.adapter.batches for text in candidate.values())


def test_where_the_model_cannot_merge_it_goes_on_with_the_best_that_waits(kit, recorded):
    class Mute(kit.Reflection):
        def merge(self, prompt, luck):
            return "I would rather not."

    for seed in range(3):
        policy = Merge()
        run, records = recorded(staleness=policy, seed=seed, reflection=Mute())
        assert not policy.merges
        assert len([record for record in records.all if "answered twice" in record.reason]) < 8
        assert len(run.result.candidates) > 2


def test_a_proposal_whose_merges_failed_is_validated_by_itself_where_its_parent_is_still_the_best(kit, recorded):
    class Once(Merge):
        """Cannot merge several."""

        merges = True

        def _write(self, ask, current, changes):
            assert len(changes) == 1
            return super()._write(ask, current, changes)

    alone = 0
    for seed in range(4):
        _, records = recorded(staleness=Once(), seed=seed, candidate_selection_strategy="current_best")
        assert not any("Duplicate" in record.reason for record in records.all if record.members)
        alone += sum(any("back" in step for step in record.story) for record in records.ended("committed"))
    assert alone


def test_a_merge_may_come_to_the_text_of_one_of_its_members(kit, recorded):
    class Choosing(Merge):
        """Keeps one of the changes."""

        def _write(self, ask, current, changes):
            return dict(max(changes, key=lambda change: kit.value(change.after)).after)

    kit.value = lambda candidate: sum(kit.score(each, candidate) for each in range(12))
    chosen = 0
    for seed in range(4):
        run, records = recorded(staleness=Choosing(), seed=seed)
        of = {record.number: record for record in records.all}
        assert not any("Duplicate" in record.reason for record in records.all if len(record.members) > 1)
        for merge in records.merges:
            chosen += any(merge.evidence.artifact == of[number].evidence.artifact for number in merge.members)
        contents = [tuple(candidate.items()) for candidate in run.result.candidates]
        assert len(set(contents)) == len(contents)
    assert chosen


def test_long_changes_are_merged_in_smaller_prompts(kit, recorded):
    class Verbose(kit.Reflection):
        longest = 0

        def answer(self, prompt):
            if len(prompt) > 100_000:
                type(self).longest = max(self.longest, len(prompt))
            answer = super().answer(prompt)
            return answer.replace("\n```", f"\n{self.calls}{'x' * 40_000}\n```") if "````" not in answer else answer

    for seed in range(3):
        recorded(seed=seed, reflection=Verbose())
    assert Verbose.longest < 200_000


class Patching(StalenessPolicy):
    """Makes something else of every stale proposal that has evidence, once."""

    def judge(self, item, pool):
        if item.evidence is None or item.patches:
            return self.accept()
        best = max(pool.entries, key=lambda entry: entry.score)
        return self.patch({**best.artifact, "a": f"{best.artifact['a']} ant bee"}, "as I see it")


def test_a_patched_proposal_is_made_from_the_best_and_passes_the_gate_again(recorded, kit):
    patched = 0
    for seed in range(4):
        run, records = recorded(staleness=Patching(), seed=seed)
        for record in records.all:
            checks = [check for check in record.checks if check.verdict is Verdict.PATCH]
            if not checks:
                continue
            assert record.story.count("regate") <= 1 == len(checks)
            assert checks[0].reason == "as I see it"
            assert not any(stage == "validate" for stage in record.story[: record.story.index("regate")][:-2])
            if record.terminal.value == "committed":
                patched += 1
                (version,) = record.entries
                candidate = run.result.candidates[version - 1]
                assert candidate["a"].endswith("ant bee")
                assert sum(record.evidence.after) > sum(record.evidence.before)
    assert patched


def test_a_patch_that_changes_nothing_ends_the_item(recorded):
    class Same(StalenessPolicy):
        def judge(self, item, pool):
            if item.evidence is None:
                return self.accept()
            return self.patch(dict(max(pool.entries, key=lambda entry: entry.score).artifact), "it is there")

    _, records = recorded(staleness=Same())
    skipped = [record for record in records.ended("skipped") if record.checks]
    assert skipped
    assert {record.reason for record in skipped} == {"nothing of it is left to change on the current best"}


def test_a_patch_without_evidence_fails_its_item_in_one_sentence(recorded):
    class Early(StalenessPolicy):
        def judge(self, item, pool):
            return Judgement(Verdict.PATCH, "too early", {"a": "x"}) if item.evidence is None else self.accept()

    _, records = recorded(staleness=Early(), raise_on_exception=False)
    failed = records.ended("failed")
    assert failed
    assert all("has no evidence yet" in record.reason for record in failed)


def test_a_run_of_merges_goes_on_where_it_was(kit, tmp_path):
    first = kit.run(kit.flash(staleness="merge"), calls=200, run_dir=str(tmp_path))
    more = kit.run(kit.flash(staleness="merge"), calls=400, run_dir=str(tmp_path))
    assert more.result.candidates[: len(first.result.candidates)] == first.result.candidates
    assert len(more.result.candidates) > len(first.result.candidates)
    assert more.result.total_metric_calls <= 400


def test_the_reflection_model_is_the_host_s_own(kit):
    class Counting(kit.Reflection):
        merges = verdicts = 0

        def merge(self, prompt, luck):
            type(self).merges += 1
            return super().merge(prompt, luck)

        def judge(self, prompt, luck):
            type(self).verdicts += 1
            return super().judge(prompt, luck)

    for policy in ("merge", "reflective"):
        kit.run(kit.flash(staleness=policy, max_concurrency=16), calls=400, reflection=Counting())
    assert Counting.merges > 2
    assert Counting.verdicts > 2


def test_lockstep_knows_no_queue(kit):
    for policy in ("merge", "reflective", "best-first"):
        runs = [
            kit.run(executor, calls=150) for executor in (None, Flash(progress=False, lockstep=True, staleness=policy))
        ]
        kit.assert_same(*runs)
