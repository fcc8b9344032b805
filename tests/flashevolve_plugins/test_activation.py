"""Who uses flash: ``with`` blocks, the process default, ``executor=``, and the switch that turns all off."""

import contextvars
import copy
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from flashevolve_plugins import Flash, UnknownNameError, UsageError, _activation
from flashevolve_plugins._activation import NOT_GIVEN, current, process_default, resolve, using

HEAVY = ("dspy", "gepa", "pluggy", "anyio", "rich", "asyncio", "litellm", "numpy")
LIGHT = f"""
import sys
before = set(sys.modules)
import flashevolve_plugins
from flashevolve_plugins import Flash
with_us = set(sys.modules) - before
print([name for name in {HEAVY!r} if name in with_us])
"""


def test_nothing_is_active_by_itself():
    assert current() is None


def test_a_with_block_is_active_inside_and_only_there():
    with Flash() as flash:
        assert current() is flash
    assert current() is None


def test_blocks_nest_and_the_innermost_counts():
    outer, inner = Flash(), Flash()
    with outer:
        with inner:
            assert current() is inner
        assert current() is outer
        with outer:
            assert current() is outer
        assert current() is outer
    assert current() is None


def test_an_exception_leaves_the_block_and_passes_on():
    error = KeyError("mine")
    with pytest.raises(KeyError) as caught, Flash(), Flash():
        raise error
    assert caught.value is error
    assert current() is None


def test_leaving_in_another_order_restores_too():
    first, second = Flash(), Flash()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert current() is second
    second.__exit__(None, None, None)
    assert current() is None
    second.__exit__(None, None, None)  # once too often
    assert current() is None


def test_using_none_switches_off_inside():
    with Flash() as flash:
        with using(None):
            assert current() is None
        assert current() is flash


def test_two_threads_do_not_see_each_others_blocks():
    both_inside, seen = threading.Barrier(2), {}

    def work(name):
        with Flash() as flash:
            both_inside.wait(60)
            seen[name] = (current(), flash)
            both_inside.wait(60)
        seen[name] += (current(),)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, "ab"))
    for found, flash, after in seen.values():
        assert found is flash
        assert after is None
    assert seen["a"][0] is not seen["b"][0]


def test_a_thread_with_the_callers_context_sees_the_callers_block():
    with Flash() as flash, ThreadPoolExecutor(1) as pool:
        assert pool.submit(contextvars.copy_context().run, current).result() is flash
        assert pool.submit(current).result() is None


def test_the_process_default_is_seen_by_every_thread_and_a_block_wins_over_it():
    default = Flash()
    with process_default(default):
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(current).result() is default
        with Flash() as flash:
            assert current() is flash
        with using(None):
            assert current() is None
    assert current() is None


def test_the_process_default_ends_with_an_exception():
    with pytest.raises(ZeroDivisionError), process_default(Flash()):
        raise ZeroDivisionError
    assert current() is None


@pytest.mark.parametrize(("value", "off"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_the_environment_turns_everything_off(value, off, monkeypatch):
    monkeypatch.setenv("FLASHEVOLVE_DISABLE", value)
    with Flash() as flash:
        assert current() is (None if off else flash)
    default = Flash()
    with process_default(default):
        assert current() is (None if off else default)


def test_resolve_takes_none_flash_and_a_flash():
    flash = Flash()
    assert resolve(None) is None
    assert resolve(flash) is flash
    assert type(resolve("flash")) is Flash
    assert resolve("flash") is not resolve("flash")


@pytest.mark.parametrize("executor", ["Flash", "ray", "", 1, True])
def test_resolve_refuses_the_rest_and_says_what_it_knows(executor):
    with pytest.raises(UnknownNameError, match="Unknown executor .*: known are 'flash'"):
        resolve(executor)


def test_the_class_in_place_of_an_object_is_told():
    with pytest.raises(UsageError, match=r"write executor=Flash\(\)"):
        resolve(Flash)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_not_given_stays_one_object(again):
    assert again(NOT_GIVEN) is NOT_GIVEN
    assert again([NOT_GIVEN])[0] is NOT_GIVEN
    assert repr(NOT_GIVEN) == "None"  # what signatures show


def test_watching_twice_watches_once():
    before = list(sys.meta_path)
    _activation.watch_hosts()
    assert sys.meta_path == before


def test_the_watched_hosts_are_named_by_the_entry_points():
    assert _activation._host_packages() >= {"gepa", "dspy"}


def test_importing_the_package_is_light(tmp_path):
    done = subprocess.run([sys.executable, "-c", LIGHT], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
