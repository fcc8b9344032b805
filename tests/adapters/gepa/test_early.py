"""Items offered while the seed is validated, and when there are none."""

import pytest
from gepa.core.state import GEPAState
from gepa.strategies.batch_sampler import EpochShuffledBatchSampler
from gepa.strategies.proposal_sampling import IndependentSampling
from gepa.utils import NoImprovementStopper, ScoreThresholdStopper, TimeoutStopCondition
from item_records import Records

from flashevolve_plugins.hooks import hookimpl


@pytest.fixture
def recorded(kit):
    """A run whose seed has one validation example of a minute, and its records."""

    class Slow(kit.Words):
        def flashevolve_seconds(self, stage, *what):
            return 60.0 if stage == "validate" and what[1] == [100] else super().flashevolve_seconds(stage, *what)

    def run(*, staleness="merge", calls=400, **options):
        records = Records()
        flash = kit.flash(max_concurrency=16, staleness=staleness, plugins=[records])
        made = kit.run(flash, calls=calls, **{"adapter": Slow(), **options})
        return made, records

    return run


def early(records):
    """The items that were offered before the seed was in the pool, if there are any."""
    seed = records.first(lambda each: each.number == 1)
    return [each for each in records.all if each.number > 1 and each.started < seed.ended]


@pytest.mark.parametrize("staleness", ["merge", "best-first"])
@pytest.mark.parametrize(
    "options", [{}, {"stop_callbacks": TimeoutStopCondition(1e6), "candidate_selection_strategy": "current_best"}]
)
def test_items_from_the_seed_pass_their_gates_while_it_is_validated(kit, recorded, staleness, options):
    run, records = recorded(staleness=staleness, **options)
    kit.check(run, 400)
    found = early(records)
    assert len(found) >= 15  # that is what the policies allow in flight, the seed included
    seed = records.all[0]
    assert seed.number == 1
    assert seed.ended >= 60
    assert all(each.evidence.parent == 1 for each in found if each.evidence is not None)
    gated = [each for each in found if "queue" in each.story]
    assert gated
    assert all(each.ended >= seed.ended for each in gated)  # none left the queue before
    assert any(each.ended < seed.ended for each in found)  # what failed its gate had ended, and was told afterwards
    assert run.trace[0]["selected_program_candidate"] == 0
    assert len(run.trace) == len(records.all) - 1


@pytest.mark.parametrize(
    "options",
    [
        {"staleness": "full"},
        {"sampling_strategy": IndependentSampling(2)},
        {"batch_sampler": type("Own", (EpochShuffledBatchSampler,), {})(3)},
        {"stop_callbacks": ScoreThresholdStopper(0.99)},
        {"stop_callbacks": [TimeoutStopCondition(1e6), NoImprovementStopper(1000)]},
        {"stop_callbacks": lambda state: False},
    ],
    ids=["no queue", "several proposals", "batch sampler", "threshold", "improvement", "own stopper"],
)
def test_where_the_host_may_look_at_scores_everything_waits_for_the_seed(kit, recorded, options):
    run, records = recorded(**options)
    kit.check(run, 400)
    assert len(records.all) > 5
    assert early(records) == []


def test_a_resumed_run_offers_nothing_before_it_has_loaded_its_candidates(kit, recorded, tmp_path):
    recorded(run_dir=str(tmp_path), calls=200)
    run, records = recorded(run_dir=str(tmp_path))
    assert len(records.all) > 5
    assert early(records) == []
    assert run.result.total_metric_calls <= 400


def test_a_candidate_selector_is_asked_once_there_is_something_to_select(kit, recorded):
    class Selector:
        def __init__(self):
            self.states = []

        def select_candidate_idx(self, state):
            self.states.append(state)
            return len(state.program_candidates) - 1

    selector = Selector()
    run, records = recorded(candidate_selection_strategy=selector)
    kit.check(run, 400)
    assert early(records)
    assert selector.states
    assert all(isinstance(state, GEPAState) and state.prog_candidate_val_subscores[0] for state in selector.states)


def test_the_components_of_the_seed_take_turns_from_before_its_validation_to_after_it(kit, recorded):
    before = []
    for seed in range(4):
        run, records = recorded(seed_candidate=kit.TWO, staleness="best-first", calls=200, seed=seed)
        starts = run.callbacks.named("on_proposal_start")
        names = [each["components"] for each in starts if each["parent_candidate"] == kit.TWO]
        before.append(sum("propose" in each.story for each in early(records)))
        assert len(names) >= before[-1]
        assert run.state.named_predictor_id_to_update_next_for_program_candidate[0] == len(names) % 2
    assert any(count % 2 for count in before)  # else the turns would come out even without being handed over


def test_a_seed_that_cannot_be_validated_ends_the_run_and_every_item(kit, recorded):
    class Broken(kit.Words):
        def working(self, batch, candidate):
            if batch == [105]:
                raise LookupError("nothing there")

    run, records = recorded(adapter=Broken(), catch=True)
    assert isinstance(run.error, LookupError)
    assert run.result is None
    ends = {each.number: each.terminal.value for each in records.all}
    assert ends.pop(1) == "failed"
    assert set(ends.values()) == {"cancelled"}


def test_an_evaluator_that_is_declared_to_wait_waits_for_the_seed(kit, recorded, monkeypatch):
    from flashevolve_plugins.adapters.gepa import run as module

    made = module.evaluator_for

    def waiting(*args, **settings):
        evaluator = made(*args, **settings)
        evaluator.offers_early = False
        return evaluator

    monkeypatch.setattr(module, "evaluator_for", waiting)
    run, records = recorded()
    kit.check(run, 400)
    assert early(records) == []


@pytest.mark.parametrize("rollouts", [1, 2])
def test_policies_know_how_dear_a_validation_is_before_the_first(kit, rollouts):
    seen = []

    class Looks:
        @hookimpl
        def flashevolve_run_started(self, snapshot):
            seen.append((snapshot.version, snapshot.examples))

    kit.run(kit.flash(staleness="merge", plugins=[Looks()], rollouts=rollouts), calls=300)
    assert seen == [(0, 10)]
