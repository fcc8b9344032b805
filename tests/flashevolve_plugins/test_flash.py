"""``Flash`` checks everything when it is made: one sentence that names the input and the remedy."""

import copy
import math
import pickle
import re
from pathlib import Path

import pytest

from flashevolve_plugins import Flash, FlashEvolveError, UnknownNameError, UsageError
from flashevolve_plugins._local import LocalDriver
from flashevolve_plugins._model import Limits
from flashevolve_plugins._pool import Pool
from flashevolve_plugins._virtual import VirtualDriver
from flashevolve_plugins.hooks import Full, Guarded, Snapshot, hookimpl

LIMITS = Limits(slots={"task": 1}, stages=("rollout",), entry="task")
COUNTS = ("max_concurrency", "reflection_concurrency", "max_items")
STOPS = {"grace": 0, "on_stop": "raise", "max_seconds": 0.5, "stop_file": "stop", "stop_score": 0}
BAD = [
    *[({name: bad}, f"{name}={bad} must be a whole number of at least 1") for name in COUNTS for bad in (0, -3, 2.5)],
    *[({name: bad}, f"{name}={re.escape(repr(bad))} must be a whole") for name in COUNTS for bad in ("4", True, ())],
    *[({"max_staleness": bad}, "must be a whole number of at least 0") for bad in (-1, 0.5, "2", False)],
    *[({name: "no"}, f"{name}='no' must be True or False") for name in ("lockstep", "progress")],
    *[({name: "no"}, f"{name}='no' must be True, False, or None") for name in ("epoch_barrier", "speculate")],
    ({"lockstep": None}, "lockstep=None must be True or False"),
    ({"check_connection": 1}, "check_connection=1 must be True or False"),
    ({"evaluate": "examples"}, "Unknown evaluate 'examples': known are 'batch', 'example', 'serial'"),
    ({"evaluate": ["batch"]}, "Unknown evaluate"),
    ({"clock": "wall"}, "Unknown clock 'wall': known are 'local', 'virtual'"),
    ({"clock": None}, "Unknown clock None"),
    ({"staleness": "gaurded"}, "Unknown staleness policy 'gaurded': known are 'aggregate', 'best-first', 'full'"),
    ({"staleness": 4}, "staleness=4 must be a policy's name or a StalenessPolicy: flashevolve plugins lists"),
    ({"staleness": None}, "staleness=None must be"),
    ({"staleness": Guarded}, r"staleness=Guarded is a class: write staleness=Guarded\(\)"),
    ({"staleness": 7}, "must be a policy's name or a StalenessPolicy"),
    ({"staleness": Guarded(2), "max_staleness": 3}, "give it to the policy you made, or name the policy"),
    ({"epoch_barrier": []}, "epoch_barrier=\\[\\] must be True, False, or None"),
    ({"epoch_barrier": 1}, "epoch_barrier=1 must be True, False, or None"),
    *[
        ({name: bad}, f"{name}={re.escape(repr(bad))} must be a number of seconds above 0")
        for name in ("max_outage", "sample_timeout")
        for bad in (0, -1.5, "5", True, float("inf"), float("nan"))
    ],
    ({"max_outage": None}, "max_outage=None must be a number of seconds above 0."),
    ({"lockstep": True, "speculate": True}, "speculate does not go with lockstep=True"),
    ({"lockstep": True, "sample_timeout": 5}, "sample_timeout does not go with lockstep=True"),
    ({"run_dir": 7}, "run_dir=7 must be the path of a directory, or None"),
    *[({"grace": bad}, "must be a number of seconds, 0 or more") for bad in (-1, "3", True, None, math.nan)],
    *[({"max_seconds": bad}, "must be a number of seconds above 0") for bad in (0, -1, "3", True, math.nan)],
    *[({"stop_score": bad}, "must be a number, or None") for bad in ("3", True, math.nan, [])],
    *[({"stop_file": bad}, "must be the path of a file, or None") for bad in (3, "", True)],
    *[({"on_stop": bad}, "Unknown on_stop .*: known are 'raise', 'return'") for bad in ("stop", None, [])],
    *[
        ({name: value, "lockstep": True}, f"{name} does not go with lockstep=True, which stops as the host does")
        for name, value in {**STOPS, "stop_file": Path("stop")}.items()
    ],
    ({"plugins": "young"}, "write plugins=\\['young'\\]"),
    ({"plugins": 7}, "plugins=7 must be a list of plugins"),
    ({"plugins": ["young"]}, "Unknown plugin 'young': known are "),
    ({"plugins": [object()]}, "'object' implements no hook"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[str(index) for index in range(len(BAD))])
def test_a_bad_value_is_refused_in_one_sentence(arguments, message):
    with pytest.raises(UsageError, match=message) as caught:
        Flash(**arguments)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, (FlashEvolveError, ValueError))


def test_names_that_nothing_answers_to_carry_what_is_known():
    with pytest.raises(UnknownNameError) as caught:
        Flash(staleness="gaurded")
    assert (caught.value.kind, caught.value.name) == ("staleness policy", "gaurded")
    assert {"full", "guarded"} <= set(caught.value.known)


@pytest.mark.parametrize(
    "arguments",
    [
        dict.fromkeys(COUNTS, 1),
        dict.fromkeys(COUNTS),
        {"staleness": "guarded", "max_staleness": 0},
        {"staleness": Full()},
        {"staleness": Guarded(1) & Full()},
        {"evaluate": None},
        {"max_outage": 300, "sample_timeout": 0.5},
        {"sample_timeout": None},
        {"evaluate": "serial", "clock": "virtual"},
        {"lockstep": True, "progress": False, "check_connection": False},
        STOPS,
        {"stop_file": Path("stop"), "grace": math.inf, "stop_score": -1},
    ],
)
def test_good_values_are_kept_as_they_are(arguments):
    flash = Flash(**arguments)
    assert {name: getattr(flash, name) for name in arguments} == arguments


def test_the_staleness_bound_reaches_the_named_policy(capsys):
    class Reveals(Guarded):
        pass

    hooks = Flash(staleness="guarded", max_staleness=0).open_hooks()
    assert [name for name, _ in hooks._callers["flashevolve_judge_stale"]] == ["staleness:Guarded"]
    hooks = Flash(staleness=Reveals(0)).open_hooks()
    assert [name for name, _ in hooks._callers["flashevolve_judge_stale"]] == ["staleness:Reveals"]


class Counts:
    """Counts snapshots."""

    def __init__(self):
        self.seen = 0

    @hookimpl
    def flashevolve_snapshot(self, snapshot):
        self.seen += 1


def test_plugins_from_a_generator_are_there_for_every_run():
    plugin = Counts()
    flash = Flash(plugins=(each for each in [plugin]), progress=False)
    for _ in range(2):
        flash.open_hooks().snapshot(Snapshot())
    assert plugin.seen == 2


def test_every_run_gets_fresh_policies_but_keeps_the_one_it_was_handed():
    policy = Guarded(1)
    flash, named = Flash(staleness=policy), Flash(staleness="guarded")
    assert flash.open_hooks() is not flash.open_hooks()
    assert named.open_hooks()._callers is not named.open_hooks()._callers
    assert flash.staleness is policy


@pytest.mark.parametrize(("clock", "kind"), [("local", LocalDriver), ("virtual", VirtualDriver)])
def test_the_clock_chooses_the_driver(clock, kind):
    driver = Flash(clock=clock).open_driver(LIMITS, pool=Pool())
    driver.close()
    assert type(driver) is kind


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda flash: pickle.loads(pickle.dumps(flash))])
def test_a_flash_can_be_copied_and_pickled(again):
    flash = Flash(max_concurrency=3, staleness=Guarded(2))
    twin = again(flash)
    assert (twin.max_concurrency, twin.staleness.max_staleness) == (3, 2)
    assert twin is not flash
    assert twin.open_hooks() is not None


def test_a_flash_shows_its_settings():
    assert repr(Flash(max_concurrency=3)).startswith("Flash(max_concurrency=3, reflection_concurrency=None, stal")
