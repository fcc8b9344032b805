"""Values of several options at once, drawn by chance: in lockstep the host's own run, and in order outside it."""

import random

import pytest
from gepa_history import check_history
from gepa_options import OPTIONS
from gepa_records import frozen
from gepa_runs import DEFAULTS, assert_equal

# a host that refuses its options leaves the log that it has opened to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
FAMILIES = {
    name: [option for option in OPTIONS if option.name == name and not option.refused]
    for name in dict.fromkeys(option.name for option in OPTIONS)
}
#: With raise_on_exception=False the host tries for ever to save what cannot be saved.
ENDLESS = "False where it is needed"
COMBINATIONS = 300
AT_ONCE = 60


def combination(number):
    """Values of up to ten options that do not speak of the same parameter."""
    luck, chosen = random.Random(number), {}
    for name in luck.sample(sorted(FAMILIES), 10):
        option = luck.choice(FAMILIES[name])
        case = option.cases[luck.choice(sorted(set(option.cases) - {ENDLESS}))]
        if not set(case) & set(chosen):
            chosen |= case
    return chosen


@pytest.mark.parametrize("first", range(0, COMBINATIONS, 30))
def test_lockstep_equals_the_host_with_several_options_at_once(kit, runner, tally, first):
    refused = 0
    for number in range(first, first + 30):
        case = combination(number)
        host = runner.run(None, case, number)
        flash = runner.run(kit.flash(lockstep=True), case, number)
        if host.engine is None:
            assert frozen(host.error) == frozen(flash.error)
            refused += 1
            continue
        assert_equal(host, flash)
        tally["pairs of runs of gepa.optimize equal in lockstep, several options at once"] += 1
    assert refused < 15


@pytest.mark.parametrize("first", range(0, AT_ONCE, 20))
def test_many_at_once_keep_the_serial_history_with_several_options_at_once(kit, runner, tally, first):
    finished = 0
    for number in range(first, first + 20):
        case = combination(number)
        run = runner.run(kit.flash(max_concurrency=9, staleness="full"), case, number)
        if run.error is not None:
            host = runner.run(None, case, number)
            assert type(run.error) is type(host.error)
            continue
        check_history(run, {**DEFAULTS, **case}["max_metric_calls"])
        tally["concurrent runs of gepa.optimize, several options at once"] += 1
        finished += 1
    assert finished > 10
