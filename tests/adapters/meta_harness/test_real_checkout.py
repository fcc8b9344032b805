"""A real checkout, where the environment names one: both examples, unmodified, with the same fakes."""

import os
from pathlib import Path

import pytest

NAME = "FLASHEVOLVE_META_HARNESS_CHECKOUT"
EXAMPLES = Path(os.environ.get(NAME, "")) / "reference_examples"
pytestmark = pytest.mark.skipif(not os.environ.get(NAME), reason=f"{NAME} names no checkout")


@pytest.fixture(params=["text_classification", "terminal_bench_2"])
def real(request, tmp_path, make_checkout):
    return make_checkout(tmp_path / "real", EXAMPLES / request.param)


def test_lockstep_writes_the_files_of_its_own_loop(real, make_checkout, tmp_path, told):
    other = make_checkout(tmp_path / "other", real.example)
    knobs = {"2": {"fails": 1}, "3": {"bad_import": 1}}
    real.own_loop(claude=knobs)
    other.flash("--lockstep", claude=knobs)
    own, ours = told(real), told(other)
    assert own.keys() == ours.keys()
    assert {name: (own[name], ours[name]) for name in own if own[name] != ours[name]} == {}


def test_several_proposers_at_once(real):
    knobs = {"1": {"waits_for": "waits-2"}, "2": {"waits_for": "waits-1"}, "3": {"fails": 1}}
    real.flash("--proposers", "2", "--evaluators", "4", claude=knobs)
    assert real.names() == {"p1_sys_1", "p2_sys_2", "p4_sys_4"}
    assert real.best() == "p4_sys_4"
