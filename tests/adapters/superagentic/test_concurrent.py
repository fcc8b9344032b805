"""Outside lockstep: many proposers and evaluations at once, one writer, and a directory that the host can read."""

import json
import threading
from collections import Counter

import pytest
from harness_task import FILE, Evaluator, HeldOut, Proposer, manifests, number, run

from flashevolve_plugins import Flash, UsageError
from flashevolve_plugins.hooks import Fixed, hookimpl

PATIENCE = 60  # seconds, for what must happen at once


def flash(**options):
    options = {"max_concurrency": 4, "reflection_concurrency": 4, "staleness": "full", "progress": False, **options}
    return Flash(**options)


def virtual(**options):
    return flash(clock="virtual", **options)


class Ends:
    """Keeps the records."""

    def __init__(self):
        self.records = []

    @hookimpl
    def flashevolve_item_ended(self, record):
        self.records.append(record)


def test_four_proposers_work_at_once(tmp_path):
    together = threading.Barrier(4, timeout=PATIENCE)
    proposer = Proposer(reached=lambda request: together.wait())
    result, folder = run(tmp_path, flash(), budget=8, proposer=proposer)
    assert len(result.candidate_ids) == 9
    assert {each["outcome"] for each in manifests(folder).values()} <= {"baseline", "keep", "discard", "no-change"}


@pytest.mark.parametrize("control", ["adaptive", Fixed(propose=1, evaluate=1)])
def test_few_workers_per_stage_lose_no_candidate(tmp_path, control):
    settings = virtual(control=control)
    result, folder = run(tmp_path, settings, budget=8, proposer=Proposer())
    assert len(result.candidate_ids) == 9
    assert len(manifests(folder)) == 9
    assert settings.last_run.finished["propose"] == 8
    assert settings.last_run.workers["propose"] == (2 if control == "adaptive" else 1)


def test_a_stage_that_meta_harness_does_not_have_is_told_before_the_first_proposal(tmp_path):
    proposer = Proposer()
    sentence = "Fixed names the stage 'rollout', .*: its stages are propose, test, check, evaluate, judge"
    with pytest.raises(UsageError, match=sentence):
        run(tmp_path, flash(control=Fixed(rollout=1)), budget=8, proposer=proposer)
    assert not proposer.sessions


@pytest.mark.parametrize(("name", "value"), [("rollouts", 2), ("speculate", True), ("remember_rejected", True)])
def test_options_of_other_hosts_are_refused_before_the_first_proposal(tmp_path, name, value):
    proposer = Proposer()
    with pytest.raises(UsageError, match=f"{name}={value} is for gepa and dspy, and "):
        run(tmp_path, flash(**{name: value}), budget=8, proposer=proposer)
    assert not proposer.sessions


def test_evaluations_overlap_proposals(tmp_path):
    proposing, evaluating = threading.Event(), threading.Event()

    def reached(request):
        if request.candidate_id == "c0002":  # goes on when another candidate is being evaluated
            proposing.set()
            assert evaluating.wait(PATIENCE)

    def evaluated(workspace):
        if workspace.parent.name == "c0001":
            evaluating.set()
            assert proposing.wait(PATIENCE)

    proposer = Proposer(steps=lambda n: n, reached=reached)
    result, _ = run(tmp_path, flash(), budget=2, proposer=proposer, evaluator=Evaluator(evaluated))
    assert result.best_objective >= 2


def test_evaluations_run_at_once_and_end_before_the_run(tmp_path):
    together = threading.Barrier(3, timeout=PATIENCE)

    def evaluated(workspace):
        if workspace.parent.name != "c0000":
            together.wait()

    proposer = Proposer(steps=lambda n: 1)
    _, folder = run(tmp_path, flash(), budget=3, proposer=proposer, evaluator=Evaluator(evaluated))
    assert len(list(folder.glob("candidates/*/evaluation/search_result.json"))) == 4


def test_objects_of_the_users_own_are_called_once_at_a_time_and_are_told_of(tmp_path, caplog):
    busy, most = Counter(), Counter()
    lock = threading.Lock()

    def counted(name):
        def call(_):
            with lock:
                busy[name] += 1
                most[name] = max(most[name], busy[name])
            with lock:
                busy[name] -= 1

        return call

    proposer, evaluator = Proposer(reached=counted("proposer")), Evaluator(counted("evaluator"))
    proposer.flashevolve_evaluate = evaluator.flashevolve_evaluate = None
    own = Flash(progress=False)
    run(tmp_path, own, proposer=proposer, evaluator=evaluator)
    assert own.last_run.slots == {"proposer": 1, "evaluator": 1}
    assert most == {"proposer": 1, "evaluator": 1}
    assert "The proposer and the evaluator of this run are objects of your own" in caplog.text


def test_every_proposer_sees_whole_files_of_one_moment(tmp_path):
    seen = {}

    def reached(request):
        experience = request.experience_dir
        for path in experience.rglob("*.json"):
            json.loads(path.read_text())
        prior = json.loads((experience / "index.json").read_text())["prior_candidate_ids"]
        for name in prior:
            manifest = json.loads((experience / "candidates" / name / "manifest.json").read_text())
            assert manifest["outcome"] in {"baseline", "keep", "discard", "no-change"}
        seen[request.candidate_id] = (request.parent_candidate_ids[0], prior)

    proposer = Proposer(steps=lambda n: 1, reached=reached)
    result, _ = run(tmp_path, flash(), budget=20, proposer=proposer)
    assert len(seen) == 20
    assert all(parent in prior and name not in prior for name, (parent, prior) in seen.items())
    assert len(set(result.candidate_ids)) == 21


def test_the_hosts_own_commands_read_the_directory(tmp_path, capsys):
    from metaharness.cli import main
    from metaharness.reporting import summarize_run

    result, folder = run(tmp_path, flash(), budget=6, evaluator=HeldOut())
    summary = summarize_run(folder)
    assert summary["best_candidate_id"] == result.best_candidate_id
    assert summary["candidate_count"] == 7
    assert summary["best_test_objective"] == result.best_objective / 2
    assert main(["inspect", str(folder)]) in (0, None)
    assert result.best_candidate_id in capsys.readouterr().out


def test_each_improvement_is_made_of_the_best_and_the_indexes_follow_it(tmp_path):
    result, folder = run(tmp_path, virtual(), budget=12, proposer=Proposer(steps=lambda n: 1))
    kept = [name for name, each in manifests(folder).items() if each["outcome"] == "keep"]
    scores = [manifests(folder)[name]["objective"] for name in kept]
    assert scores == sorted(scores)
    assert len(set(scores)) == len(scores) == 2  # the second four begin before the first four are evaluated
    leaderboard = json.loads((folder / "indexes" / "leaderboard.json").read_text())
    assert leaderboard["best_candidate_id"] == result.best_candidate_id
    assert leaderboard["candidates"] == result.candidate_ids


def test_guarded_discards_what_is_stale_before_it_is_evaluated(tmp_path):
    ends = Ends()
    evaluator = Evaluator()
    # four begin at once; the first to end is kept, and the three others were made of its parent
    proposer = Proposer(steps=lambda n: 1, seconds=lambda n: 3.0 + n)
    settings = virtual(staleness="guarded", plugins=[ends])
    _, folder = run(tmp_path, settings, budget=4, proposer=proposer, evaluator=evaluator)
    told = manifests(folder)
    assert evaluator.evaluated.count("c0001") == 1
    late = [each for each in told.values() if each["outcome_summary"].startswith("stale by ")]
    assert [each["outcome"] for each in late] == ["discard"] * len(late)
    assert late
    assert {each["candidate_id"] for each in late}.isdisjoint(evaluator.evaluated)
    assert sum(record.terminal.value == "discarded" for record in ends.records) == len(late)


def test_reflective_sends_a_stale_candidate_back_with_what_entered_since(tmp_path):
    seen = {}

    def reached(request):
        stale = request.experience_dir / "stale"
        if stale.exists():
            diff = (stale / "workspace.diff").read_text()
            prior = json.loads((request.experience_dir / "index.json").read_text())["prior_candidate_ids"]
            told = request.instructions_path.read_text()
            seen[request.candidate_id] = (number(stale / "workspace"), number(request.workspace_dir), prior, diff, told)

    ends = Ends()
    proposer = Proposer(steps=lambda n: 1, seconds=lambda n: 3.0 + n, reached=reached)
    settings = virtual(staleness="reflective", plugins=[ends])
    result, folder = run(tmp_path, settings, budget=4, proposer=proposer)
    was, onto, prior, diff, told = seen["c0002"]
    assert (was, onto) == (1, 1)  # the stale candidate's number, and that of the workspace it is carried onto
    assert "c0001" in prior
    assert f"b/{FILE}" in diff
    assert ".metaharness/experience/stale" in told
    assert manifests(folder)["c0002"]["parent_candidate_ids"] == ["c0001"]
    assert manifests(folder)["c0002"]["outcome"] == "keep"
    assert (folder / "candidates/c0002/rebased/1/proposal/workspace.diff").read_text() == diff
    assert result.best_objective == 4  # each of the four carries its step onto the one before
    assert settings.last_run.spent == 4
    patched = [record for record in ends.records if any("patch" in move for move in record.story)]
    assert len(patched) == 3


def test_a_candidate_that_stays_stale_is_not_sent_back_for_ever(tmp_path):
    from flashevolve_plugins.hooks import Reflective

    proposer = Proposer(steps=lambda n: 1, seconds=lambda n: 6.0 if n == 1 else 1.0)
    settings = virtual(staleness=Reflective(max_patches=1), max_concurrency=2, reflection_concurrency=2)
    _, folder = run(tmp_path, settings, budget=16, proposer=proposer)
    assert manifests(folder)["c0001"]["outcome_summary"] == "stale again after 1 rebases"
    assert proposer.sessions[1] == 2


def test_an_evaluator_that_can_be_split_runs_in_jobs(tmp_path):
    together = threading.Barrier(4, timeout=PATIENCE)

    class Split(Evaluator):
        def flashevolve_jobs(self, workspace):
            return [lambda part=part: (together.wait(), part * number(workspace))[1] for part in range(4)]

        def flashevolve_combine(self, workspace, results):
            from metaharness import EvaluationResult

            return EvaluationResult(float(sum(results)))

    result, _ = run(tmp_path, flash(), budget=1, proposer=Proposer(steps=lambda n: 2), evaluator=Split())
    assert result.best_objective == 12


def test_a_run_directory_belongs_to_one_run_at_a_time(tmp_path):
    def again(request):
        with pytest.raises(ValueError, match="is in use by process"):
            run(tmp_path, flash())
        entered.append(request.candidate_id)

    entered = []
    run(tmp_path, flash(), budget=1, proposer=Proposer(reached=again))
    assert entered == ["c0001"]


def test_two_writers_of_one_store_never_share_a_name(tmp_path):
    from metaharness.models import CandidateRecord
    from metaharness.store.filesystem import FilesystemRunStore

    from flashevolve_plugins.adapters.meta_harness.superagentic_files import materialize

    (tmp_path / "base").mkdir()
    store = FilesystemRunStore(tmp_path / "run")
    store.initialize_run({})
    parent = store.materialize_baseline(tmp_path / "base")
    assert isinstance(parent, CandidateRecord)
    stale = store._next_candidate_index()
    store._next_candidate_index = lambda: stale  # what two writers that look at once both see
    assert [materialize(store, parent).candidate_id for _ in range(3)] == ["c0001", "c0002", "c0003"]
