"""Reflections run at once as far as that is allowed, and never more of them."""

import threading
from collections import Counter

import pytest
from gepa.strategies.proposal_sampling import PxNSampling

from flashevolve_plugins import Flash
from flashevolve_plugins.hooks import hookimpl


class Crowd:
    """Holds callers until as many as expected are inside, while further items wait to be.

    Those further items would be inside as well if nothing kept them out; ``most`` is how many were.
    """

    def __init__(self, expected, after="dataset"):
        self.expected, self.after, self.most, self._inside, self._ready = expected, after, 0, 0, 0
        self._changed, self.go = threading.Condition(), threading.Event()

    @hookimpl
    def flashevolve_stage_finished(self, item, stage):
        self._ready += stage == self.after
        if self._ready >= self.expected + 2 and not self.go.is_set():
            with self._changed:
                assert self._changed.wait_for(lambda: self._inside >= self.expected, 60)
            self.go.set()

    def __call__(self, *_):
        with self._changed:
            self._inside += 1
            self.most = max(self.most, self._inside)
            self._changed.notify_all()
        assert self.go.wait(60)
        with self._changed:
            self._inside -= 1


@pytest.mark.parametrize("bound", [1, 2, 3])
def test_reflections_run_at_once_up_to_the_bound(bound, task, consistent):
    crowd = Crowd(bound)
    task.on_reflect = crowd
    flash = Flash(progress=False, reflection_concurrency=bound, plugins=[crowd], staleness="full")
    program = task.compile(flash, max_metric_calls=200)
    assert crowd.go.is_set()
    assert crowd.most == bound
    assert flash.last_run.slots["reflection"] == bound
    consistent(task, program, 200)


def test_by_default_as_many_reflections_as_slots_run_at_once(task):
    meet = threading.Barrier(3)
    first = iter(range(3))
    task.on_reflect = lambda *_: next(first, None) is not None and meet.wait(60)
    flash = Flash(progress=False, staleness="full")
    task.compile(flash, max_metric_calls=200, num_threads=3)
    assert flash.last_run.slots["reflection"] == 3
    assert next(first, None) is None
    assert not meet.broken


def test_the_proposals_of_one_sampling_call_reflect_at_once(task, consistent):
    """The host makes them one after the other."""
    meet = threading.Barrier(4)
    first = iter(range(4))
    task.on_reflect = lambda *_: next(first, None) is not None and meet.wait(60)
    options = {"gepa_kwargs": {"sampling_strategy": PxNSampling(2, 2)}, "max_metric_calls": 150}
    consistent(task, task.compile(Flash(progress=False, max_items=1), **options), 150)
    assert next(first, None) is None
    assert not meet.broken


class Proposer:
    """An instruction proposer of the user's own."""

    def __init__(self, crowd):
        self.crowd, self.calls = crowd, 0

    def __call__(self, candidate, reflective_dataset, components_to_update):
        self.crowd()
        self.calls += 1
        rule = self.calls % 4 + 1
        return {name: f"{candidate[name]} knows-answer-{rule}" for name in components_to_update}


@pytest.mark.parametrize(("asked", "at_once"), [(None, 1), (2, 2)])
def test_a_custom_proposer_runs_one_at_a_time_unless_the_user_says_otherwise(asked, at_once, task, consistent):
    crowd = Crowd(at_once)
    proposer = Proposer(crowd)
    flash = Flash(progress=False, reflection_concurrency=asked, plugins=[crowd], staleness="full")
    program = task.compile(flash, instruction_proposer=proposer, reflection_lm=None, max_metric_calls=200)
    assert crowd.go.is_set()
    assert crowd.most == at_once
    assert proposer.calls > 1
    consistent(task, program, 200)


def test_feedback_is_asked_for_several_items_at_once(task):
    crowd = Crowd(2, after="rollout")
    task.on_metric = lambda gold, pred, name: name is not None and crowd()
    task.compile(Flash(progress=False, staleness="full", plugins=[crowd]), num_threads=8, max_metric_calls=150)
    assert crowd.go.is_set()
    assert crowd.most >= 2


def test_a_reflection_that_fails_is_tried_once_more_and_then_given_up(task, consistent):
    failures, lock = Counter(), threading.Lock()

    def fail(system, user):
        with lock:
            fails = user in failures or len(failures) < 3  # the first prompts, as often as they come
            if fails:
                failures[user] += 1
        if fails:
            raise RuntimeError("the reflection server hiccups")

    task.on_reflect = fail
    flash = Flash(progress=False, staleness="full")
    program = task.compile(flash, max_metric_calls=150)
    consistent(task, program, 150)
    assert len(failures) == 3
    assert all(count % 2 == 0 for count in failures.values())
    assert flash.last_run.ended["skipped"] >= failures.total() / 2
