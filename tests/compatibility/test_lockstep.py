"""Every value of every option of gepa.optimize, in lockstep: equal to the host's own run in all that a user can see."""

import pytest
from gepa_options import OPTIONS
from gepa_runs import assert_equal, differ
from options import SEEDS, cases

CASES = cases(OPTIONS)
FEW = 5  # seeds


def without(case, name):
    return {key: each for key, each in case.items() if key != name}


@pytest.mark.parametrize(("option", "label"), CASES.values(), ids=CASES)
def test_lockstep_equals_the_host(kit, runner, dispatch, tally, option, label):
    case, most, changed = option.cases[label], 0, False
    for seed in SEEDS:
        host = runner.run(None, case, seed)
        flash = runner.run(kit.flash(lockstep=True, clock="local" if seed % 2 else "virtual"), case, seed)
        assert_equal(host, flash)
        assert getattr(flash.adapter, "outside", 0) == 0, "evaluations outside the Scheduler"
        tally["pairs of runs of gepa.optimize equal in lockstep"] += 1
        most = max(most, 2 if host.error else len(host.result.candidates))
        if not changed and (seed < FEW or label not in option.unchanged):
            changed = differ(host, runner.run(None, without(case, option.name), seed))
    assert most > 1
    assert changed is (label not in option.unchanged)
