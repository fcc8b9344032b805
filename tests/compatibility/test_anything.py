"""Every value of every option of optimize_anything: in lockstep equal to the host's own run, and concurrently."""

import contextlib
import dataclasses
import inspect
import io
import pickle
import shutil
import threading

import anything_task as task
import gepa.optimize_anything as oa
import pytest
from anything_options import OPTIONS
from gepa.core.state import GEPAState
from gepa_checks import check_serial_history
from gepa_records import contents
from gepa_runs import FOLDER, assert_equal, differ, made
from gepa_values import host_files
from options import compare

CASES = {f"{option.name}-{label}": (option, label) for option in OPTIONS for label in option.cases}
EVERY = pytest.mark.parametrize(("option", "label"), CASES.values(), ids=CASES)
SLOTS = 6


@pytest.fixture
def anything(services):
    """Runs a case, what is outside this process replaced."""

    def run(executor, case, seed):
        options = {"calls": 40, "seed": seed, **case}
        before = options.pop("before", None)
        shutil.rmtree(FOLDER, ignore_errors=True)
        if "run_dir" in options:
            FOLDER.mkdir()
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            if before is not None:
                task.run(executor, **made({**options, **before}))
            found = task.run(executor, catch=True, **made(options))
        found.printed, found.services, found.files = printed.getvalue(), services.take(), files()
        found.limit = options.get("max_metric_calls", options["calls"])
        return found

    yield run
    shutil.rmtree(FOLDER, ignore_errors=True)


def files():
    """What is in the run directory."""
    readers = {
        ".bin": lambda each: contents(GEPAState.load(str(each.parent))),
        ".pkl": lambda each: pickle.loads(each.read_bytes()),
    }
    return {
        str(each.relative_to(FOLDER)): readers.get(each.suffix, lambda each: each.read_text("utf-8"))(each)
        for each in host_files()
        if each.is_file()
    }


def without(option, case):
    """The case without its option; the parts of a configuration are given by their own options."""
    name = option.name.rpartition(".")[2]
    return {key: each for key, each in case.items() if key != name} if name in case else {}


def test_every_option_has_a_row_and_every_row_an_option():
    parts = {each.__name__: each for each in (*task.PARTS.values(), oa.GEPAConfig)}
    known = {f"{name}.{field.name}" for name, kind in parts.items() for field in dataclasses.fields(kind)}
    known |= set(inspect.signature(oa.optimize_anything).parameters)
    assert {option.name for option in OPTIONS} == known - {"executor", "EngineConfig.executor"}  # our own


@EVERY
def test_lockstep_equals_the_host(anything, kit, tally, option, label):
    case = option.cases[label]

    def compared(seed, look):
        host = anything(None, case, seed)
        flash = anything(kit.flash(lockstep=True, clock="local" if seed % 2 else "virtual"), case, seed)
        assert_equal(host, flash)
        tally["pairs of runs of optimize_anything equal in lockstep"] += 1
        changed = look and differ(host, anything(None, without(option, case), seed))
        return 2 if host.error else len(host.result.candidates), changed

    compare(option, label, compared)


@EVERY
def test_any_run_keeps_the_budget_and_the_serial_history(anything, kit, tally, option, label):
    for seed in range(4):
        flash = kit.flash(clock="local" if seed % 2 else "virtual", max_concurrency=SLOTS)
        run = anything(flash, option.cases[label], seed)
        if option.refused:
            assert option.refused in str(run.error)
            assert not run.evaluated
            continue
        if run.error is not None:
            assert str(run.error).startswith(("no ", "none of "))  # what the user's own function raised
            continue
        check(run)
        tally["concurrent runs of optimize_anything"] += 1


def check(run):
    """What holds for every finished run."""
    assert run.state.is_consistent()
    assert run.result.total_metric_calls == run.last.spent
    assert run.limit is None or run.last.spent <= run.limit
    assert run.last.reserved == run.last.items == 0
    begun = next((each for each in run.events if each[0] == "on_iteration_start"), None)
    check_serial_history(run, threading.get_ident(), begun[1]["iteration"] - 1 if begun else 0)
    for candidate, example, score, info in run.evaluations():
        found = task.value(candidate, example)
        if "error" in info:
            assert score == 0.0 or "refiner_prompt_specific_info" in info
            continue
        assert found <= score <= found + 0.3  # one is better the more it has been given
        if "of" in info:  # of a refinement, it is what was refined
            whole = "begins {0}\nends {0}\n".format(info["of"])
            assert info["of"].startswith(f"{example}: ")
            assert info.get("log", whole) == info.get("stdout", whole) == whole
