"""Workers per stage under gepa: what may be at work at once, and what is refused before anything is spent."""

import pytest

from flashevolve_plugins import UsageError
from flashevolve_plugins.hooks import Adaptive, Fixed, hookimpl


class Watcher:
    """Keeps all statistics it is told."""

    def __init__(self):
        self.seen = []

    @hookimpl
    def flashevolve_snapshot(self, snapshot):
        self.seen.append(snapshot)


@pytest.mark.parametrize("control", [Fixed(rollout=4, propse=2), Adaptive(most={"propse": 2})])
def test_a_stage_that_gepa_does_not_have_is_told_with_those_it_has_before_anything_is_spent(kit, control):
    run = kit.run(kit.flash(control=control), catch=True)
    assert isinstance(run.error, UsageError)
    stages = "rollout, dataset, propose, gate, queue, judge, merge, regate, validate"
    assert str(run.error) == (
        f"{type(control).__name__} names the stage 'propse', which this run does not have: its stages are {stages}."
    )
    assert run.evaluated == []
    assert run.reflections == 0


@pytest.mark.parametrize("staleness", ["full", "merge"])
@pytest.mark.parametrize("clock", ["virtual", "local"])
def test_no_stage_has_more_proposals_at_work_than_workers(kit, staleness, clock):
    watcher, control = Watcher(), Fixed(rollout=2, propose=1, gate=1, validate=1)
    flash = kit.flash(control=control, plugins=[watcher], staleness=staleness, clock=clock, max_concurrency=20)
    run = kit.run(flash, calls=300)
    kit.check(run, 300)
    for snapshot in [*watcher.seen, run.last]:
        assert {stage: snapshot.workers[stage] for stage in control.workers} == control.workers
        assert all(snapshot.at_work[stage] <= most for stage, most in control.workers.items())
    assert run.last.finished["propose"] > 3


@pytest.mark.parametrize("staleness", ["full", "reflective", "merge"])
def test_adaptive_control_keeps_the_host_s_invariants(kit, staleness):
    control = Adaptive(period=0.5, least=1, most=3)
    run = kit.run(kit.flash(control=control, staleness=staleness, max_concurrency=20), calls=300)
    kit.check(run, 300)
    assert {most for stage, most in run.last.workers.items()} <= {1, 2, 3}


def test_pull_runs_as_without_the_option(kit):
    runs = [kit.run(kit.flash(max_concurrency=16, **more), calls=300) for more in ({}, {"control": "pull"})]
    kit.assert_same(*runs)
