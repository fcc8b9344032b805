"""What is known is not paid for again: evaluations, where the user says so, and what a gate rejected."""

from collections import Counter

import pytest
from gepa.utils.stop_condition import MaxCandidateProposalsStopper
from item_records import Records

from flashevolve_plugins import UsageError
from flashevolve_plugins.hooks import StalenessPolicy

ONE_SET = {"trainset": list(range(10)), "valset": None}
ONE_BY_ONE = {"max_items": 1, "reflection_concurrency": 1}


@pytest.fixture
def proposals(kit):
    """A run of so many proposals, however many calls they take."""

    def run(count, *, staleness="full", seed=0, **options):
        stop = MaxCandidateProposalsStopper(count)
        flash = kit.flash(staleness=staleness, **options.pop("settings", ONE_BY_ONE))
        made = kit.run(flash, calls=100_000, seed=seed, stop_callbacks=[stop], **options)
        if "adapter" not in options:
            kit.check(made, 100_000)
        return made

    return run


def evaluations(run):
    """How often each candidate was evaluated on each example."""
    return Counter((each, tuple(sorted(candidate.items()))) for batch, candidate in run.evaluated for each in batch)


def same(one, other):
    assert one.result.candidates == other.result.candidates
    assert one.state.prog_candidate_val_subscores == other.state.prog_candidate_val_subscores
    assert len(one.result.candidates) > 2


@pytest.mark.parametrize("sets", [ONE_SET, {**ONE_SET, "valset": list(range(10))}], ids=["one", "two"])
def test_what_a_validation_found_is_not_evaluated_again_in_rollouts(proposals, kit, sets):
    for seed in range(3):
        plain = proposals(20, seed=seed, **sets)
        known = proposals(20, seed=seed, cache_evaluation=True, **sets)
        same(plain, known)
        start = tuple(sorted(kit.ONE.items()))
        often = evaluations(known)
        assert max(count for (_, candidate), count in often.items() if candidate != start) == 1
        assert max(often.values()) <= 2  # the seed is validated without traces
        assert known.adapter.calls == known.state.total_num_evals == known.last.spent
        assert known.adapter.calls < plain.adapter.calls
        assert known.last.spared > 0 == plain.last.spared


def test_what_a_rollout_found_is_not_evaluated_again_in_the_next_one(proposals):
    plain, known = (proposals(30, trainset=list(range(4)), cache_evaluation=cached) for cached in (False, True))
    same(plain, known)
    assert max(evaluations(known).values()) == 1
    assert plain.adapter.calls - known.adapter.calls == known.last.spared


def test_ids_that_overlap_are_not_mistaken_for_the_same_examples(proposals):
    for staleness in ("full", "merge"):
        plain, known = (
            proposals(30, staleness=staleness, cache_evaluation=cached, trainset=list(range(10)))
            for cached in (False, True)
        )
        same(plain, known)


def test_a_merge_takes_from_what_is_known_of_its_base(kit):
    spared = regates = 0
    for seed in range(4):
        records = Records()
        flash = kit.flash(staleness="merge", max_concurrency=16, plugins=[records])
        run = kit.run(flash, calls=400, seed=seed, cache_evaluation=True, **ONE_SET)
        kit.check(run, 400)
        for record in records.merges:
            base = run.result.candidates[record.evidence.parent - 1]
            assert list(record.evidence.before) == [kit.score(each, base) for each in record.evidence.examples]
            regates += 1
        spared += run.last.spared
    assert regates > 4
    assert spared > 100


def test_rollouts_of_an_example_are_known_together(proposals):
    settings = {"rollouts": 2, **ONE_BY_ONE}
    plain, known = (proposals(15, settings=settings, cache_evaluation=cached, **ONE_SET) for cached in (False, True))
    same(plain, known)
    assert max(evaluations(known).values()) <= 4
    assert known.last.spared % 2 == 0 < known.last.spared


def test_what_has_no_traces_is_evaluated_again(proposals, kit):
    class Half(kit.Words):
        def evaluate(self, batch, candidate, capture_traces=False):
            evaluation = super().evaluate(batch, candidate, capture_traces)
            if capture_traces and batch[0] % 2:
                evaluation.trajectories = []
            return evaluation

    run = proposals(30, adapter=Half(), cache_evaluation=True, trainset=list(range(4)))
    often = evaluations(run)
    assert max(count for (example, _), count in often.items() if example in {0, 2}) == 1
    assert max(count for (example, _), count in often.items() if example in {1, 3}) > 1


@pytest.mark.parametrize("evaluate", ["batch", "serial"])
def test_whole_batches_are_not_known(proposals, evaluate):
    settings = {"evaluate": evaluate, **ONE_BY_ONE}
    run = proposals(10, settings=settings, cache_evaluation=True, **ONE_SET)
    assert run.last.spared == 0


@pytest.mark.parametrize("staleness", ["full", "merge"])
@pytest.mark.parametrize("remembers", [False, True])
def test_a_run_that_finds_nothing_new_comes_to_its_end(kit, staleness, remembers):
    class Perfect(kit.Words):
        def evaluate(self, batch, candidate, capture_traces=False):
            evaluation = super().evaluate(batch, candidate, capture_traces)
            evaluation.scores = [1.0] * len(batch)
            return evaluation

    for adapter in (Perfect(), kit.Words()):
        flash = kit.flash(staleness=staleness, remember_rejected=remembers)
        run = kit.run(flash, calls=100, adapter=adapter, reflection=Stubborn(), cache_evaluation=True, **ONE_SET)
        assert 80 < run.adapter.calls == run.state.total_num_evals <= 100  # another one needs 16
        assert run.last.spared > 100


def test_the_oldest_evaluations_are_forgotten_first(proposals, monkeypatch):
    monkeypatch.setattr("flashevolve_plugins.adapters.gepa.known.MOST", 5)
    few = proposals(20, cache_evaluation=True, **ONE_SET)
    monkeypatch.undo()
    many = proposals(20, cache_evaluation=True, **ONE_SET)
    same(few, many)
    assert few.last.spared < many.last.spared


# -- what a gate rejected ---------------------------------------------------------------------------------------------


class Stubborn:
    """Proposes the same text, which helps nobody."""

    calls = 0

    def __call__(self, prompt):
        self.calls += 1
        return "```\nnothing\n```"


def test_what_a_gate_rejected_is_rejected_at_once_where_it_is_proposed_again(proposals):
    records = Records()
    settings = {"remember_rejected": True, "plugins": [records], **ONE_BY_ONE}
    run = proposals(6, settings=settings, reflection=Stubborn())
    rejected = records.ended("rejected")
    assert len(rejected) == 6
    assert [("gate" in record.story) for record in rejected] == [True] + [False] * 5
    reason = "Duplicate of a proposal from the same candidate, which was not better on its minibatch"
    assert {record.reason for record in rejected[1:]} == {reason}
    assert len([line for line in run.lines if reason in line]) == 5
    assert len([event for event in run.callbacks.named("on_evaluation_skipped") if reason in event["reason"]]) == 5
    assert run.last.spared == 5 * 3
    assert run.adapter.calls == run.state.total_num_evals == 10 + 6 * 3 + 3


def test_by_default_it_gets_another_minibatch(proposals):
    run = proposals(6, reflection=Stubborn())
    assert run.last.spared == 0
    assert run.adapter.calls == 10 + 6 * 6


def test_another_parent_or_another_text_is_not_rejected_for_it(proposals):
    for seed in range(3):
        records = Records()
        proposals(40, seed=seed, settings={"remember_rejected": True, "plugins": [records], **ONE_BY_ONE})
        seen = set()
        for record in records.ended("rejected"):
            if record.evidence is not None and "gate" in record.story:
                key = (record.evidence.parent, tuple(record.evidence.artifact.items()))
                assert key not in seen
                seen.add(key)
        assert seen


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"remember_rejected": 1}, "remember_rejected=1 must be True or False"),
        ({"remember_rejected": True, "lockstep": True}, "remember_rejected=True does not go with lockstep=True"),
    ],
)
def test_a_value_that_cannot_work_is_told(kit, settings, sentence):
    with pytest.raises(UsageError, match=sentence):
        kit.flash(**settings)


# -- the same text is validated once ----------------------------------------------------------------------------------


class ToOneText(StalenessPolicy):
    """Makes the same text of every stale proposal."""

    def judge(self, item, pool):
        if item.evidence is None or item.patches:
            return self.accept()
        best = max(pool.entries, key=lambda entry: entry.score)
        return self.patch({**best.artifact, "a": "ant bee cat doe elk fox gnu hen"}, "as ever")


@pytest.mark.parametrize("staleness", [ToOneText, "merge", "best-first"])
def test_the_same_text_is_validated_once_also_where_it_was_patched_or_merged(kit, staleness):
    repeated = 0
    for seed in range(4):
        records = Records()
        policy = staleness() if isinstance(staleness, type) else staleness
        run = kit.run(
            kit.flash(staleness=policy, max_concurrency=16, plugins=[records]),
            calls=500,
            seed=seed,
            acceptance_criterion="improvement_or_equal",
        )
        validated = Counter(
            (each, tuple(sorted(candidate.items())))
            for batch, candidate in run.evaluated
            for each in batch
            if each >= 100
        )
        assert max(validated.values()) == 1
        repeated += len([record for record in records.all if "Duplicate" in record.reason])
        contents = [tuple(sorted(candidate.items())) for candidate in run.result.candidates]
        assert len(set(contents)) == len(contents)
    assert repeated or staleness != ToOneText
