"""A proposer that crashes, floods or lies, and an evaluation that is killed: the run goes on, and nothing is lost."""

import json
import os
import signal
import subprocess

import pytest
from harness_task import Evaluator, Proposer, manifests, run

from flashevolve_plugins import Flash
from flashevolve_plugins._errors import BackendError
from flashevolve_plugins.adapters.meta_harness import texts

PLANTED = "sk-planted-0123456789"


def flash(**options):
    options = {"max_concurrency": 2, "reflection_concurrency": 2, "staleness": "full", "progress": False, **options}
    return Flash(**options)


def test_a_proposer_that_raises_costs_its_candidate_alone(tmp_path, tell):
    def fails(request):
        if request.candidate_id == "c0002":
            raise OSError("the agent is gone")

    settings = flash()
    result, folder = run(tmp_path, settings, budget=5, proposer=Proposer(steps=lambda n: 1, reached=fails))
    told = manifests(folder)
    assert len(result.candidate_ids) == 6
    assert told["c0002"]["outcome"] == "crash"
    assert told["c0002"]["outcome_summary"] == "OSError: the agent is gone"
    assert settings.last_run.ended["failed"] == 1
    lost = 6 - len(told)
    tell("a proposer that raises", tries=1, outcome="its candidate has crashed; the run goes on", lost=lost)


def test_an_evaluation_that_is_killed_is_no_score(tmp_path, tell):
    def killed(workspace):
        if workspace.parent.name == "c0001":
            process = subprocess.Popen(["/bin/sleep", "300"])
            os.kill(process.pid, signal.SIGKILL)
            raise ChildProcessError(f"the evaluation ended with {process.wait()}")

    proposer = Proposer(steps=lambda n: 1)
    result, folder = run(tmp_path, flash(), budget=4, proposer=proposer, evaluator=Evaluator(killed))
    told = manifests(folder)
    assert len(result.candidate_ids) == 5
    assert (told["c0001"]["outcome"], told["c0001"]["valid"]) == ("crash", False)
    assert told["c0001"]["outcome_summary"] == "ChildProcessError: the evaluation ended with -9"
    assert result.best_objective >= 1
    lost = 5 - len(told)
    tell("an evaluation that is killed", tries=1, outcome="its candidate has no score; the run goes on", lost=lost)


def test_malformed_json_of_a_proposer_costs_nothing_else(tmp_path, tell):
    proposer = Proposer(steps=lambda n: 1, files=lambda n: {".metaharness/change_manifest.json": "{not json"})
    result, folder = run(tmp_path, flash(), budget=3, proposer=proposer)
    assert result.best_objective >= 1
    assert [each["change_manifest_valid"] for each in manifests(folder).values()] == [None, False, False, False]
    outcome = "its manifest of changes is invalid; it is evaluated all the same"
    tell("malformed JSON of a proposer", tries=3, outcome=outcome, lost=4 - len(manifests(folder)))


@pytest.mark.parametrize("raises", [False, True])
def test_a_hopeless_run_ends_with_one_sentence_and_its_state_kept(tmp_path, raises, tell):
    def fails(request):
        if raises:
            raise OSError("not logged in")

    proposer = Proposer(reached=fails, applied=lambda n: False)
    sentence = r"10 proposals in a row brought nothing to try, the last since: .*(step \d+|not logged in): correct that"
    with pytest.raises(BackendError, match=sentence):
        run(tmp_path, flash(), budget=100, proposer=proposer)
    folder = tmp_path / "run"
    assert 10 <= len(manifests(folder)) - 1 <= 12
    leaderboard = json.loads((folder / "indexes" / "leaderboard.json").read_text())
    assert leaderboard["best_candidate_id"] == "c0000"
    lost = len(manifests(folder)) - len(leaderboard["candidates"])
    tell("ten proposals in a row that bring nothing to try", tries=2, outcome="one sentence, state kept", lost=lost)


def test_a_baseline_that_cannot_be_evaluated_raises_what_the_host_raises(tmp_path):
    def fails(workspace):
        raise LookupError("no judge")

    with pytest.raises(LookupError, match="no judge"):
        run(tmp_path, flash(), evaluator=Evaluator(fails))


def test_an_evaluation_that_meets_a_dead_server_is_tried_again_and_no_score(tmp_path):
    def refused(workspace):
        if workspace.parent.name == "c0001":
            tries.append(workspace)
            if len(tries) == 1:
                raise ConnectionError("the judge restarts")

    tries = []
    proposer = Proposer(steps=lambda n: n)
    _, folder = run(tmp_path, flash(), budget=2, proposer=proposer, evaluator=Evaluator(refused))
    assert len(tries) == 2
    assert manifests(folder)["c0001"]["objective"] == 1


def test_no_secret_of_the_environment_gets_into_a_file(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("SOME_API_KEY", PLANTED)

    def fails(request):
        if request.candidate_id == "c0002":
            raise OSError(f"401 for {os.environ['SOME_API_KEY']}")

    class Talks(Proposer):
        def collect(self, execution):
            result = super().collect(execution)
            result.summary = f"used {PLANTED}"
            return result

    proposer = Talks(
        steps=lambda n: 1,
        command="echo $SOME_API_KEY",
        reached=fails,
        applied=lambda n: n != 3,
        files=lambda n: {"more.txt": os.environ["SOME_API_KEY"]} if n == 4 else {},
    )
    _, folder = run(tmp_path, flash(), budget=5, proposer=proposer)
    own_code = folder / "candidates/c0004/workspace/more.txt"
    assert own_code.read_text() == PLANTED  # what a candidate is made of is not changed
    holding = [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and "workspace" not in path.parent.parts and PLANTED in path.read_text(errors="replace")
    ]
    assert holding == []
    assert "[SOME_API_KEY]" in (folder / "candidates/c0001/proposal/stdout.jsonl").read_text()
    assert "[SOME_API_KEY]" in manifests(folder)["c0002"]["outcome_summary"]
    assert PLANTED not in caplog.text


def test_a_proposers_output_is_bounded_on_disk_and_keeps_both_its_ends(tmp_path):
    path = tmp_path / "stdout.jsonl"
    path.write_text("\n".join(f'{{"line": {n}}}' for n in range(10_000)))
    texts.tidy_output(path, most=10_000)
    lines = [json.loads(line)["line"] for line in path.read_text().splitlines()]
    assert path.stat().st_size <= 10_001
    assert (lines[0], lines[-1]) == (0, 9_999)
    assert lines == sorted(lines)


def test_a_flood_is_cut_in_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(texts.tidy_output, "__defaults__", (2_000,))
    proposer = Proposer(steps=lambda n: 1, command="seq 1 20000")
    _, folder = run(tmp_path, flash(), budget=1, proposer=proposer)
    printed = (folder / "candidates/c0001/proposal/stdout.jsonl").read_text().split()
    assert len(printed) < 600
    assert (printed[0], printed[-1]) == ("1", "20000")


def test_a_file_that_cannot_be_replaced_leaves_the_old_one(tmp_path):
    path = tmp_path / "state.json"
    texts.write_json_whole(path, {"a": 1})
    with pytest.raises(TypeError):
        texts.write_json_whole(path, {"a": object()})
    path.with_name("folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        texts.write_whole(path.with_name("folder"), b"x")
    assert json.loads(path.read_text()) == {"a": 1}
    assert sorted(each.name for each in tmp_path.iterdir()) == ["folder", "state.json"]
