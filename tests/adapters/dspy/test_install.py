"""``dspy.GEPA`` stays ``dspy.GEPA``: only its constructor learns ``executor``, whatever was imported first."""

import copy
import inspect
import pickle
import shutil
import subprocess
import sys

import dspy
import pytest

from flashevolve_plugins import Flash, HostError, UnknownNameError
from flashevolve_plugins.adapters.dspy.install import install

IMPORTS = {
    "dspy first": "import dspy; import flashevolve_plugins",
    "flash first": "import flashevolve_plugins; import dspy",
    "the class was taken before": "from dspy.teleprompt import GEPA; import flashevolve_plugins; import dspy",
}
CHECK = """
import inspect
from flashevolve_plugins._activation import NOT_GIVEN
GEPA = globals().get("GEPA", dspy.GEPA)
assert GEPA is dspy.GEPA
assert (GEPA.__name__, GEPA.__module__) == ("GEPA", "dspy.teleprompt.gepa.gepa")
assert inspect.signature(GEPA).parameters["executor"].default is NOT_GIVEN
assert "executor" in inspect.signature(dspy.teleprompt.gepa.gepa.GEPA.__init__).parameters
import gepa, gepa.api, gepa.optimize_anything
assert gepa.optimize is gepa.api.optimize
assert "executor" in inspect.signature(gepa.optimize).parameters
print(dspy.GEPA(metric=lambda a, b, c, d, e: 0, max_metric_calls=1, reflection_lm=print, executor="flash").executor)
"""
SETTINGS = {
    "metric": shutil.copytree,
    "instruction_proposer": print,
    "max_metric_calls": 1,
}  # five arguments, picklable


@pytest.mark.parametrize("order", IMPORTS)
def test_the_order_of_imports_does_not_matter(order, tmp_path):
    code = IMPORTS[order] + CHECK
    command = [sys.executable, "-W", "ignore::UserWarning", "-c", code]  # pydantic's, over litellm's models
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr[-2000:] == ""
    assert done.stdout.startswith("Flash(")


def test_only_the_constructor_changes_and_only_by_executor():
    optimizer = dspy.GEPA
    assert (optimizer.__name__, optimizer.__qualname__) == ("GEPA", "GEPA")
    assert optimizer.__module__ == "dspy.teleprompt.gepa.gepa"
    assert issubclass(optimizer, dspy.teleprompt.Teleprompter)
    assert inspect.signature(optimizer.compile) == inspect.signature(optimizer.compile.__wrapped__)
    assert list(inspect.signature(optimizer.compile).parameters) == ["self", "student", "trainset", "teacher", "valset"]
    new, old = (inspect.signature(each).parameters for each in (optimizer.__init__, optimizer.__init__.__wrapped__))
    assert list(new)[-1] == "executor"
    assert new["executor"].kind is inspect.Parameter.KEYWORD_ONLY
    assert {name: each for name, each in new.items() if name != "executor"} == dict(old)
    assert optimizer.compile.__doc__ == optimizer.compile.__wrapped__.__doc__
    assert optimizer.__doc__


def test_installing_again_changes_nothing():
    before = (dspy.GEPA.__init__, dspy.GEPA.compile)
    install()
    assert (dspy.GEPA.__init__, dspy.GEPA.compile) == before


def test_the_constructor_still_checks_as_before():
    with pytest.raises(TypeError, match="metric must accept five arguments"):
        dspy.GEPA(metric=lambda gold, pred: 0, max_metric_calls=1, reflection_lm=print, executor="flash")
    with pytest.raises(TypeError, match="nonsense"):
        dspy.GEPA(**SETTINGS, executor="flash", nonsense=1)


@pytest.mark.parametrize("executor", ["ray", 3, "Flash"])
def test_an_unknown_executor_is_refused_by_the_constructor(executor):
    with pytest.raises(UnknownNameError, match="Unknown executor .*: known are 'flash'"):
        dspy.GEPA(**SETTINGS, executor=executor)


def test_a_dspy_without_the_seam_is_refused_only_where_flash_is_asked_for(monkeypatch):
    monkeypatch.delattr(dspy.teleprompt.gepa.gepa_utils.DspyAdapter, "batch_evaluate")
    for fine in ({}, {"executor": None}):
        dspy.GEPA(**SETTINGS, **fine)
    with pytest.raises(
        HostError, match=rf"dspy {dspy.__version__} is not supported: flash runs with dspy 3.3.1 to 3.4"
    ):
        dspy.GEPA(**SETTINGS, executor="flash")


def test_a_gepa_without_the_seam_is_refused_before_any_call_where_only_a_block_asks_for_flash(monkeypatch, task):
    monkeypatch.delattr("gepa.core.engine.GEPAEngine._run_reflective_batch")
    with Flash(progress=False), pytest.raises(HostError, match=r"it has no GEPAEngine\._run_reflective_batch"):
        task.gepa().compile(task.student(), trainset=task.examples(3))
    assert task.metric_calls == task.task_calls == []


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda optimizer: pickle.loads(pickle.dumps(optimizer)),
}


@pytest.mark.parametrize("again", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("given", [{}, {"executor": None}, {"executor": Flash(max_concurrency=3)}], ids=str)
def test_an_optimizer_is_copied_and_pickled_with_its_executor(given, again):
    optimizer = dspy.GEPA(**SETTINGS, **given)
    twin = again(optimizer)
    assert vars(twin).keys() == vars(optimizer).keys()
    assert ("executor" in vars(twin)) is bool(given)
    assert getattr(getattr(twin, "executor", None), "max_concurrency", None) == (3 if given.get("executor") else None)


def test_an_optimizer_without_executor_is_pickled_without_us():
    assert b"flashevolve" not in pickle.dumps(dspy.GEPA(**SETTINGS))


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy])
def test_a_copy_without_executor_runs_the_hosts_loop_and_obeys_a_with_block(again, task, in_slots):
    optimizer = task.gepa(max_metric_calls=30)
    twin = again(optimizer)
    data = {"trainset": task.examples(3), "valset": task.examples(4)}
    optimizer.compile(task.student(), **data)
    assert not any(in_slots(task.metric_calls))
    before = len(task.metric_calls)
    with Flash(progress=False):
        twin.compile(task.student(), **data)
    assert all(in_slots(task.metric_calls[before:]))
    assert len(task.metric_calls) > before


def test_executor_none_wins_over_a_with_block(task, in_slots):
    with Flash(progress=False):
        task.compile(None, max_metric_calls=30)
    assert not any(in_slots(task.metric_calls))


def test_the_environment_turns_the_executor_off(task, in_slots, monkeypatch):
    monkeypatch.setenv("FLASHEVOLVE_DISABLE", "1")
    task.compile("flash", max_metric_calls=30)
    assert task.metric_calls
    assert not any(in_slots(task.metric_calls))


def test_a_subclass_with_a_compile_of_its_own_keeps_working(task, in_slots):
    class Mine(dspy.GEPA):
        def compile(self, student, *, trainset, extra=None):
            self.extra = extra
            return super().compile(student, trainset=trainset, valset=trainset)

    optimizer = Mine(
        metric=task.metric, reflection_lm=task.reflection_lm, max_metric_calls=30, executor=Flash(progress=False)
    )
    optimizer.compile(task.student(), trainset=task.examples(5), extra=4)
    assert all(in_slots(task.metric_calls))
    assert optimizer.extra == 4


@pytest.fixture
def together(task):
    """Put a flash GEPA into a BetterTogether."""
    flash = Flash(progress=False, check_connection=False)
    return dspy.BetterTogether(metric=task.metric, p=task.gepa(executor=flash, max_metric_calls=40)), flash


def test_better_together_runs_it(together, task, in_slots):
    optimizer, flash = together
    student = task.student()
    student.set_lm(task.task_lm)
    program = optimizer.compile(
        student, trainset=task.examples(5), valset=task.examples(5), strategy="p", num_threads=2
    )
    assert any(in_slots(task.metric_calls))
    assert flash.last_run.accepted > 0
    assert program.signature.instructions != "Answer."


def test_better_together_still_refuses_what_compile_does_not_take(together, task):
    optimizer, _ = together
    student = task.student()
    student.set_lm(task.task_lm)
    with pytest.raises(ValueError, match="Invalid compile arguments for optimizer 'p': .*executor"):
        optimizer.compile(
            student, trainset=task.examples(5), strategy="p", optimizer_compile_args={"p": {"executor": "flash"}}
        )
