"""W&B, offline: what it keeps of a run under flash."""

import pytest
import wandb
from tracked import wandb_run

pytestmark = pytest.mark.usefixtures("offline")


@pytest.fixture
def kept(kit, tmp_path):
    """Runs, and tells what W&B kept of it."""

    def keep(executor, **options):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        settings = {"calls": 100, "use_wandb": True, "wandb_init_kwargs": {"project": "a project", "dir": str(folder)}}
        run = kit.run(executor, **{**settings, **options})
        assert wandb.run is None
        wandb.teardown()  # its service has written everything
        return run, wandb_run(folder)

    return keep


def check(run, found, prefix=""):
    """Every step once, in order, and every row of the tables."""
    result, events = run.result, run.callbacks
    assert list(found.history) == list(range(found.summary[f"{prefix}total_iterations"] + 2))  # the seed's is step 0
    for step, row in list(found.history.items())[1:]:
        assert row[f"{prefix}iteration"] == step
    spent = [row[f"{prefix}total_metric_calls"] for row in found.history.values()]
    assert spent == sorted(spent)
    assert spent[-1] <= result.total_metric_calls
    candidates = found.tables[f"{prefix}candidates"]
    assert [row[1] for row in candidates] == list(range(1, len(result.candidates)))
    assert [row[5:] for row in candidates] == [
        [text for _, text in sorted(each.items())] for each in result.candidates[1:]
    ]
    assert [row[3] for row in candidates] == result.val_aggregate_scores[1:]
    accepted = [(each["iteration"], each["new_candidate_idx"]) for each in events.named("on_candidate_accepted")]
    assert [(row[0], row[1]) for row in candidates] == accepted
    rejected = [(each["iteration"], -1) for each in events.named("on_candidate_rejected")]
    assert sorted((row[0], row[3]) for row in found.tables[f"{prefix}proposals"]) == sorted(accepted + rejected)
    scores = [[each[name] for name in sorted(each)] for each in result.val_subscores[1:]]
    assert [row[2:] for row in found.tables[f"{prefix}valset_scores"]] == scores
    assert found.summary[f"{prefix}total_candidates"] == len(result.candidates)
    assert found.summary[f"{prefix}best/a"] == result.best_candidate["a"]
    assert found.pages[f"{prefix}candidate_tree"].count("<html") == 1
    assert found.ended == 0


def test_lockstep_logs_what_the_host_logs(kept, lockstep):
    for seed in range(2):
        host, theirs = kept(None, seed=seed)
        _, ours = kept(lockstep, seed=seed)
        for name, value in vars(theirs).items():
            assert getattr(ours, name) == value, name
        assert len(host.result.candidates) > 2
        assert {"candidates", "proposals", "valset_scores", "valset_pareto_front"} <= theirs.tables.keys()


def test_at_once_it_sees_one_step_after_the_other_under_the_host_s_names(kept, flash):
    _, host = kept(None, calls=250)
    run, found = kept(flash, calls=250)
    assert len(run.result.candidates) > 2
    check(run, found)
    assert found.names == host.names
    assert (found.config, found.tables.keys(), found.summary.keys()) == (
        host.config, host.tables.keys(), host.summary.keys(),
    )  # fmt: skip


def test_merges_and_several_proposals_per_step_are_told_once(kept, flash):
    from gepa.strategies.proposal_sampling import IndependentSampling

    run, found = kept(flash, calls=250, sampling_strategy=IndependentSampling(3), use_merge=True)
    candidates = found.tables["candidates"]
    assert [row[1] for row in candidates] == list(range(1, len(run.result.candidates)))
    assert list(found.history) == sorted(found.history)
    merges = [each["new_candidate_idx"] for each in run.callbacks.named("on_merge_accepted")]
    by_reflection = [row[3] for row in found.tables["proposals"] if row[3] >= 0]
    assert sorted(by_reflection + merges) == list(range(1, len(run.result.candidates)))


def test_a_prefix_stands_before_every_name(kept, flash):
    run, found = kept(flash, tracking_key_prefix="prompts/")
    check(run, found, "prompts/")
    assert {name for name in found.names if not name.startswith("prompts/")} == set()


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_the_run_is_over_when_the_host_raises(kit, kept, flash, kind):
    endings = []
    for executor in (None, flash):
        adapter, recorder = kit.Words(), kit.Callbacks()
        if kind is RuntimeError:
            adapter.errors["evaluate"] = lambda _, recorder=recorder: recorder.names.count("on_iteration_end") >= 2
        else:
            recorder.watchers.append(interrupt)
        run, found = kept(executor, adapter=adapter, recorder=recorder, catch=True)
        assert type(run.error) is kind
        assert len(found.history) > 1
        assert list(found.history) == list(range(len(found.history)))
        endings.append(found.ended)
    assert endings[0] == endings[1] is not None


def interrupt(name, event):
    if name == "on_iteration_end" and event["iteration"] == 3:
        raise KeyboardInterrupt


def test_a_run_of_the_user_s_own_is_joined_and_left_open(kit, flash, tmp_path):
    with wandb.init(project="mine", dir=str(tmp_path)) as mine:
        mine.log({"before": 1})
        run = kit.run(flash, calls=100, use_wandb=True, wandb_attach_existing=True)
        assert wandb.run is mine
        mine.log({"after": 1})
    wandb.teardown()
    found = wandb_run(tmp_path)
    assert {"before", "after", "iteration", "subsample/after"} <= found.names
    assert [row[1] for row in found.tables["candidates"]] == list(range(1, len(run.result.candidates)))
    assert found.ended == 0
