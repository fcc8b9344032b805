"""In lockstep a run equals the host's own: calls, playbook, return value, and every file."""

import os
from pathlib import Path

import pytest
from ace_agent_task import Model, Processor, config, files, folder, make_ace, samples

from flashevolve_plugins import Flash

TRAILING = "## STRATEGIES & INSIGHTS\n\n## OTHERS\n[misc-00001] helpful=0 harmful=0 :: R<1>\n\n"

OFFLINE = [
    {},
    {"num_epochs": 2},
    {"curator_frequency": 3, "max_num_rounds": 2},
    {"max_num_rounds": 0, "eval_steps": 3, "save_steps": 1},
    {"json_mode": True, "no_ground_truth": True},
    {"eval_steps": 100},
]
ONLINE = [
    {"online_eval_frequency": 4},
    {"online_eval_frequency": 5, "curator_frequency": 2, "json_mode": True},
    {"online_eval_frequency": 50, "no_ground_truth": True, "max_num_rounds": 1},
]


def ran(name, mode, settings, monkeypatch, *, executor=..., **ace_settings):
    Path(name).mkdir()
    monkeypatch.chdir(Path(name).resolve())
    model = Model(unreadable={1, 7}, silent={0})
    ace = make_ace(model, monkeypatch, executor=executor, **ace_settings)
    given = {"test_samples": samples(10 if mode == "online" else 3)}
    if mode == "offline":
        given.update(train_samples=samples(10), val_samples=samples(5, first=2))
    result = ace.run(mode, data_processor=Processor(), config=config(**settings), **given)
    seen = result, model.calls, ace.playbook, ace.best_playbook, ace.next_global_id, files(folder())
    monkeypatch.chdir(os.pardir)
    return seen


def assert_equal(mode, settings, monkeypatch, **ace_settings):
    own = ran("own", mode, settings, monkeypatch, **ace_settings)
    flash = Flash(lockstep=True, progress=False)
    under = ran("flash", mode, settings, monkeypatch, executor=flash, **ace_settings)
    for ours, theirs in zip(under, own, strict=True):
        assert ours == theirs
    assert flash.last_run.ended["committed"] > 0
    return own


@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize("settings", OFFLINE, ids=str)
def test_offline(settings, monkeypatch):
    own = assert_equal("offline", settings, monkeypatch)
    assert {"final_playbook.txt", "best_playbook.txt", "bullet_usage_log.jsonl"} <= set(own[-1])


@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize("settings", ONLINE, ids=str)
def test_online(settings, monkeypatch):
    own = assert_equal("online", settings, monkeypatch)
    assert "test_results.json" in own[-1]


@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize("mode", ["offline", "online"])
def test_a_playbook_of_ones_own_with_ids_that_the_host_gives_twice(mode, monkeypatch):
    own = assert_equal(mode, {"online_eval_frequency": 4}, monkeypatch, initial_playbook=TRAILING)
    assert own[2].count("[misc-00001]") == 2


@pytest.mark.usefixtures("in_order")
def test_the_bulletpoint_analyzer(monkeypatch, host):
    def analyze(self, playbook, threshold, merge):
        assert (threshold, merge) == (0.5, True)
        return playbook.replace("R<4>", "R<4> and more")

    monkeypatch.setattr(host.BulletpointAnalyzer, "analyze", analyze)
    own = assert_equal("offline", {}, monkeypatch, use_bulletpoint_analyzer=True, bulletpoint_analyzer_threshold=0.5)
    assert "R<4> and more" in own[2]


def test_what_ends_the_hosts_own_run_ends_this_one(monkeypatch):
    for name, executor in (("own", ...), ("flash", Flash(lockstep=True, progress=False))):
        Path(name).mkdir()
        ace = make_ace(Model(fails={3}), monkeypatch, executor=executor)
        given = {"train_samples": samples(5), "val_samples": samples(2)}
        with pytest.raises(ValueError, match="question 3 has no answer"):
            ace.run("offline", data_processor=Processor(), config=config(save_dir=name), **given)


def test_a_failed_generation_for_metrics_ends_the_run_as_in_the_host(monkeypatch):
    for name, executor in (("own", ...), ("flash", Flash(lockstep=True, progress=False))):
        Path(name).mkdir()
        model = Model()
        ace = make_ace(model, monkeypatch, executor=executor)
        generate = ace.generator.generate

        def fail(*args, generate=generate, **kwargs):
            if kwargs["call_id"] == "train_e_1_s_2_post_curate":
                raise KeyError("no metrics")
            return generate(*args, **kwargs)

        ace.generator.generate = fail
        given = {"train_samples": samples(5), "val_samples": samples(2)}
        with pytest.raises(KeyError, match="no metrics"):
            ace.run("offline", data_processor=Processor(), config=config(save_dir=name), **given)
        assert model.count("curator") == 2
