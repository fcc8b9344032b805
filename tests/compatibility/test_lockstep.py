"""Every value of every option of gepa.optimize, in lockstep: equal to the host's own run in all that a user can see."""

import pytest
from gepa_options import OPTIONS
from gepa_runs import assert_equal, differ
from options import cases, compare

CASES = cases(OPTIONS)


def without(case, name):
    return {key: each for key, each in case.items() if key != name}


@pytest.mark.parametrize(("option", "label"), CASES.values(), ids=CASES)
def test_lockstep_equals_the_host(kit, runner, dispatch, tally, option, label):
    case = option.cases[label]

    def compared(seed, look):
        host = runner.run(None, case, seed)
        flash = runner.run(kit.flash(lockstep=True, clock="local" if seed % 2 else "virtual"), case, seed)
        assert_equal(host, flash)
        assert getattr(flash.adapter, "outside", 0) == 0, "evaluations outside the Scheduler"
        tally["pairs of runs of gepa.optimize equal in lockstep"] += 1
        changed = look and differ(host, runner.run(None, without(case, option.name), seed))
        return 2 if host.error else len(host.result.candidates), changed

    compare(option, label, compared)
