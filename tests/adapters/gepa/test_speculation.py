"""Stages of gepa's items that are left early: what the host is told, what counts, and what is committed."""

import itertools

import pytest
from gepa.strategies.proposal_selection import BestImprovement
from gepa.utils.stop_condition import MaxCandidateProposalsStopper
from item_records import Records

from flashevolve_plugins.hooks import Decided, Release, Speculative, Trailing, hookimpl


def everything():
    return Decided(), Speculative(evaluate=0.5, rollout=0.5), Trailing(after=0.3, risk=0.4)


@pytest.fixture
def recorded(kit):
    """A run with further plugins, and its records."""

    def run(*plugins, calls=400, flash=(), **options):
        records = Records()
        settings = {"max_concurrency": 8, "staleness": "merge", **dict(flash)}
        made = kit.run(kit.flash(**settings, plugins=[records, *plugins]), calls=calls, **options)
        kit.check(made, calls)
        return made, records

    return run


def stories(records):
    return [record.story for record in records.all]


# -- everything at once ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("staleness", "seed"), [*itertools.product(["full", "guarded", "reflective", "best-first", "merge"], range(5))]
)
def test_whatever_is_left_early_the_host_s_history_budget_and_state_are_whole(recorded, kit, staleness, seed):
    slots = (3, 8, 32)[seed % 3]
    flash = {"staleness": staleness, "max_concurrency": slots}
    run, records = recorded(*everything(), seed=seed, seed_candidate=kit.TWO, flash=flash)
    assert any("provisional" in story for story in stories(records)) or seed
    for scores in run.state.prog_candidate_val_subscores:
        assert len(scores) == 10  # never part of a validation


def test_each_way_of_leaving_early_is_met_in_these_runs(recorded, kit):
    met = set()
    for seed in range(12):
        _, records = recorded(*everything(), seed=seed, seed_candidate=kit.TWO)
        for record in records.all:
            met |= {"provisional"} & set(record.story)
            met |= {word for word in ("validation stopped", "subsample score can reach") if word in record.reason}
            if (
                "regate"
                in record.story[record.story.index("validate") if "validate" in record.story else len(record.story) :]
            ):
                met.add("validated early")
            if any(stage == "gate" for stage in record.story[:-1]) and record.story.count("gate") > 1:
                met.add("waited")
    assert met == {"provisional", "validation stopped", "subsample score can reach", "validated early", "waited"}


def test_speculate_is_short_for_the_two_plugins(kit):
    runs = [
        kit.run(kit.flash(staleness="merge", max_concurrency=8, **flash), calls=300, seed_candidate=kit.TWO)
        for flash in ({"speculate": True}, {"plugins": [Decided(), Speculative()]}, {})
    ]
    candidates = [run.result.candidates for run in runs]
    assert candidates[0] == candidates[1] != candidates[2]


@pytest.mark.parametrize(
    ("favoured", "changed"),
    [
        (True, {}),
        (False, {"calls": 60 * 25 - 1}),
        (False, {"slots": 14}),
        (True, {"calls": 60 * 25 - 1, "slots": 14}),
        (False, {"valset": list(range(100, 149)), "calls": 49 * 25}),
        (False, {"staleness": "full"}),
        (False, {"speculate": False}),
    ],
    ids=["all", "few validations", "many rounds", "few of many rounds", "small valset", "no queue", "switched off"],
)
def test_left_to_itself_it_leaves_stages_early_where_that_was_measured_to_pay(kit, monkeypatch, favoured, changed):
    asked = []
    monkeypatch.setattr(Speculative, "flashevolve_admit_provisional", hookimpl(lambda progress: bool(asked.append(1))))
    options = {"calls": 60 * 25, "valset": list(range(100, 160)), **changed}
    own = {name: options.pop(name) for name in ("staleness", "speculate") if name in options}
    kit.run(kit.flash(**{"staleness": "merge", "max_concurrency": options.pop("slots", 15), **own}), **options)
    assert bool(asked) is favoured


# -- gates that are decided -----------------------------------------------------------------------------------------


def test_a_gate_that_is_decided_changes_nothing_but_what_is_paid(recorded):
    saved = 0
    for seed in range(6):
        flash = {"max_concurrency": 1, "reflection_concurrency": 1, "max_items": 1, "staleness": "full"}
        options = {"flash": flash, "seed": seed, "reflection_minibatch_size": 5}
        options["stop_callbacks"] = [MaxCandidateProposalsStopper(12)]
        (whole, _), (early, records) = (recorded(*plugins, calls=1000, **options) for plugins in ((), (Decided(),)))
        assert early.result.candidates == whole.result.candidates
        assert early.result.val_subscores == whole.result.val_subscores
        assert early.adapter.calls == early.state.total_num_evals
        stopped = [record for record in records.all if record.partial]
        assert all(record.terminal.value == "rejected" and len(record.partial) < 5 for record in stopped)
        saved += whole.adapter.calls - early.adapter.calls
        assert saved >= len(stopped)
    assert saved > 4


def test_where_something_else_reads_the_scores_every_gate_runs_to_its_end(recorded):
    class Picky:
        def should_accept(self, proposal, state):
            return len(proposal.subsample_scores_after) == 3 and sum(proposal.subsample_scores_after) > 1

    for options in ({"acceptance_criterion": Picky()}, {"selection_strategy": BestImprovement()}):
        _, records = recorded(Decided(), **options, flash={"staleness": "full", "max_concurrency": 1})
        assert not any(record.partial for record in records.all)


def test_a_score_outside_of_0_to_1_switches_it_off_with_one_warning(recorded, kit, caplog):
    class Percent(kit.Words):
        def evaluate(self, batch, candidate, capture_traces=False):
            made = super().evaluate(batch, candidate, capture_traces)
            made.scores = [each - 1 for each in made.scores]
            return made

    records = Records()
    flash = kit.flash(staleness="full", max_concurrency=1, plugins=[records, Decided()])
    kit.run(flash, adapter=Percent(), calls=200)
    assert len(records.all) > 5
    assert not any(record.partial for record in records.all)
    assert sum("outside of 0 to 1" in message for message in caplog.messages) == 1


# -- rollouts that are handed on ------------------------------------------------------------------------------------


def test_a_reflection_reads_what_is_there_and_the_gate_compares_all(recorded, kit):
    read = []

    class Counting(kit.Words):
        def make_reflective_dataset(self, candidate, evaluation, components):
            read.append(len(evaluation.trajectories))
            return super().make_reflective_dataset(candidate, evaluation, components)

    options = {"adapter": Counting(), "reflection_minibatch_size": 4, "flash": {"staleness": "full"}}
    run, records = recorded(Speculative(evaluate=1, rollout=0.5), **options)
    asked = read[: len([record for record in records.all if "propose" in record.story])]
    assert min(asked) == 2
    gated = [record.evidence for record in records.all if record.evidence is not None]
    assert gated
    assert {len(each.before) for each in gated} == {4}
    for each in gated:
        parent = run.result.candidates[each.parent - 1]
        assert list(each.before) == [kit.score(example, parent) for example in each.examples]


# -- validations that are stopped or built on -----------------------------------------------------------------------


def test_a_stopped_validation_never_enters_the_host_s_state_and_its_record_says_why(recorded, kit):
    stopped = []
    for seed in range(8):
        run, records = recorded(Trailing(after=0.3, risk=0.5), seed=seed, flash={"staleness": "full"})
        for record in records.all:
            if record.partial:
                stopped.append(record)
                assert record.terminal.value == "rejected"
                assert record.evidence.artifact not in run.result.candidates
                assert record.reason.startswith(f"validation stopped after {len(record.partial)} of 10 examples: ")
                assert record.partial == {
                    each: kit.score(100 + each, record.evidence.artifact) for each in record.partial
                }
        lines = [line for line in run.lines if "validation stopped after" in line]
        assert len(lines) == sum(bool(record.partial) for record in records.all)
    assert len(stopped) > 4


def test_what_is_made_from_a_provisional_artifact_has_it_as_its_parent_once_it_is_there(recorded, kit):
    made = 0
    for seed in range(8):
        run, records = recorded(Speculative(evaluate=0.3), seed=seed, flash={"staleness": "full"})
        of = {record.number: record for record in records.all}
        provisional = {record.entries[0] for record in records.all if "provisional" in record.story and record.entries}
        for record in of.values():
            if (
                record.evidence is not None
                and record.evidence.parent in provisional
                and record.version < record.evidence.parent
            ):
                made += 1  # it was born before its parent was in the pool
                parent = run.result.candidates[record.evidence.parent - 1]
                assert list(record.evidence.before) == [kit.score(each, parent) for each in record.evidence.examples]
    assert made > 3


def test_a_merge_onto_a_provisional_artifact_that_is_not_confirmed_gives_its_members_back(recorded, kit):
    class Fickle:
        """Admits all, confirms nothing."""

        @hookimpl
        def flashevolve_admit_provisional(self, progress):
            return 5 <= len(progress.known) < 10

    back = 0
    for seed in range(6):
        run, records = recorded(Fickle(), seed=seed, seed_candidate=kit.TWO)
        back += sum(bool(record.members) and "on all of it" in record.reason for record in records.all)
        texts = [tuple(sorted(each.items())) for each in run.result.candidates]
        assert len(set(texts)) == len(texts)
    assert back


def test_a_policy_that_hands_on_a_gate_too_early_pays_for_no_validation_that_is_not_committed(recorded, kit):
    class Hasty:
        @hookimpl
        def flashevolve_release_stage(self, item, progress):
            return Release(stops=False) if item.stage == "regate" and progress.hands_on else None

    _, records = recorded(Hasty(), seed_candidate=kit.TWO)
    assert records.merges
    committed = [record for record in records.all if record.entries]
    validated = [record for record in records.all if "validate" in record.story]
    assert len(committed) == len(validated) > 2


# -- when something goes wrong --------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", range(0, 12, 3))
def test_a_call_in_a_tail_that_never_gets_an_answer_costs_its_item_and_not_the_run(recorded, kit, bad):
    class Down(kit.Words):
        def working(self, batch, candidate):
            if batch[0] == bad and candidate == kit.ONE:
                raise ConnectionError("refused")

    flash = {"staleness": "full"}
    ended = {}
    for plugins in ((), (Speculative(evaluate=1, rollout=0.5),)):
        records = Records()
        kit.run(kit.flash(**flash, max_concurrency=8, plugins=[records, *plugins]), adapter=Down(), calls=300)
        ended[bool(plugins)] = {record.reason for record in records.ended("failed")}
    assert ended[True] == ended[False] == {"rollout never got an answer (ConnectionError: refused)"}


def test_a_policy_that_raises_as_it_confirms_fails_its_item_and_not_the_run(recorded):
    class Odd:
        @hookimpl
        def flashevolve_admit_provisional(self, progress):
            if None not in progress.scores:
                raise ValueError("no")
            return len(progress.known) > 4

    _, records = recorded(Odd(), flash={"staleness": "full"})
    failed = records.ended("failed")
    assert failed
    assert all("flashevolve_admit_provisional" in record.reason for record in failed)


def test_a_patched_proposal_whose_gate_is_decided_is_validated_once(recorded, kit):
    early = 0
    for seed in range(8):
        options = {"seed": seed, "seed_candidate": kit.TWO, "reflection_minibatch_size": 6}
        run, records = recorded(Decided(), flash={"staleness": "reflective"}, **options)
        for record in records.all:
            moves = list(reversed(record.story))  # the last stage was the rest of its gate, after its validation
            early += "validate" in moves and "regate" in moves[: moves.index("validate")]
        validated = [
            tuple(sorted(each.items())) for batch, each in run.adapter.batches for example in batch if example >= 100
        ]
        assert max(validated.count(each) for each in set(validated)) <= 10
    assert early


def test_scores_above_1_are_known_from_validations_before_a_gate_is_left(kit, caplog):
    class Percent(kit.Words):
        def evaluate(self, batch, candidate, capture_traces=False):
            made = super().evaluate(batch, candidate, capture_traces)
            made.scores = [100.0 * (each >= 0.5) for each in made.scores]
            return made

    for seed in range(4):
        records = Records()
        flash = kit.flash(staleness="full", max_concurrency=1, plugins=[records, Decided()])
        kit.run(flash, adapter=Percent(), calls=200, seed=seed, perfect_score=1000)
        assert not any(record.partial for record in records.all)


def test_what_was_stopped_at_its_gate_is_remembered_like_any_rejection(recorded, kit):
    class Same(kit.Reflection):
        def answer(self, prompt):
            return "```\nsame\n```"

    flash = {"staleness": "full", "max_concurrency": 1, "max_items": 1, "remember_rejected": True}
    options = {"reflection_minibatch_size": 6, "seed_candidate": {"a": "ant bee cat doe"}, "calls": 200}
    gated = []
    for plugins in ((), (Decided(),)):
        run, _ = recorded(*plugins, flash=flash, reflection=Same(), **options)
        gated.append(sum(len(batch) for batch, each in run.adapter.batches if each == {"a": "same"}))
    assert gated[1] <= gated[0] == 6


def test_after_a_stop_the_tails_of_what_is_cancelled_start_nothing_more(kit, tmp_path):
    began, end = [], []

    class Noting(kit.Words):
        def working(self, batch, candidate):
            began.append(batch)

    for rollout in (1.0, 0.2):
        began.clear()
        flash = kit.flash(
            staleness="full", max_concurrency=2, max_seconds=12.0, grace=30.0, plugins=[Speculative(1, rollout)]
        )
        run_dir = str(tmp_path / str(rollout))
        kit.run(flash, adapter=Noting(), calls=300, reflection_minibatch_size=10, run_dir=run_dir)
        end.append(flash.last_run.seconds)
    assert end[1] < 14  # two samples that ran at the stop
