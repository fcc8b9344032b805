"""dspy.GEPA under flash: the budget, the results, and whose threads and settings user code runs under."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import dspy
import pytest
from dspy.teleprompt.gepa.gepa import AUTO_RUN_SETTINGS

from flashevolve_plugins import Flash, UsageError
from flashevolve_plugins.hooks import hookimpl

RUNS = {
    "one predictor": {},
    "policy full": {"staleness": "full"},
    "two predictors and merges": {"student": "pair", "use_merge": True, "max_metric_calls": 140},
    "all components": {"student": "pair", "component_selector": "all", "use_merge": False},
    "no valset": {"val": None, "train": 8},
    "full evaluations": {"max_metric_calls": None, "max_full_evals": 6},
    "best outputs": {"track_best_outputs": True},
    "a perfect minibatch is not skipped": {"skip_perfect_score": False},
    "several proposals at once": {"gepa_kwargs": "sampling"},
    "one slot": {"num_threads": 1},
}


@pytest.mark.parametrize("name", RUNS)
def test_the_budget_holds_and_the_results_are_consistent(name, task, consistent, in_slots):
    options = dict(RUNS[name])
    budget = options.get("max_metric_calls", 100) or 6 * (6 + 8)
    if options.get("gepa_kwargs"):
        from gepa.strategies.proposal_sampling import IndependentSampling

        options["gepa_kwargs"] = {"sampling_strategy": IndependentSampling(2)}
    student = getattr(task, options.pop("student", "student"))()
    flash = Flash(progress=False, staleness=options.pop("staleness", "guarded"))
    options = {key: value for key, value in options.items() if value is not None or key == "val"}
    program = task.compile(flash, student=student, **options)
    consistent(task, program, budget)
    assert flash.last_run.spent == len(task.metric_calls)
    assert flash.last_run.reserved == 0
    assert flash.last_run.version == len(program.detailed_results.candidates) > 1
    assert max(program.detailed_results.val_aggregate_scores) > program.detailed_results.val_aggregate_scores[0]
    assert all(in_slots(task.metric_calls + task.task_calls + task.reflections + task.feedback_calls))


@pytest.mark.parametrize("lockstep", [False, True])
def test_the_metric_calls_of_reflective_datasets_are_counted_beside_the_budget(lockstep, task):
    flash = Flash(progress=False, lockstep=lockstep)
    task.compile(flash)
    assert flash.last_run.feedback_calls == len(task.feedback_calls) > 0


def test_executor_flash_is_flash_with_its_defaults(task, consistent, in_slots, capfd):
    consistent(task, task.compile("flash"), 100)
    assert all(in_slots(task.metric_calls))
    assert "calls" in capfd.readouterr().err


def test_the_auto_budget_is_the_hosts(task, consistent):
    optimizer = task.gepa(auto="light", executor=Flash(progress=False, staleness="full"), num_threads=8)
    program = optimizer.compile(task.student(), trainset=task.examples(6), valset=task.examples(8, first=100))
    budget = optimizer.auto_budget(num_preds=1, num_candidates=AUTO_RUN_SETTINGS["light"]["n"], valset_size=8)
    consistent(task, program, budget)
    assert len(task.metric_calls) > budget - 14  # less than one more proposal with its validation


def test_without_a_valset_a_cache_evaluates_no_example_twice_but_for_the_seed(task, consistent):
    asked = Counter()
    task.on_task = lambda system, user: asked.update([(system, user)])
    flash = Flash(progress=False, staleness="full", max_items=1)
    options = {"student": task.student(), "val": None, "train": 24, "gepa_kwargs": {"cache_evaluation": True}}
    program = task.compile(flash, max_metric_calls=90, **options)
    consistent(task, program, 90)
    often = Counter(asked.values())
    assert set(often) == {1, 2}
    seeds = {system for (system, _), count in asked.items() if count == 2}
    assert len(seeds) == 1
    assert "knows" not in seeds.pop()
    assert flash.last_run.spared > 0


def test_training_on_the_validation_set_itself(task, consistent):
    examples = task.examples(8)
    program = task.gepa(executor=Flash(progress=False)).compile(task.student(), trainset=examples, valset=examples)
    consistent(task, program, 100)


def test_a_budget_that_cannot_pay_for_one_proposal_is_refused_before_anything_is_spent(task):
    with pytest.raises(UsageError, match=r"max_metric_calls=21 cannot pay .* raise it to at least 22"):
        task.compile(Flash(progress=False), max_metric_calls=21)
    assert (task.metric_calls, task.task_calls) == ([], [])


def test_best_outputs_are_the_programs_own_predictions(task):
    program = task.compile(Flash(progress=False), track_best_outputs=True)
    best = program.detailed_results.best_outputs_valset
    assert set(best) == set(range(8))
    for example, pairs in best.items():
        for candidate, output in pairs:
            score = program.detailed_results.val_subscores[candidate][example]
            assert (output.answer == "right") is (score == 1.0)


def test_user_code_runs_under_the_callers_settings(task):
    seen = []

    class Recording(dspy.ChatAdapter):
        def format(self, *arguments, **named):
            seen.append(threading.current_thread().name.split("-")[0])
            return super().format(*arguments, **named)

    other = task.make_lm("other", task._answer)
    usages = []
    task.on_metric = lambda gold, pred, name: usages.append(pred.get_lm_usage())
    with dspy.context(lm=other, adapter=Recording(), track_usage=True):
        task.compile(Flash(progress=False))
    assert task.lms == {"other"}
    assert set(seen) == {"flashevolve"}
    assert len(seen) >= len(task.task_calls) > 0
    assert usages
    assert all(set(usage) == {"other"} for usage in usages)


def test_a_predictors_own_lm_wins_over_the_settings(task):
    own_calls, asked = [], []

    def answer(system, user):
        own_calls.append(user)
        return task._answer(system, user)

    own = task.make_lm("own", answer)
    task.on_task = lambda *_: asked.append(dspy.settings.lm.model)
    student = task.student()
    student.set_lm(own)
    task.compile(Flash(progress=False), student=student)
    assert len(own_calls) == len(task.task_calls) > 0
    assert set(asked) == {"task"}  # the settings stay as they were


@pytest.mark.parametrize(
    ("threads", "setting", "asked", "slots"), [(3, 5, None, 3), (None, 5, None, 5), (3, 5, 2, 2), (None, 6, 7, 7)]
)
def test_there_are_as_many_slots_as_the_host_has_threads(threads, setting, asked, slots, task):
    together = threading.Barrier(slots)
    first = iter(range(slots))  # the seed's first examples wait for each other

    def meet(*_):
        if next(first, None) is not None:
            together.wait(60)

    task.on_metric = meet
    flash = Flash(progress=False, max_concurrency=asked)
    with dspy.context(num_threads=setting):
        task.compile(flash, num_threads=threads)
    assert flash.last_run.slots == {"task": slots, "reflection": slots, "local": slots}
    assert not together.broken


def test_with_one_thread_the_metric_is_never_called_twice_at_once(task):
    """Not even for a score while it is asked for feedback."""
    inside, together = threading.Lock(), threading.Event()
    patient = iter(range(5))

    def metric(gold, pred, name):
        if not inside.acquire(blocking=False):
            together.set()
            return
        if name is not None and next(patient, None) is not None:
            together.wait(0.1)  # for a call that must not come
        inside.release()

    task.on_metric = metric
    task.compile(Flash(progress=False, staleness="full"), num_threads=1)
    assert next(patient, None) is None
    assert not together.is_set()


def test_one_flash_serves_two_runs_at_once(task, consistent):
    flash, other = Flash(progress=False), type(task)()
    both = threading.Barrier(2)

    def run(each):
        once = iter([True])
        each.on_metric = lambda *_: next(once, None) and both.wait(60)
        with dspy.context(lm=each.task_lm):
            return each.compile(flash)

    with ThreadPoolExecutor(2) as pool:
        programs = list(pool.map(run, [task, other]))
    for each, program in zip([task, other], programs, strict=True):
        consistent(each, program, 100)
    assert not both.broken


def test_a_plugin_sees_the_run(task):
    class Watcher:
        def __init__(self):
            self.ended, self.last = [], None

        @hookimpl
        def flashevolve_item_ended(self, record):
            self.ended.append((record.terminal.value, threading.current_thread()))

        @hookimpl
        def flashevolve_run_finished(self, snapshot):
            self.last = snapshot

    watcher = Watcher()
    program = task.compile(Flash(progress=False, plugins=[watcher]))
    assert {thread for _, thread in watcher.ended} == {threading.current_thread()}
    committed = sum(terminal == "committed" for terminal, _ in watcher.ended)
    assert committed == watcher.last.accepted + 1  # the seed is committed, but no proposal
    assert watcher.last.best_score == max(program.detailed_results.val_aggregate_scores)
