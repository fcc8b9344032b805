"""The order in which the samples of a validation start: what decides it, and that the host sees its own."""

from collections import defaultdict

import pytest
from gepa.strategies.proposal_sampling import IndependentSampling

from flashevolve_plugins import PluginError
from flashevolve_plugins._ordering import Examples
from flashevolve_plugins.hooks import LongestFirst, Reorder, SampleOrder

VALSET = list(range(100, 110))


class Noting(SampleOrder):
    """The host's order backwards; keeps what it was shown."""

    def __init__(self):
        self.shown, self.versions = [], []

    def order(self, examples, pool):
        self.shown.append([(each.name, dict(each.scores), each.seconds) for each in examples])
        self.versions.append(pool.version)
        return [*reversed(range(len(examples)))]


def validated(run):
    """Examples of the valset in the order in which they were evaluated."""
    return [each for examples, _ in run.evaluated for each in examples if each in VALSET]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rollouts": 2},
        {"sampling_strategy": IndependentSampling(3), "minibatch": 2},
    ],
    ids=["plain", "rollouts", "several at once"],
)
def test_samples_start_in_the_policys_order_and_the_host_sees_its_own(kit, options):
    options = dict(options)
    settings = {"max_concurrency": 1, "reflection_concurrency": 1, "rollouts": options.pop("rollouts", 1)}
    options = {"reflection_minibatch_size": options.pop("minibatch", 3), **options}
    policy = Noting()
    plain, ordered = (
        kit.run(kit.flash(plugins=plugins, **settings), calls=300, **options) for plugins in ([], [policy])
    )
    assert len(plain.result.candidates) > 2
    assert ordered.result.candidates == plain.result.candidates
    assert ordered.state.prog_candidate_val_subscores == plain.state.prog_candidate_val_subscores
    for scores in ordered.state.prog_candidate_val_subscores:
        assert list(scores) == list(range(len(VALSET)))
    there, here = validated(plain), validated(ordered)
    size = len(VALSET) * settings["rollouts"]
    assert len(here) == len(there) == size * len(policy.shown)
    for start in range(0, len(here), size):
        assert here[start : start + size] == there[start : start + size][::-1] != there[start : start + size]


def test_a_policy_is_shown_the_scores_of_the_pool_and_the_mean_seconds_of_this_run(kit):
    policy, took = Noting(), defaultdict(list)

    class Timed(kit.Words):
        def flashevolve_seconds(self, stage, *what):
            seconds = super().flashevolve_seconds(stage, *what)
            if stage == "validate":
                took[what[1][0]].append(seconds)
            return seconds

    run = kit.run(kit.flash(max_concurrency=1, plugins=[policy]), calls=200, adapter=Timed())
    scores = run.state.prog_candidate_val_subscores
    assert len(policy.shown) > 3
    assert policy.shown[0] == [(place, {}, None) for place in range(len(VALSET))]
    for before, (shown, version) in enumerate(zip(policy.shown, policy.versions, strict=True)):
        for name, seen, seconds in shown:
            assert seen == {index + 1: scores[index][name] for index in range(version)}
            if before:
                assert seconds == pytest.approx(sum(took[VALSET[name]][:before]) / before)


class Slow:
    """One example, the last one, takes as long as eight others."""

    def flashevolve_seconds(self, stage, *what):
        return 8.0 if stage == "validate" and what[1] == [VALSET[-1]] else 1.0


def test_what_takes_longest_starts_first_and_a_validation_ends_sooner(kit):
    adapter = type("Adapter", (Slow, kit.Words), {})
    settings = {"max_concurrency": 2, "max_items": 1}
    lengths = {}
    for name, plugins in {"plain": [], "longest": [LongestFirst()], "reorder": [Reorder()]}.items():
        run = kit.run(kit.flash(plugins=plugins, **settings), calls=200, adapter=adapter())
        validations = len(run.result.candidates)
        assert validations > 3
        lengths[name] = run.last.seconds, validations
    (plain, validations), (longest, same) = lengths["plain"], lengths["longest"]
    assert validations == same
    # Nine of a second and one of eight, on two slots: 4 + 8 seconds in the host's order, 9 with the long one first.
    # Of the seed's validation nothing is known before.
    assert plain - longest == pytest.approx(3.0 * (validations - 1))
    assert lengths["reorder"][1] == validations


def test_the_history_of_scores_survives_a_resume(kit, tmp_path):
    kit.run(kit.flash(), calls=150, run_dir=str(tmp_path))
    policy = Noting()
    run = kit.run(kit.flash(plugins=[policy]), calls=300, run_dir=str(tmp_path))
    scores = run.state.prog_candidate_val_subscores
    assert policy.versions[0] > 1
    for name, seen, seconds in policy.shown[0]:
        assert seen == {index + 1: scores[index][name] for index in range(policy.versions[0])}
        assert seconds is None


class Wrong(SampleOrder):
    def order(self, examples, pool):
        return range(len(examples) - 1) if pool.version else range(len(examples))


def test_a_wrong_answer_fails_the_item_and_names_hook_and_plugin(kit):
    run = kit.run(kit.flash(plugins=[Wrong()]), calls=100, catch=True)
    assert isinstance(run.error, PluginError)
    sentence = r"Plugin 'Wrong#1' raised in flashevolve_order_samples for 10 examples of validate: .* from 0 to 9 once"
    with pytest.raises(PluginError, match=sentence):
        raise run.error
    run = kit.run(kit.flash(plugins=[Wrong()]), calls=100, raise_on_exception=False)
    assert len(run.result.candidates) == 1
    assert run.last.ended["failed"]


@pytest.mark.parametrize("settings", [{"evaluate": "batch"}, {"evaluate": "serial"}, {"lockstep": True}], ids=str)
def test_whole_batches_and_lockstep_do_not_ask(kit, settings):
    policy = Noting()
    run = kit.run(kit.flash(plugins=[policy], **settings), calls=100)
    assert len(run.result.candidates) > 1
    assert not policy.shown


def test_where_nobody_orders_nothing_is_computed(kit, monkeypatch):
    monkeypatch.delattr(Examples, "arrange")
    monkeypatch.delattr(Examples, "_took")
    assert len(kit.run(kit.flash(), calls=100).result.candidates) > 1


def test_where_the_hosts_policy_chooses_the_seeds_examples_their_order_is_the_hosts(kit):
    from gepa.strategies.eval_policy import FullEvaluationPolicy

    class Half(FullEvaluationPolicy):
        def get_seed_eval_batch(self, loader):
            return list(loader.all_ids())[:5]

    policy = Noting()
    run = kit.run(kit.flash(plugins=[policy]), calls=100, val_evaluation_policy=Half())
    assert len(run.state.prog_candidate_val_subscores[0]) == 5
    assert policy.shown
    assert policy.versions[0] > 0
