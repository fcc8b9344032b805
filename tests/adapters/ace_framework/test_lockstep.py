"""Lockstep gives what the host's own run gives: results, skillbook, recent reflections, checkpoints, calls."""

import json
import logging

import pytest
from ace import OnlineACE, ReplayAgent, Sample
from framework_task import (
    Calls,
    NumberModel,
    anything,
    book_of,
    make_ace,
    make_dedup,
    make_samples,
    run,
    timeless,
    without_dates,
)

from flashevolve_plugins import Flash

OPTIONS = {
    "plain": {},
    "epochs": {"epochs": 3},
    "rounds and window": {"epochs": 2, "max_refinement_rounds": 4, "reflection_window": 1},
    "no observability": {"epochs": 2, "enable_observability": False},
    "deduplication": {"epochs": 2, "dedup": True},
    "failing samples": {"epochs": 2, "fails": {1, 2, 5}, "dedup": True},
    "checkpoints": {"epochs": 2, "checkpoint_interval": 3, "fails": {4}},
    "observability that fails": {"untracked": True},
    "checkpoints that cannot be written": {"checkpoint_interval": 2, "blocked": True},
}


class Opik:
    """Stands for the host's observability."""

    def __init__(self):
        self.seen = []

    def log_adaptation_metrics(self, **metrics):
        self.seen.append(metrics)


class Told(logging.Handler):
    def __init__(self):
        super().__init__()
        self.warnings = 0

    def emit(self, record):
        self.warnings += record.levelno == logging.WARNING


def everything(folder, executor, seed, *, epochs=1, checkpoint_interval=None, dedup=False, fails=(), **settings):
    """Run, and give all that can be seen of it."""
    model, embedded, opik, told = NumberModel(anything(seed), fails=fails), [], Opik(), Told()
    dedup = make_dedup(embedded, similarity_threshold=0.9) if dedup else None
    blocked, untracked = settings.pop("blocked", False), settings.pop("untracked", False)
    ace = make_ace(model, executor=executor, dedup=dedup, skillbook=book_of("old 1", "older 1"), **settings)
    if ace.enable_observability:
        ace.opik_integration = opik
    ace.agent.generate, ace.reflector.reflect = Calls(ace.agent.generate), Calls(ace.reflector.reflect)
    ace.skill_manager.update_skills = Calls(ace.skill_manager.update_skills)
    samples = make_samples(9)
    if untracked:
        samples[3].metadata = samples[6].metadata = None
    if blocked:
        folder.write_text("no directory")
    logging.getLogger("ace.adaptation").addHandler(told)
    try:
        results = run(
            ace,
            samples,
            epochs=epochs,
            checkpoint_interval=checkpoint_interval,
            checkpoint_dir=str(folder) if checkpoint_interval else None,
        )
    finally:
        logging.getLogger("ace.adaptation").removeHandler(told)
    files = {} if not folder.is_dir() else {each.name: json.loads(each.read_text()) for each in folder.iterdir()}
    return {
        "results": results,
        "book": timeless(ace.skillbook),
        "reflections": ace._recent_reflections,
        "files": {name: without_dates(dump) for name, dump in files.items()},
        "calls": [ace.agent.generate.seen, ace.reflector.reflect.seen, ace.skill_manager.update_skills.seen],
        "prompts": model.calls,
        "embedded": embedded,
        "observed": opik.seen,
        "failures": told.warnings,
    }


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_lockstep_is_the_hosts_own_run(tmp_path, options, seed):
    own = everything(tmp_path / "own", None, seed, **options)
    flash = Flash(lockstep=True, progress=False)
    ours = everything(tmp_path / "ours", flash, seed, **options)
    for what, value in own.items():
        assert ours[what] == value, what
    assert len(own["results"]) > 4
    assert sum(flash.last_run.ended.values()) == 9 * options.get("epochs", 1)
    assert "apply" not in flash.last_run.samples


def test_the_options_reach_everything_that_lockstep_must_repeat(tmp_path):
    """Else the comparison above says little."""
    seen = [
        everything(tmp_path / f"{name}{seed}", None, seed, **options)
        for seed in range(4)
        for name, options in OPTIONS.items()
    ]
    assert any(each["failures"] > 3 for each in seen)
    assert any(len(each["files"]) > 3 for each in seen)
    assert any(each["embedded"] for each in seen)
    folds = [
        fold["type"]
        for each in seen
        for result in each["results"]
        for fold in result.skill_manager_output.consolidation_operations or ()
    ]
    kinds = {
        operation.type
        for each in seen
        for result in each["results"]
        for operation in result.skill_manager_output.update.operations
    }
    assert set(folds) == {"MERGE", "DELETE", "KEEP", "UPDATE"}
    assert kinds == {"ADD", "UPDATE", "TAG", "REMOVE"}
    assert any("helpful" in json.dumps(json.loads(each["book"])) and each["observed"] for each in seen)


def test_a_block_around_it_is_enough():
    ours, own = make_ace(NumberModel(anything(1))), make_ace(NumberModel(anything(1)))
    with Flash(lockstep=True, progress=False) as flash:
        results = run(ours, make_samples(5))
    assert sum(flash.last_run.ended.values()) == 5
    assert run(own, make_samples(5)) == results
    assert timeless(ours.skillbook) == timeless(own.skillbook)


def test_no_samples_and_no_epochs_give_no_results():
    for samples, epochs in [([], 3), (make_samples(2), 0)]:
        assert run(make_ace(NumberModel(), executor=Flash(lockstep=True, progress=False)), samples, epochs=epochs) == []


def test_replayed_answers():
    samples = [Sample(f"question {n}", "", str(n), {"response": str(n)}) for n in range(4)]
    own, ours = make_ace(NumberModel()), make_ace(NumberModel(), executor=Flash(lockstep=True, progress=False))
    own.agent = ours.agent = ReplayAgent()
    assert run(own, samples) == run(ours, samples)
    assert ours.skillbook.stats()["skills"] == 4


def test_online_runs_as_before():
    ace = make_ace(NumberModel())
    online = OnlineACE(agent=ace.agent, reflector=ace.reflector, skill_manager=ace.skill_manager)
    with Flash(lockstep=True, progress=False) as flash:
        assert len(run(online, iter(make_samples(3)))) == 3
    assert flash.last_run is None
    with pytest.raises(TypeError, match="executor"):
        OnlineACE(agent=ace.agent, reflector=ace.reflector, skill_manager=ace.skill_manager, executor="flash")
