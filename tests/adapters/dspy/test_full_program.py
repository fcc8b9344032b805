"""gepa's own adapter that evolves a whole dspy program."""

import re
import threading
from itertools import count

import gepa
import pytest
from gepa.adapters.dspy_full_program_adapter.full_program_adapter import DspyAdapter

from flashevolve_plugins import BackendError, Flash
from flashevolve_plugins.adapters.gepa.evaluation import evaluator_for

SOURCE = "import dspy\nprogram = dspy.Predict(dspy.Signature('question -> answer', {!r}))"
SEED = SOURCE.format("Answer.")
BROKEN = "program = ("
NO_PROGRAM = "answer = 1"
PATIENCE = 60.0


def reflection():
    """Writes better programs; the first and every third after it do not build."""
    numbers = count()

    def reflect(prompt):
        number = next(numbers)
        if number % 3 == 0:
            return f"```\n{(BROKEN, NO_PROGRAM)[number % 2]}\n```"
        learned = set(re.findall(r"knows-\w+-\d", prompt))
        missing = sorted(set(re.findall(r"missing-(\w+-\d)", prompt)))
        instruction = " ".join(["Answer.", *sorted(learned), *[f"knows-{each}" for each in missing[:1]]])
        return f"```\n{SOURCE.format(instruction)}\n```"

    return reflect


def full_program(task, **options):
    return DspyAdapter(
        task_lm=task.task_lm, metric_fn=task.metric, reflection_lm=reflection(), num_threads=4, **options
    )


class Heard:
    """What became of every candidate that was evaluated on a minibatch."""

    def __init__(self):
        self.evaluations = []

    def on_evaluation_end(self, event):
        trajectories = event["trajectories"]
        traces = trajectories if isinstance(trajectories, str) else [each["example_ind"] for each in trajectories]
        self.evaluations.append((list(event["scores"]), traces))


def optimize(task, executor=None, calls=100, source=SEED, **options):
    heard = Heard()
    result = gepa.optimize(
        {"program": source},
        trainset=task.examples(6),
        valset=task.examples(8, first=100),
        adapter=full_program(task),
        max_metric_calls=calls,
        callbacks=[heard],
        logger=Quiet(),
        executor=executor,
        **options,
    )
    return result, heard.evaluations


class Quiet:
    def log(self, message):
        """The console is not looked at."""


def test_lockstep_is_the_host(task):
    for seed in range(2):
        host, evaluations = optimize(task, seed=seed)
        same, seen = optimize(task, Flash(lockstep=True, progress=False), seed=seed)
        assert seen == evaluations
        for name in ("candidates", "parents", "val_subscores", "discovery_eval_counts", "total_metric_calls"):
            assert getattr(same, name) == getattr(host, name), name
    assert len(host.candidates) > 1


def test_examples_run_at_once_and_give_what_a_whole_batch_gives(task, in_slots):
    together = threading.Barrier(4)
    first = iter(range(4))
    task.on_task = lambda *_: together.wait(PATIENCE) if next(first, None) is not None else None
    flash = Flash(progress=False, reflection_concurrency=4)
    before = len(task.metric_calls)
    result, evaluations = optimize(task, flash, calls=150)
    assert len(task.metric_calls) - before <= result.total_metric_calls == flash.last_run.spent <= 150
    assert flash.last_run.slots["task"] == 4
    assert all(in_slots(task.metric_calls[before:]))
    assert len(result.candidates) > 1
    assert all(traces == [0, 1, 2] for _, traces in evaluations if not isinstance(traces, str))
    whole = full_program(task)
    for candidate, scores in zip(result.candidates, result.val_subscores, strict=True):
        assert list(scores.values()) == whole.evaluate(task.examples(8, first=100), candidate).scores


@pytest.mark.parametrize("source", [BROKEN, NO_PROGRAM])
def test_a_program_that_does_not_build_says_why_in_place_of_its_traces_as_in_the_host(task, source):
    adapter, batch = full_program(task, failure_score=0.25), task.examples(3)
    evaluator = evaluator_for(adapter, None)
    for capture_traces in (True, False):
        parts = [evaluator.evaluate({"program": source}, [each], capture_traces=capture_traces) for each in batch]
        whole, host = evaluator.merge(parts), adapter.evaluate(batch, {"program": source}, capture_traces)
        assert (whole.outputs, whole.scores, whole.trajectories) == (host.outputs, host.scores, host.trajectories)
        assert isinstance(host.trajectories, str)


def test_rejected_programs_that_do_not_build_are_told_as_in_the_host(task):
    for executor in (None, Flash(progress=False, reflection_concurrency=4)):
        _, evaluations = optimize(task, executor, calls=150)
        problems = [(scores, traces) for scores, traces in evaluations if isinstance(traces, str)]
        assert problems
        assert all(scores == [0.0] * 3 for scores, _ in problems)
        assert all("Syntax Error in code" in each or "did not define a `program`" in each for _, each in problems)


def test_an_example_that_raises_keeps_its_place(task):
    def fail(gold, _, name):
        if gold.question.startswith("case 1 ") and name is None:
            raise ValueError("no")

    task.on_metric = fail
    evaluator = evaluator_for(full_program(task, failure_score=0.125), None)
    parts = [evaluator.evaluate({"program": SEED}, [each], capture_traces=True) for each in task.examples(3)]
    whole = evaluator.merge(parts)
    assert whole.scores == [1.0, 0.125, 0.0]
    assert [each["example_ind"] for each in whole.trajectories] == [0, 2]


def test_a_seed_that_never_builds_ends_the_run_with_one_sentence(task):
    with pytest.raises(BackendError, match=r"first \d+ examples raised in the program \(SyntaxError: Syntax Error"):
        optimize(task, Flash(progress=False, reflection_concurrency=4), source=BROKEN)
