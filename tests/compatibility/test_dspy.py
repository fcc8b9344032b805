"""Every value of every option of dspy.GEPA: in lockstep equal to the host's own run, and concurrently."""

import inspect
import shutil
from importlib.util import find_spec

import pytest

if find_spec("dspy") is None:
    pytest.skip("needs dspy", allow_module_level=True)

import dspy
from dspy_options import OPTIONS
from dspy_runs import FOLDER, Run, assert_begins, assert_equal, check, differ
from options import compare

from flashevolve_plugins import Flash

OF = {"dspy.GEPA": dspy.GEPA.__init__, "dspy.GEPA.compile": dspy.GEPA.compile}
KNOWN = {host: {*inspect.signature(of).parameters} - {"self", "executor"} for host, of in OF.items()}
NEW = "code_proposer" in KNOWN["dspy.GEPA"]  # dspy 3.4
ONLY_NEW = {"code_proposer-a function", "instruction_proposer-dspy's own, with options"}
ALL = {f"{option.name}-{label}": (option, label) for option in OPTIONS for label in option.cases}
CASES = {name: case for name, case in ALL.items() if NEW or name not in ONLY_NEW}
#: Cases in which one item at a time takes another way than the host, and why.
ANOTHER_WAY = {
    "log_dir-resumed": "the run before ended earlier, with the budget",
    "gepa_kwargs-acceptance": "a text that is in the pool is not validated again",
    "gepa_kwargs-a cache": "the host's cache also gives validation results to training examples",
    "student-an agent with a tool": "which of a predictor's calls is reflected on is drawn for each item by itself",
}
if not NEW:
    ANOTHER_WAY["failure_score-where a metric raises"] = "the host's own loop fails"
PARTLY_VALIDATED = {"gepa_kwargs-a validation policy"}
EVERY = pytest.mark.parametrize(("option", "label"), CASES.values(), ids=CASES)


@pytest.fixture(autouse=True)
def _folder():
    yield
    shutil.rmtree(FOLDER, ignore_errors=True)


def flash(**options):
    return Flash(progress=False, check_connection=False, **options)


def without(option, label):
    """The case without its option."""
    names = {"student": {"student", "images"}, "trainset": {"train"}, "valset": {"val"}}
    return {key: each for key, each in option.cases[label].items() if key not in names.get(option.name, {option.name})}


def test_every_parameter_has_a_row():
    for host, known in KNOWN.items():
        rows = {option.name for option in OPTIONS if option.host == host}
        assert known <= rows
        assert rows - known == (set() if NEW or host != "dspy.GEPA" else {"code_proposer"})


@EVERY
def test_lockstep_equals_the_host(option, label, monkeypatch, tally):
    case = option.cases[label]

    def compared(seed, look):
        host = Run(None, case, seed, monkeypatch)
        assert_equal(host, Run(flash(lockstep=True), case, seed, monkeypatch))
        tally["pairs of runs of dspy.GEPA equal in lockstep"] += 1
        changed = look and differ(host, Run(None, without(option, label), seed, monkeypatch))
        return 2 if host.error else len(host.events.named("on_candidate_accepted")) + 1, changed

    compare(option, label, compared)


@pytest.mark.parametrize("name", [name for name in CASES if name not in ANOTHER_WAY])
def test_one_item_at_a_time_begins_as_the_host(name, monkeypatch, tally):
    """Flash never passes the budget, so it may end before the host does."""
    option, label = CASES[name]
    host = Run(None, option.cases[label], 0, monkeypatch)
    mine = Run(flash(max_items=1, staleness="full"), option.cases[label], 0, monkeypatch)
    assert mine.error_seen == host.error_seen
    if host.error is None:
        events = [event for event in mine.events.events if event[0] != "on_optimization_end"]
        assert_begins(host.events.events, events)
        assert len(events) > 20
        tally["runs of dspy.GEPA, one item at a time, that begin as the host's"] += 1


@pytest.mark.parametrize("name", CASES)
def test_many_items_at_once_are_consistent(name, monkeypatch, tally):
    option, label = CASES[name]
    run = Run(flash(staleness="full"), option.cases[label], 0, monkeypatch)
    if run.error is not None:
        assert run.error_seen == Run(None, option.cases[label], 0, monkeypatch).error_seen
        return
    assert run.events.events[-1][1]["total_metric_calls"] <= run.budget
    if run.results is not None and name not in PARTLY_VALIDATED:
        check(run)
    tally["runs of dspy.GEPA with many items at once"] += 1
