"""Evaluations of several jobs: stopped once they trail the best, and the longest job first."""

import json

import pytest
from harness_task import Evaluator, Proposer, manifests, number, run

from flashevolve_plugins import Flash, UsageError
from flashevolve_plugins.hooks import Decided, LongestFirst, Speculative, Trailing

JOBS = 8


class Split(Evaluator):
    """Every job's score is the number; the n-th takes n seconds more than the first."""

    def __init__(self):
        super().__init__()
        self.started = {}

    def flashevolve_jobs(self, workspace):
        def job(n):
            def call():
                self.started.setdefault(workspace.parent.name, []).append(n)
                return number(workspace) + n / 10

            call.flashevolve_seconds = lambda: 1.0 + n
            return call

        return [job(n) for n in range(JOBS)]

    def flashevolve_combine(self, workspace, results):
        from metaharness import EvaluationResult

        assert [round((each - number(workspace)) * 10) for each in results] == list(range(JOBS))
        return EvaluationResult(sum(results) / JOBS)


def evaluating(tmp_path, *plugins, steps=(-1, 2, -1, 3), **options):
    """A run of one proposer and one evaluator: the evaluator, and the run's directory."""
    evaluator = Split()
    slots = {} if options.get("lockstep") else {"max_concurrency": 1, "reflection_concurrency": 1, "clock": "virtual"}
    flash = Flash(**slots, **options, progress=False, plugins=list(plugins))
    proposer = Proposer(steps=lambda n: steps[n - 1])
    _, folder = run(tmp_path, flash, budget=len(steps), proposer=proposer, evaluator=evaluator)
    return evaluator, folder


def test_a_candidate_that_trails_the_best_is_stopped_after_the_share_that_was_asked_for(tmp_path):
    evaluator, folder = evaluating(tmp_path, Trailing(after=0.5), staleness="full")
    assert {name: len(jobs) for name, jobs in evaluator.started.items()} == {
        "c0000": JOBS,
        "c0001": JOBS // 2,
        "c0002": JOBS,
        "c0003": JOBS // 2,
        "c0004": JOBS,
    }
    told = manifests(folder)
    assert (told["c0001"]["outcome"], told["c0001"]["valid"]) == ("discard", False)
    assert told["c0002"]["outcome"] == "keep"


def test_scores_of_what_was_stopped_are_in_our_records_alone(tmp_path):
    _, folder = evaluating(tmp_path, Trailing(after=0.5), steps=(-1,))
    assert manifests(folder)["c0001"]["outcome_summary"] == "its evaluation was stopped before its end"
    assert manifests(folder)["c0001"]["search_objective"] == float("-inf")
    assert not (folder / "candidates" / "c0001" / "evaluation").exists()
    items = [json.loads(line) for line in (folder / "flashevolve_items.jsonl").read_text().splitlines()]
    (stopped,) = [each for each in items if each.get("stopped_scores")]
    assert stopped["stopped_scores"] == [-1.0, -0.9, -0.8, -0.7]
    assert "after 4 of 8" in stopped["reason"]


def test_without_a_plugin_every_job_runs(tmp_path):
    evaluator, _ = evaluating(tmp_path)
    assert {len(jobs) for jobs in evaluator.started.values()} == {JOBS}


def test_in_lockstep_every_job_runs_in_the_hosts_order(tmp_path):
    evaluator, _ = evaluating(tmp_path, Trailing(after=0.5), LongestFirst(), lockstep=True)
    assert all(jobs == list(range(JOBS)) for jobs in evaluator.started.values())


def test_the_job_that_took_longest_starts_first(tmp_path):
    evaluator, _ = evaluating(tmp_path, LongestFirst())
    assert evaluator.started["c0000"] == list(range(JOBS))
    assert evaluator.started["c0002"] == list(range(JOBS))[::-1]


def test_what_is_stopped_is_told_as_of_the_longest_first(tmp_path):
    evaluator, folder = evaluating(tmp_path, LongestFirst(), Trailing(after=0.5), steps=(-1,))
    assert evaluator.started["c0001"] == [7, 6, 5, 4]
    assert manifests(folder)["c0001"]["valid"] is False


@pytest.mark.parametrize(("plugin", "why"), [(Decided(), "decides gates"), (Speculative(), "still being evaluated")])
def test_plugins_that_could_do_nothing_are_refused_before_the_first_proposal(tmp_path, plugin, why):
    proposer = Proposer()
    flash = Flash(max_concurrency=1, reflection_concurrency=1, progress=False, plugins=[plugin])
    with pytest.raises(UsageError, match=why):
        run(tmp_path, flash, proposer=proposer)
    assert not proposer.sessions
