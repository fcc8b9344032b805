"""Optimizers that call dspy.GEPA, and programs made of what it compiles, work with an executor as without."""

import copy
import inspect
import logging
import pickle

import cloudpickle
import dspy
import pytest
from dspy.utils.callback import BaseCallback

from flashevolve_plugins import Flash
from flashevolve_plugins._activation import NOT_GIVEN


def quiet(**options):
    return Flash(progress=False, check_connection=False, **options)


def together(task, executor, **given):
    """Two optimizers, three steps: what is found, and the steps' scores."""
    student = task.pair()
    student.set_lm(task.task_lm)
    steps = {
        "p": task.gepa(executor=executor, max_metric_calls=40, seed=1),
        "q": task.gepa(executor=executor, max_full_evals=4, component_selector="all", seed=2),
    }
    optimizer = dspy.BetterTogether(metric=lambda *row: task.metric(*row[:3]), **steps)
    options = {"trainset": task.examples(5), "valset": task.examples(5, first=100), "seed": 3, "num_threads": 2}
    program = optimizer.compile(student, strategy="p -> q -> p", **{**options, **given})
    assert not program.flag_compilation_error_occurred
    states = [each["program"].dump_state() for each in program.candidate_programs]
    return states, [(each["strategy"], each["score"]) for each in program.candidate_programs]


def test_better_together_in_lockstep_is_the_host(task):
    assert together(task, quiet(lockstep=True)) == together(task, None)


@pytest.mark.parametrize("where", ["the constructor", "a block"])
def test_better_together_goes_on_from_step_to_step(where, task, in_slots):
    if where == "the constructor":
        states, steps = together(task, quiet(staleness="full"))
    else:
        with quiet(staleness="full"):
            states, steps = together(task, NOT_GIVEN)
    assert {strategy for strategy, _ in steps} == {"", "p", "p -> q", "p -> q -> p"}
    assert steps[0][1] > dict(steps)[""]
    assert any(in_slots(task.metric_calls))
    assert any("knows-" in str(state) for state in states)


def test_better_together_gives_compile_arguments(task):
    own = {"p": {"valset": task.examples(3, first=200)}, "q": {"trainset": task.examples(3)}}
    _, steps = together(task, quiet(), optimizer_compile_args=own)
    assert len(steps) == 4


class Restarting(dspy.teleprompt.Teleprompter):
    """An optimizer that asks another one twice, from what its signature takes."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def compile(self, student, *, trainset, teacher=None, valset=None):
        known = inspect.signature(self.inner.compile).parameters
        given = {"trainset": trainset, "teacher": teacher, "valset": valset, "unknown": 1}
        options = {name: value for name, value in given.items() if name in known}
        again = copy.deepcopy(self.inner)
        return again.compile(self.inner.compile(student, **options), **options)


class Compilations(BaseCallback):
    def __init__(self):
        self.told = []

    def on_compile_start(self, call_id, instance, inputs):
        self.told.append(("start", type(instance).__name__, sorted(inputs)))

    def on_compile_end(self, call_id, outputs, exception=None):
        self.told.append(("end", isinstance(outputs, dspy.Module), exception))


@pytest.mark.parametrize("lockstep", [True, False])
def test_an_optimizer_of_the_users_own_may_ask_it(lockstep, task):
    told = []
    for executor in (None, quiet(lockstep=lockstep)):
        seen = Compilations()
        optimizer = Restarting(task.gepa(executor=executor, max_metric_calls=40))
        with dspy.context(callbacks=[seen]):
            program = optimizer.compile(task.student(), trainset=task.examples(5), valset=task.examples(5, first=100))
        assert max(program.detailed_results.val_aggregate_scores) > 0.2
        told.append(seen.told)
    host, mine = told
    assert mine == host
    assert [kind for kind, *_ in mine] == ["start", "start", "end", "start", "end", "end"]


def test_an_ensemble_of_what_it_compiled(task):
    programs = [task.compile(quiet(), seed=seed, max_metric_calls=60) for seed in range(3)]
    both = dspy.Ensemble(reduce_fn=dspy.majority).compile(programs)
    assert both(question="case 1 rule 0").answer == "right"


def test_what_it_compiled_is_saved_loaded_copied_and_pickled(task, tmp_path):
    program = task.compile(quiet(), student=task.pair())
    program.save(tmp_path / "program.json")
    again = task.pair()
    again.load(tmp_path / "program.json")
    assert again.dump_state() == program.dump_state()
    assert program.deepcopy().dump_state() == program.dump_state()
    pickled = cloudpickle.dumps(task.compile(quiet(), track_stats=False))
    assert "knows-" in str(pickle.loads(pickled).dump_state())
    assert b"flashevolve" not in pickled


def test_two_steps_with_one_directory_never_reuse_each_other_s_result_in_silence(task, tmp_path, caplog):
    student = task.pair()
    student.set_lm(task.task_lm)
    steps = {
        name: task.gepa(executor=quiet(), max_metric_calls=60, seed=1, log_dir=str(tmp_path)) for name in ("p", "q")
    }
    optimizer = dspy.BetterTogether(metric=lambda *row: task.metric(*row[:3]), **steps)
    dspy_logger = logging.getLogger("dspy")
    propagates, dspy_logger.propagate = dspy_logger.propagate, True
    try:
        program = optimizer.compile(
            student, trainset=task.examples(5), valset=task.examples(5, first=100), strategy="p -> q", seed=3
        )
    finally:
        dspy_logger.propagate = propagates
    assert program.flag_compilation_error_occurred
    assert [each["strategy"] for each in program.candidate_programs if each["strategy"] == "p -> q"] == []
    assert "belongs to another run (the program differs from this one's)" in caplog.text
