"""Outside lockstep: the host's invariants and its serial history, whatever ran at once."""

import threading
from collections import Counter

import pytest
from gepa.proposer.reflective_mutation.reflection_lm import ReflectionProposal
from gepa.strategies.proposal_sampling import IndependentSampling, PxNSampling, SameParentSampling
from gepa.strategies.proposal_selection import AllImprovements, BestImprovement, TopKImprovements

from flashevolve_plugins import UnknownNameError
from flashevolve_plugins.hooks import Fixed

MERGES = {"use_merge": True, "max_merge_invocations": 20}


@pytest.mark.parametrize("number", range(48))
def test_any_run_keeps_the_host_s_invariants_and_the_budget(kit, dispatch, number):
    luck = kit.chance("a run", number)
    adapter = type("Mixed", (kit.Batched, kit.Words), {})() if luck.random() < 0.3 else kit.Words()
    adapter.flashevolve_evaluate = luck.choice(["example", "example", "batch", "serial"])
    limit = luck.choice([80, 150, 151, 152, 153, 300])
    options = {
        "seed_candidate": luck.choice([kit.ONE, kit.TWO]),
        "cache_evaluation": luck.random() < 0.3,
        "reflection_minibatch_size": luck.choice([1, 2, 3, 5]),
        "module_selector": luck.choice(["round_robin", "all"]),
        "sampling_strategy": luck.choice(
            [None, None, SameParentSampling(2), IndependentSampling(3), PxNSampling(2, 2)]
        ),
        "selection_strategy": luck.choice([AllImprovements(), BestImprovement(), TopKImprovements(2)]),
        "skip_perfect_score": luck.random() < 0.5,
        "perfect_score": luck.choice([0.5, 1.0]),
        "raise_on_exception": False,
        **(MERGES if luck.random() < 0.5 else {}),
    }
    if luck.random() < 0.3:
        adapter.errors = {luck.choice(["evaluate", "dataset"]): lambda number: number > 12 and number % 7 == 0}
    settings = {
        "max_concurrency": luck.choice([1, 2, 8, 30, 1000]),
        "reflection_concurrency": luck.choice([None, 1, 2]),
        "max_items": luck.choice([None, None, 1, 4]),
        "clock": luck.choice(["virtual", "virtual", "local"]),
    }
    settings |= luck.choice(
        [
            {"staleness": "full"},
            {"staleness": "guarded", "max_staleness": 1},
            {"staleness": "reflective"},
            {"staleness": "best-first"},
            {"staleness": "merge"},
            {"staleness": "merge"},
        ]
    )
    settings["control"] = luck.choice(["pull", "adaptive", Fixed(rollout=2, propose=1, validate=1), Fixed(regate=1)])
    run = kit.run(kit.flash(**settings), calls=limit, seed=number, adapter=adapter, **options)
    kit.check(run, limit)
    assert run.adapter.outside == 0


def test_a_run_in_virtual_time_repeats_exactly(kit):
    runs = [kit.run(kit.flash(max_concurrency=16), seed_candidate=kit.TWO, calls=300, **MERGES) for _ in range(2)]
    kit.assert_same(*runs)
    assert runs[0].last == runs[1].last


# -- what runs at once -------------------------------------------------------------------------------------------------


class Meeting:
    """Lets nobody go on before ``size`` calls are there at once, for the first ``rounds`` times."""

    def __init__(self, size, rounds):
        self.barrier, self.left = threading.Barrier(size), size * rounds
        self.lock, self.inside, self.most = threading.Lock(), 0, 0

    def __call__(self, *_):
        with self.lock:
            self.left -= 1
            meets = self.left >= 0
            self.inside += 1
            self.most = max(self.most, self.inside)
        if meets:
            self.barrier.wait(60)
        with self.lock:
            self.inside -= 1


def meeting(target, size, rounds):
    """The target with its work held by a :class:`Meeting`."""
    target.working = Meeting(size, rounds)
    return target


def local(kit, **settings):
    return kit.flash(clock="local", **settings)


@pytest.mark.parametrize("slots", [2, 5])
def test_as_many_examples_run_at_once_as_there_are_slots_and_never_more(kit, slots):
    adapter = meeting(kit.Words(), slots, rounds=10 // slots)
    run = kit.run(local(kit, max_concurrency=slots), adapter=adapter, calls=120)
    assert adapter.working.most == adapter.most_at_once == slots
    kit.check(run, 120)


def test_the_host_s_own_number_of_slots_is_the_default(kit):
    adapter = meeting(kit.Words(), 8, rounds=1)
    run = kit.run(local(kit), adapter=adapter, valset=list(range(16)), calls=100)
    assert adapter.most_at_once == 8
    assert dict(run.last.slots) == {"task": 8, "reflection": 8, "local": 1}


def test_as_many_reflections_run_at_once_as_are_allowed_and_never_more(kit):
    reflection = meeting(kit.Reflection(), 2, rounds=1)
    run = kit.run(local(kit, max_concurrency=30, reflection_concurrency=2), reflection=reflection, calls=200)
    assert reflection.most_at_once == 2
    kit.check(run, 200)


def own_texts(candidate, dataset, components):
    return {name: f"{candidate[name]} ant" for name in components}


class Grown:
    """A stateful reflector: each reflection hands over to a successor."""

    def __init__(self, counts):
        self.counts = counts

    def reflect(self, candidate, dataset, components):
        self.counts.append(len(self.counts))
        texts = {name: f"{candidate[name]} {len(self.counts)}" for name in components}
        return ReflectionProposal(texts), Grown(self.counts)


@pytest.mark.parametrize(
    "options", [{"custom_candidate_proposer": own_texts}, {"reflection_strategy": Grown([])}, {"own": own_texts}]
)
def test_a_proposer_that_may_not_be_re_entrant_runs_one_at_a_time(kit, options):
    options, adapter = dict(options), kit.Words()
    adapter.propose_new_texts = options.pop("own", None)
    if adapter.propose_new_texts is not None:
        options["reflection_lm"] = None
    flash = local(kit, max_concurrency=20, reflection_concurrency=None)
    run = kit.run(flash, adapter=adapter, **options)
    assert run.last.slots["reflection"] == 1
    kit.check(run, 150)


def test_an_adapter_that_declares_nothing_runs_one_batch_at_a_time_and_is_told_once_how_to_declare(kit, caplog):
    adapter = kit.Words()
    adapter.flashevolve_evaluate = None
    adapter.working = Meeting(1, 0)
    run = kit.run(local(kit, max_concurrency=8), adapter=adapter)
    assert adapter.working.most == 1
    assert {len(examples) for examples, _ in adapter.batches} == {10, 3}
    (message,) = caplog.messages
    assert message.startswith("Words does not say")
    assert "flashevolve_evaluate = 'example'" in message
    assert run.last.slots["reflection"] == 8  # everything else overlaps
    kit.check(run, 150)


def test_a_run_can_say_what_the_adapter_does_not_declare(kit, caplog):
    adapter = meeting(kit.Words(), 4, rounds=1)
    adapter.flashevolve_evaluate = None
    kit.run(local(kit, evaluate="example", max_concurrency=4), adapter=adapter)
    assert adapter.most_at_once == 4
    assert caplog.messages == []


def test_whole_batches_run_at_once_where_the_adapter_allows_that(kit):
    adapter = kit.Words()
    adapter.flashevolve_evaluate = "batch"
    meets = Meeting(3, 1)
    adapter.working = lambda batch, candidate: meets(batch) if len(batch) == 3 else None
    run = kit.run(local(kit, max_concurrency=3), adapter=adapter)
    assert meets.most == 3
    assert {len(examples) for examples, _ in adapter.batches} == {10, 3}
    kit.check(run, 150)


def test_a_wrong_declaration_names_the_known_ones(kit):
    adapter = kit.Words()
    adapter.flashevolve_evaluate = "examples"
    with pytest.raises(UnknownNameError, match=r"'examples'.*'batch', 'example', 'serial'"):
        kit.run(kit.flash(), adapter=adapter)
    assert adapter.calls == 0


def test_reflective_datasets_are_built_one_at_a_time(kit):
    adapter = kit.Words()
    build, most = adapter.make_reflective_dataset, Meeting(1, 0)

    def one(*arguments):
        most()
        return build(*arguments)

    adapter.make_reflective_dataset = one
    kit.run(local(kit, max_concurrency=30), adapter=adapter, calls=200)
    assert most.most == 1


# -- what offers see ---------------------------------------------------------------------------------------------------


class Watching:
    """A candidate selector that keeps the iteration it is asked in."""

    def __init__(self):
        self.iterations = []

    def select_candidate_idx(self, state):
        self.iterations.append((state.i, state.full_program_trace[-1]["i"]))
        return 0


def test_concurrent_offers_get_distinct_minibatches_and_their_own_iterations(kit):
    selector = Watching()
    run = kit.run(kit.flash(max_concurrency=36), candidate_selection_strategy=selector, calls=200)
    assert selector.iterations == [(number, number) for number in range(len(selector.iterations))]
    assert len(selector.iterations) >= 12
    seen = Counter(each for event in run.callbacks.named("on_minibatch_sampled") for each in event["minibatch_ids"])
    assert set(seen) == set(range(12))
    assert max(seen.values()) - min(seen.values()) <= 1  # whole epochs, no minibatch twice in one


def test_callbacks_read_their_own_iteration_from_the_live_state(kit):
    recorder, wrong = kit.Callbacks(), []

    def watch(name, event):
        if "state" in event:
            state = event["state"]
            if not state.i + 1 == state.full_program_trace[-1]["i"] + 1 == event["iteration"]:
                wrong.append((name, event["iteration"], state.i))

    recorder.watchers.append(watch)
    run = kit.run(kit.flash(max_concurrency=20), recorder=recorder)
    assert wrong == []
    kit.check(run, 150)


def test_trace_entries_tell_what_the_callbacks_of_their_iteration_told(kit):
    run = kit.run(kit.flash(max_concurrency=20, staleness="full"), calls=300)
    by_iteration = {number: {} for number in range(1, len(run.trace) + 1)}
    for name, event in run.events:
        by_iteration.get(event.get("iteration"), {})[name] = event
    for entry in run.trace:
        told = by_iteration[entry["i"] + 1]
        assert entry["selected_program_candidate"] == told["on_candidate_selected"]["candidate_idx"]
        assert entry["subsample_ids"] == told["on_minibatch_sampled"]["minibatch_ids"]
        assert entry["tasks"][0]["parent_idx"] == entry["selected_program_candidate"]
        if "on_candidate_accepted" in told:
            assert entry["new_program_idx"] == told["on_candidate_accepted"]["new_candidate_idx"]
            assert entry["evaluated_val_indices"] == list(range(10))
        if "on_candidate_rejected" in told:
            assert sum(entry["subsample_scores"]) == told["on_candidate_rejected"]["old_score"]
            assert sum(entry["new_subsample_scores"]) == told["on_candidate_rejected"]["new_score"]
    accepted = [entry["new_program_idx"] for entry in run.trace if "new_program_idx" in entry]
    assert accepted == list(range(1, len(run.result.candidates)))


def test_trackers_see_the_host_s_calls_in_serial_order(kit):
    run = kit.run(kit.flash(max_concurrency=20), use_merge=True)
    names = [call[0] for call in run.tracked]
    assert names[0] == "enter"
    assert names[1] == "log_config"
    assert names[-2:] == ["log_summary", "exit"]
    totals = [call[1][0]["total_metric_calls"] for call in run.tracked if call[0] == "log_metrics"]
    assert totals == sorted(totals)
    rows = [call[2]["data"][0][1] for call in run.tracked if call[0] == "log_table" and call[1] == ("candidates",)]
    assert rows == list(range(1, len(run.result.candidates)))


# -- staleness ---------------------------------------------------------------------------------------------------------


def discards(run):
    skipped = [each["reason"] for each in run.callbacks.named("on_evaluation_skipped")]
    rejected = [each["reason"] for each in run.callbacks.named("on_candidate_rejected")]
    return [each for each in skipped + rejected if each.lower().startswith("discarded: ")]


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_a_discard_tells_its_reason_and_its_calls_are_counted(kit, bound):
    total = 0
    for seed in range(3):
        run = kit.run(kit.flash(max_concurrency=30, max_staleness=bound), seed=seed, calls=300)
        kit.check(run, 300)
        reasons = discards(run)
        assert len(reasons) == run.last.ended.get("discarded", 0)
        stale = [each for each in reasons if "stale by" in each]
        assert all(f"more than max_staleness={bound}" in each for each in stale)
        assert all(staleness <= bound for staleness in run.last.staleness)
        total += len(stale)
    assert total > 0


def test_a_discard_before_its_gate_is_a_skipped_evaluation_and_after_it_a_rejected_candidate(kit):
    runs = [kit.run(kit.flash(max_concurrency=30, max_staleness=0), seed=seed, calls=300) for seed in range(3)]
    skipped = [
        each for run in runs for each in run.callbacks.named("on_evaluation_skipped") if "stale" in each["reason"]
    ]
    rejected = [
        each for run in runs for each in run.callbacks.named("on_candidate_rejected") if "stale" in each["reason"]
    ]
    assert skipped
    assert rejected
    assert all(each["new_score"] > each["old_score"] for each in rejected)  # it had passed its gate


def test_an_item_discarded_before_its_rollout_starts_no_evaluation(kit):
    early = 0
    for seed in range(3):
        run = kit.run(kit.flash(max_concurrency=2, max_staleness=0), seed=seed, calls=300)
        kit.check(run, 300)
        early += sum("Discarded before rollout" in line for line in run.lines)
        assert run.callbacks.names.count("on_evaluation_start") == run.callbacks.names.count("on_evaluation_end")
        assert run.callbacks.names.count("on_candidate_selected") == run.callbacks.names.count("on_iteration_start")
    assert early > 0


def test_full_staleness_discards_nothing_but_what_the_budget_cannot_pay_for(kit):
    run = kit.run(kit.flash(max_concurrency=30, staleness="full"), calls=300)
    assert all("budget" in each for each in discards(run))
    assert max(run.last.staleness) > 1


# -- merges ------------------------------------------------------------------------------------------------------------


def test_merges_run_as_items_and_their_candidates_are_complete(kit):
    accepted = rejected = 0
    for seed in range(8):
        run = kit.run(kit.flash(max_concurrency=12), seed=seed, seed_candidate=kit.TWO, calls=400, **MERGES)
        kit.check(run, 400)
        merged = [each for each in run.result.parents if len(each) == 2]
        told = run.callbacks.named("on_merge_accepted")
        assert [each["parent_ids"] for each in told] == merged
        for entry in (each for each in run.trace if each.get("merged")):
            one, other, ancestor = entry["merged_entities"]
            assert ancestor < one < other
            assert len(entry["new_program_subsample_scores"]) == len(entry["subsample_ids"])
        for event in told:
            child = run.result.candidates[event["new_candidate_idx"]]
            parents = [run.result.candidates[each] for each in event["parent_ids"]]
            assert all(child[name] in {each[name] for each in parents} for name in child)
        accepted += len(told)
        rejected += len(run.callbacks.named("on_merge_rejected"))
        assert run.engine.merge_proposer.total_merges_tested == len(told)
    assert accepted > 3
    assert rejected > 0


def test_a_merge_is_accepted_only_where_the_host_s_schedule_has_one_due(kit):
    accepted = 0
    for seed in range(8):
        options = {"seed_candidate": kit.TWO, "use_merge": True, "max_merge_invocations": 2}
        run = kit.run(kit.flash(max_concurrency=12), seed=seed, calls=400, **options)
        due = tested = 0
        for index, parents in enumerate(run.result.parents):
            if len(parents) == 2:
                assert due > 0
                due, tested = due - 1, tested + 1
            elif index > 0 and tested < 2:
                due += 1
        accepted += tested
    assert accepted > 0


def test_a_discarded_merge_is_told_as_a_rejected_one(kit):
    reasons = []
    for seed in range(6):
        options = {"seed_candidate": kit.TWO, "calls": 400, **MERGES}
        run = kit.run(kit.flash(max_concurrency=20, max_staleness=0), seed=seed, **options)
        kit.check(run, 400)
        told = run.callbacks.named("on_merge_rejected")
        assert len(told) <= len(run.callbacks.named("on_merge_attempted"))
        reasons += [each["reason"] for each in told if each["reason"].startswith("Discarded: stale")]
    assert reasons


# -- several proposals per sampling call -------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [PxNSampling(2, 2), IndependentSampling(4), SameParentSampling(3)])
@pytest.mark.parametrize("selection", [AllImprovements(), BestImprovement(), TopKImprovements(2)])
def test_the_selection_strategy_compares_the_proposals_of_one_sampling_call(kit, sampling, selection):
    most = {BestImprovement: 1, TopKImprovements: 2}.get(type(selection), 4)
    accepted = Counter()
    for seed in range(3):
        options = {"sampling_strategy": sampling, "selection_strategy": selection, "seed": seed, "calls": 300}
        run = kit.run(kit.flash(max_concurrency=24), **options)
        kit.check(run, 300)
        per_iteration = Counter(each["iteration"] for each in run.callbacks.named("on_candidate_accepted"))
        accepted += Counter(per_iteration.values())
        assert {entry.get("n_tasks") for entry in run.trace} - {None} == {getattr(sampling, "p", 1) * sampling.n}
        for event in run.callbacks.named("on_candidate_rejected"):
            if "not selected" in event["reason"]:
                assert event["new_score"] > event["old_score"]
                assert most < 4
    assert max(accepted) <= most


def test_what_was_selected_and_cannot_be_paid_for_says_so(kit):
    runs = [
        kit.run(kit.flash(), seed=seed, calls=calls, sampling_strategy=IndependentSampling(4))
        for seed in range(6)
        for calls in (66, 70)
    ]
    reasons = [each["reason"] for run in runs for each in run.callbacks.named("on_candidate_rejected")]
    assert "Discarded: the budget cannot pay for its validation" in reasons
    for run in runs:
        kit.check(run, 70)


class Asking(AllImprovements):
    """A selection strategy that reads what the criterion offers, and what the proposals carry."""

    def __init__(self):
        self.seen = []

    def select(self, proposals, state, criterion):
        self.seen += [(criterion.margin, dict(each.metadata), each.tag) for each in proposals]
        return super().select(proposals, state, criterion)


class Margin:
    margin = 0.1

    def __init__(self):
        self.judged = []

    def should_accept(self, proposal, state):
        self.judged.append(proposal)
        return sum(proposal.subsample_scores_after) > sum(proposal.subsample_scores_before) + self.margin

    def reject_reason(self, proposal, state):
        return "not by the margin"


def test_strategies_get_what_the_host_gives_them(kit):
    seen = {}
    for kind, executor in (("host", None), ("flash", kit.flash(max_concurrency=20))):
        selection, criterion = Asking(), Margin()
        options = {"sampling_strategy": PxNSampling(2, 2), "selection_strategy": selection, "calls": 300}
        run = kit.run(executor, acceptance_criterion=criterion, **options)
        assert len(criterion.judged) == len(selection.seen)
        reasons = {each["reason"] for each in run.callbacks.named("on_candidate_rejected")}
        assert "not by the margin" in reasons
        assert len({metadata["proposal_id"] for _, metadata, _ in selection.seen}) == len(selection.seen)
        seen[kind] = {(margin, *sorted(metadata), tag) for margin, metadata, tag in selection.seen}
    assert seen["flash"] == seen["host"] == {(0.1, "prompt:a", "proposal_id", "raw_lm_output:a", "reflective_mutation")}


# -- the evaluation cache ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 20])
def test_the_cache_never_serves_a_train_score_as_a_validation_score(kit, slots):
    for seed in range(4):  # ids of both sets begin at 0, the examples differ: check compares every score
        options = {"cache_evaluation": True, "seed_candidate": kit.TWO, "calls": 300, **MERGES}
        kit.check(kit.run(kit.flash(max_concurrency=slots), seed=seed, **options), 300)


def test_a_cached_validation_is_not_paid_for_twice(kit):
    saved = 0
    for seed in range(5):
        options = {"seed_candidate": kit.TWO, "calls": 400, "seed": seed, **MERGES}
        run = kit.run(kit.flash(max_items=1, max_concurrency=10), cache_evaluation=True, **options)
        kit.check(run, 400)
        paid = Counter(
            (example, *sorted(candidate.items()))
            for examples, candidate in run.adapter.batches
            for example in examples
            if example >= 100
        )
        assert max(paid.values()) == 1
        saved += sum(len(each) == 2 for each in run.result.parents)
    assert saved > 0  # merges whose subsample was validated before
