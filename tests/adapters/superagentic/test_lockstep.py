"""In lockstep a run is the host's own: the same candidates, scores and files, the same calls in the same order."""

import pytest
from harness_task import Evaluator, HeldOut, Proposer, Validator, run, told

from flashevolve_plugins import Flash

OPTIONS = {
    "plain": {},
    "batches": {"proposal_batch_size": 3, "budget": 2},
    "frontier": {"search_mode": "frontier", "budget": 2},
    "pareto": {"search_mode": "frontier", "selection_policy": "pareto", "proposal_batch_size": 3, "budget": 2},
    "validated": {"validator": Validator()},
    "scoped": {"allowed_write_paths": ["number.txt"]},
}
PROPOSERS = {
    "plain": {},
    "nothing changed": {"steps": lambda n: n % 2},
    "crashes": {"applied": lambda n: n % 3 != 1},
    "times out": {"command": "sleep 60", "timeout": 0.05, "steps": lambda n: 0},
    "writes elsewhere": {"files": lambda n: {"other/file.txt": "x"} if n % 2 else {}},
    "falls": {"steps": lambda n: -1},
    "says what it did": {
        "files": lambda n: {
            ".metaharness/change_manifest.json": '{"changes": [{"component": "a", "files": ["number.txt"], '
            '"predicted_fixes": ["positive"], "risk_tasks": ["small"]}]}'
        }
    },
    "says it badly": {"files": lambda n: {".metaharness/change_manifest.json": "{not json"}},
}
LOCKSTEP = Flash(lockstep=True, progress=False)


def both(tmp_path, options, knobs, evaluator):
    seen = []
    for name, executor in (("alpha", None), ("beta", LOCKSTEP)):
        scorer = evaluator()
        result, folder = run(tmp_path / name, executor, proposer=Proposer(**knobs), evaluator=scorer, **options)
        seen.append((told(folder), scorer.evaluated, result.best_candidate_id, result.best_objective))
        seen[-1] += (result.candidate_ids, result.frontier_candidate_ids, str(result.best_workspace_dir.name))
    return seen


CASES = [(options, "plain") for options in OPTIONS] + [("batches", knobs) for knobs in PROPOSERS if knobs != "plain"]


@pytest.mark.parametrize(("options", "knobs"), CASES)
def test_lockstep_is_the_hosts_own_run(tmp_path, options, knobs):
    own, ours = both(tmp_path, OPTIONS[options], PROPOSERS[knobs], HeldOut)
    assert own[1:] == ours[1:]
    assert own[0].keys() == ours[0].keys()
    assert {name: (own[0][name], ours[0][name]) for name in own[0] if own[0][name] != ours[0][name]} == {}
    assert len(own[0]) > 20


def test_lockstep_of_a_baseline_that_is_not_valid(tmp_path):
    class Refuses:
        def validate(self, workspace):
            from metaharness import ValidationResult

            return ValidationResult(workspace.parent.name != "c0000", "not this one")

    own, ours = both(tmp_path, {"validator": Refuses()}, {}, Evaluator)
    assert own == ours
    assert "-Infinity" in own[0]["candidates/c0000/manifest.json"]


def test_lockstep_raises_what_the_host_raises(tmp_path):
    def fails(workspace):
        if workspace.parent.name == "c0002":
            raise ConnectionError("no answer")

    seen = []
    for name, executor in (("alpha", None), ("beta", LOCKSTEP)):
        with pytest.raises(ConnectionError, match="no answer"):
            run(tmp_path / name, executor, evaluator=Evaluator(reached=fails))
        seen.append(told(tmp_path / name / "run"))
    assert seen[0] == seen[1]


def test_a_block_and_the_engine_itself_use_flash_and_none_does_not(tmp_path):
    from metaharness.core.engine import MetaHarnessEngine
    from metaharness.domain import LegacyDomainAdapter

    flash = Flash(lockstep=True, progress=False)
    with flash:
        run(tmp_path / "alpha", None)
        assert flash.last_run is None
        (tmp_path / "beta").mkdir()
        engine = MetaHarnessEngine(
            tmp_path / "alpha" / "baseline",
            Proposer(),
            LegacyDomainAdapter(Validator(), Evaluator()),
            tmp_path / "beta" / "run",
            2,
            "x",
        )
        assert engine.run().candidate_ids == ["c0000", "c0001", "c0002"]
    assert flash.last_run.proposals == 2


def test_an_engine_with_a_loop_of_its_own_is_refused(tmp_path):
    from metaharness.core.engine import MetaHarnessEngine

    class Other(MetaHarnessEngine):
        def _evaluate_candidate(self, parent, candidate):
            raise AssertionError

    engine = Other(tmp_path, Proposer(), Evaluator(), tmp_path / "run", 1, "x")
    with Flash(progress=False), pytest.raises(ValueError, match=r"Other\._evaluate_candidate is not the host's own"):
        engine.run()
