"""Every value of every option of gepa.optimize outside lockstep: one proposal at a time as the host, many in order."""

import json

import pytest
from gepa_history import check_history, iterations, step_of, told
from gepa_options import OPTIONS
from gepa_records import contents
from gepa_runs import DEFAULTS
from options import cases

from flashevolve_plugins import UsageError
from flashevolve_plugins.adapters.gepa.overlay import overlay
from flashevolve_plugins.hooks import hookimpl

POLICIES = ("full", "guarded", "merge", "reflective", "best-first", "merge")
WORKING = cases(each for each in OPTIONS if not each.refused)
REFUSED = cases(each for each in OPTIONS if each.refused)
PARTIAL = "the host caches what it evaluates on the trainset too"
#: Where a run with one proposal at a time is not the host's own, and why.
DIFFERENT = {
    "trainset-a DataLoader that grows": "callbacks are shown the loader as it is now, one offer further",
    "use_cloudpickle-False where it is needed": "the state is saved before the first iteration begins",
    "cache_evaluation-True": PARTIAL,
    "cache_evaluation-with merges": PARTIAL,
    "cache_evaluation-with batch_evaluate": PARTIAL,
    "cache_evaluation-resumed": PARTIAL,
    "run_dir-resumed with other options": PARTIAL,
    "raise_on_exception-False, evaluate raises": "calls of an evaluation that failed are counted",
}
ALONE = {"max_items": 1, "max_concurrency": 4, "reflection_concurrency": 1, "staleness": "full"}


@pytest.mark.parametrize("name", [each for each in WORKING if each not in DIFFERENT])
def test_one_proposal_at_a_time_is_the_host_s_own_run(kit, runner, tally, name):
    option, label = WORKING[name]
    compared = 0
    for seed in range(3):
        host = runner.run(None, option.cases[label], seed)
        flash = runner.run(kit.flash(**ALONE), option.cases[label], seed, before_executor=kit.flash(lockstep=True))
        count = min(iterations(host), iterations(flash))
        ours, theirs = told(flash, count), told(host, count)
        for what, entries in theirs.items():
            for position, (one, other) in enumerate(zip(entries, ours[what], strict=False)):
                assert one == other, f"{what}[{position}] differs"
            assert len(entries) == len(ours[what]), f"{what} differ in length"
        compared += count
        tally["iterations of gepa.optimize equal, one proposal at a time"] += count
    assert compared > 0


class Asked:
    """Watches what the host's objects are asked, in which iteration, and what they answer."""

    def __init__(self):
        self.offers, self.stops, self.selections, self.merges, self.patches = [], [], [], 0, 0

    @hookimpl
    def flashevolve_item_ended(self, record):
        self.merges += bool(record.members)
        self.patches += record.story.count("regate") * (not record.members)

    def watch(self, engine):
        proposer, stop = engine.reflective_proposer, engine.stop_callback
        sample_tasks, select = proposer.sampling_strategy.sample_tasks, engine.selection_strategy.select

        def sample(state, *more):
            assert state.full_program_trace[-1]["i"] == state.i
            self.offers.append((state.i, sample_tasks(state, *more)))
            return self.offers[-1][1]

        def stopped(state):
            self.stops.append((state.i, stop(state)))
            return self.stops[-1][1]

        def chosen(proposals, state, criterion):
            self.selections.append((state.i, list(proposals), select(proposals, state, criterion)))
            return self.selections[-1][2]

        proposer.sampling_strategy = overlay(proposer.sampling_strategy, {"sample_tasks": sample})
        engine.selection_strategy = overlay(engine.selection_strategy, {"select": chosen})
        engine.stop_callback = overlay(stop, {"__call__": stopped})


def check_asked(asked, run):
    """Stoppers, samplers and selection strategies were asked as their options say."""
    items = len(run.trace) - run.first - asked.merges  # a merge is offered by nobody
    answers = [answer for _, answer in asked.stops]
    numbers = [i for i, _ in asked.stops]
    assert numbers == sorted(set(numbers))
    assert numbers[0] == run.first - 1
    assert asked.merges or numbers == list(range(run.first - 1, run.first - 1 + len(answers)))
    assert not any(answers[:-1]), "something was offered after a stopper said stop"
    assert answers.count(False) == items, "a stopper was not asked, or asked more than once, for an offer"
    offered = [i for i, _ in asked.offers]
    assert offered == sorted(set(offered) & set(range(run.first, len(run.trace))))
    assert run.engine.merge_proposer is not None or len(offered) == items
    of_call = dict(asked.offers)
    for i, proposals, selected in asked.selections:
        assert 0 < len(proposals) <= len(of_call.get(i, ["a merge"]))
        numbers = [each.metadata["proposal_id"] for each in proposals]
        assert {number.split("-")[0] for number in numbers} == {f"{i + 1}"}
        assert len(numbers) == len(set(numbers))
        assert len(selected) <= len(proposals)
    if type(run.engine.selection_strategy).__name__ == "AllImprovements":
        reasons = [each["reason"] for each in run.callbacks.named("on_candidate_rejected")]
        assert not [each for each in reasons if "not selected" in each], "something else was the reason"
    calls = [i for i, *_ in asked.selections]
    assert len(calls) <= len(set(calls)) + asked.patches, "a sampling call's proposals were not compared together"


def check_perfect_scores(run):
    """A minibatch is skipped exactly where its scores are perfect and the options say so."""
    proposer = run.engine.reflective_proposer
    perfect = [
        event
        for event in run.callbacks.named("on_evaluation_end")
        if event["candidate_idx"] is not None
        and event["has_trajectories"]
        and proposer.skip_perfect_score
        and all(score >= proposer.perfect_score for score in event["scores"])
    ]
    skipped = [each for each in run.callbacks.named("on_evaluation_skipped") if each["reason"] == "all_scores_perfect"]
    assert len(skipped) == len(perfect)


def check_files(run):
    """The run directory holds the run."""
    if run.engine.run_dir is not None:
        assert run.files["gepa_state.bin"] == contents(run.state)
        assert json.loads(run.files["candidates.json"]) == run.result.candidates
        assert len(json.loads(run.files["run_log.json"])) == len(run.trace)


def check_services(run):
    """Trackers outside this process see one step after the other too."""
    steps = [step for call in run.services if (step := step_of(call))]
    assert steps == sorted(steps)


@pytest.mark.parametrize("name", WORKING)
def test_many_at_once_keep_the_serial_history_and_what_the_option_means(kit, runner, tally, name):
    option, label = WORKING[name]
    case, most = option.cases[label], 0
    for seed in range(6):
        asked, settings = Asked(), {"max_concurrency": 9, "staleness": POLICIES[seed % len(POLICIES)]}
        flash, before = kit.flash(**settings, plugins=[asked]), kit.flash(**settings)
        run = runner.run(flash, case, seed, on_engine=asked.watch, before_executor=before)
        tally["concurrent runs of gepa.optimize"] += 1
        if run.error is not None:
            assert type(run.error) is type(runner.run(None, case, seed).error)
            most = 2
            continue
        check_history(run, {**DEFAULTS, **case}["max_metric_calls"])
        check_asked(asked, run)
        check_perfect_scores(run)
        check_files(run)
        check_services(run)
        most = max(most, len(run.result.candidates))
    assert most > 1


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_honoured_is_refused_in_one_sentence_before_any_call(kit, runner, name):
    option, label = REFUSED[name]
    run = runner.run(kit.flash(), option.cases[label], 0)
    assert type(run.error) is UsageError
    assert option.refused in str(run.error)
    assert str(run.error).count(". ") == 0
    assert run.adapter.calls == run.reflections == 0
