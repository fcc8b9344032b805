"""Many samples at once: nothing is lost, no id comes twice, and what is only measured keeps nobody waiting."""

import threading

import pytest
from ace_agent_task import (
    Model,
    Processor,
    bullets,
    config,
    contents,
    files,
    folder,
    make_ace,
    number_of,
    read,
    samples,
)

from flashevolve_plugins import Flash
from flashevolve_plugins.hooks import Merge

POLICIES = ["full", "guarded", "reflective", "best-first", "merge"]
PATIENCE = 60.0  # seconds; who waits longer fails
OLD = "## STRATEGIES & INSIGHTS\n\n## OTHERS\n" + "\n".join(
    f"[misc-{n + 1:05d}] helpful=0 harmful=0 :: R<{100 + n}>" for n in range(5)
)


def flash(**settings):
    return Flash(progress=False, **{"max_concurrency": 4, **settings})


def trained(ace, size=10, **settings):
    given = {"train_samples": samples(size), "val_samples": samples(6, first=2)}
    return ace.run("offline", data_processor=Processor(), config=config(**settings), **given)


def tags_given(model):
    """How many tags the reflector gave; each prompt of it shows the bullets that it tags."""
    return sum(len(bullets(prompt)) for role, prompt in model.calls if role == "reflector")


@pytest.mark.parametrize("policy", POLICIES)
def test_no_operation_and_no_count_is_lost_and_no_id_comes_twice(policy, monkeypatch):
    model = Model()
    ace = make_ace(model, monkeypatch, executor=flash(staleness=policy), initial_playbook=OLD)
    trained(ace, size=12, num_epochs=2)
    found = bullets(ace.playbook)
    learned = {name: count for name, count in contents(ace.playbook).items() if name < "R<100>" or len(name) < 6}
    assert set(learned) == {f"R<{n}>" for n in range(12)}
    assert len({name for name, *_ in found}) == len(found)
    assert sum(helpful + harmful for _, helpful, harmful, _ in found) == tags_given(model) > 20
    assert [(row["epoch"], row["step"]) for row in read("pre_train_post_train_results.json")] == [
        (epoch, step) for epoch in (1, 2) for step in range(1, 13)
    ]


def test_curations_from_one_snapshot_all_land(monkeypatch):
    together = threading.Barrier(4)

    def reached(role, prompt):
        if role == "curator":
            together.wait(PATIENCE)

    ace = make_ace(Model(reached=reached), monkeypatch, executor=flash(staleness="full"))
    trained(ace, size=4)
    names = [name for name, *_ in bullets(ace.playbook)]
    assert contents(ace.playbook) == {f"R<{n}>": 1 for n in range(4)}
    assert sorted(name[-5:] for name in names) == ["00001", "00002", "00003", "00004"]
    assert ace.next_global_id == 5


def test_several_lessons_are_curated_in_one_call(monkeypatch):
    model = Model()
    ace = make_ace(model, monkeypatch, executor=flash(clock="virtual", max_concurrency=16))
    trained(ace, size=24)
    assert contents(ace.playbook) == {f"R<{n}>": 1 for n in range(24)}
    assert model.count("curator") < 24


def test_metrics_keep_no_sample_waiting(monkeypatch):
    """The second epoch begins once the first is over, while the first sample's metrics are still to come."""
    begun = threading.Event()
    seen = []

    def reached(role, prompt):
        if role != "generator" or number_of(prompt) != 0:
            return
        seen.append(prompt)
        if len(seen) == 2:  # after its curation
            assert begun.wait(PATIENCE)
        if len(seen) == 3:  # in the second epoch
            begun.set()

    settings = flash(max_concurrency=2, epoch_barrier=True, staleness="full")
    ace = make_ace(Model(reached=reached), monkeypatch, executor=settings)
    trained(ace, size=3, num_epochs=2, max_num_rounds=0, eval_steps=100)
    assert begun.is_set()
    rows = read("pre_train_post_train_results.json")
    assert [row["post_train_result"]["is_correct"] for row in rows] == [True, False, False] * 2


@pytest.mark.parametrize("policy", ["full", "merge"])
def test_each_validation_is_of_the_playbook_at_its_step(policy, monkeypatch):
    settings = flash(clock="virtual", max_concurrency=8, staleness=policy)
    ace = make_ace(Model(unreadable={4}), monkeypatch, executor=settings)
    returned = trained(ace, size=11, num_epochs=2, eval_steps=2, save_steps=1)
    results = read("train_results.json")
    assert [(row["epoch"], row["step"]) for row in results["results"]] == [
        (epoch, step) for epoch in (1, 2) for step in (2, 4, 6, 8, 10)
    ]
    saved = files(folder())
    best, best_text = 0.0, None
    for row, log in zip(results["results"], read("val_results.json"), strict=True):
        text = saved[f"intermediate_playbooks/epoch_{row['epoch']}_step_{row['step']}_playbook.txt"]
        right = [n % 3 == 0 or f"R<{n}>" in text for n in range(2, 8)]
        assert row["val_result"] == {"accuracy": sum(right) / 6, "correct": sum(right), "total": 6, "no_answer": 0}
        assert log["val_results"] == row["val_result"]
        assert log["error_log"]["errors"] == [
            {"index": index, "prediction": "a guess", "ground_truth": f"answer {index + 2}"}
            for index, is_right in enumerate(right)
            if not is_right
        ]
        assert row["playbook_length"] == len(text)
        assert row["playbook_stats"]["total_bullets"] == len(bullets(text))
        if sum(right) / 6 > best:
            best, best_text = sum(right) / 6, text
    assert returned["training_results"] == {"best_validation_accuracy": best}
    assert results["best_accuracy"] == best
    assert ace.best_playbook == best_text == saved["best_playbook.txt"]
    assert saved["final_playbook.txt"] == ace.playbook == saved["intermediate_playbooks/epoch_2_final_playbook.txt"]


def test_training_goes_on_beside_a_validation(monkeypatch):
    going_on = threading.Event()

    def reached(role, prompt):
        if number_of(prompt) == 777:  # the validation sample
            assert going_on.wait(PATIENCE)
        if role == "curator" and "H<5>" in prompt:
            going_on.set()

    ace = make_ace(Model(reached=reached), monkeypatch, executor=flash(staleness="full", max_concurrency=2))
    given = {"train_samples": samples(6), "val_samples": samples(1, first=777)}
    ace.run("offline", data_processor=Processor(), config=config(eval_steps=3), **given)
    assert going_on.is_set()
    assert [row["step"] for row in read("train_results.json")["results"]] == [3, 6]


def test_train_accuracies_are_those_of_the_rows(monkeypatch):
    ace = make_ace(Model(), monkeypatch, executor=flash(clock="virtual"))
    trained(ace, size=9, eval_steps=9)
    (row,) = read("train_results.json")["results"]
    rows = read("pre_train_post_train_results.json")
    for name in ("pre", "post"):
        right = [each[f"{name}_train_result"]["is_correct"] for each in rows]
        assert row["train_result"][f"{name}_train_accuracy"] == sum(right) / 9
    assert row["train_result"]["post_train_accuracy"] == 1.0 > row["train_result"]["pre_train_accuracy"]


def test_between_curations_lessons_bring_counts_alone(monkeypatch):
    model = Model()
    waited = set()

    class Watched(Merge):
        def take(self, waiting, pool, *, last):
            waited.update(each.number for each in waiting)
            return super().take(waiting, pool, last=last)

    settings = flash(clock="virtual", staleness=Watched())
    ace = make_ace(model, monkeypatch, executor=settings, initial_playbook=OLD)
    trained(ace, size=9, curator_frequency=3)
    assert len(waited) == 3  # the others wait for nobody
    assert set(contents(ace.playbook)) == {f"R<{n}>" for n in (2, 5, 8, *range(100, 105))}
    assert model.count("curator") <= 3
    assert sum(helpful + harmful for _, helpful, harmful, _ in bullets(ace.playbook)) == tags_given(model)


def test_tags_of_a_bullet_that_was_merged_away_count_for_the_one_that_took_it_in(monkeypatch, host):
    twice = "## OTHERS\n[old-00001] helpful=0 harmful=0 :: R<100>\n[old-00002] helpful=0 harmful=0 :: R<100>"
    reflecting, merged = threading.Event(), threading.Event()
    told = []

    def reached(role, prompt):
        if role == "reflector" and number_of(prompt) == 0:
            reflecting.set()
            assert merged.wait(PATIENCE)
        if role == "curator" and "H<5>" in prompt:
            assert reflecting.wait(PATIENCE)
        if role == "generator" and number_of(prompt) == 5:
            told.append(prompt)
            if len(told) == 3:  # first, after the reflection, and then for the metrics
                merged.set()

    def merge(self, group):
        first, counts = group[0], [sum(each[name] for each in group) for name in ("helpful", "harmful")]
        line = f"[{first['id']}] helpful={counts[0]} harmful={counts[1]} :: {first['content']}"
        return {**first, "original_line": line}

    def analyze(self, playbook, threshold, merge):
        shown = [(name, *rest) for name, *rest in bullets(playbook) if name.startswith("old-")]
        if len(shown) < 2:
            return playbook
        group = [dict(zip(("id", "helpful", "harmful", "content"), each, strict=True)) for each in shown]
        lines = [line for line in playbook.split("\n") if not line.startswith("[old-")]
        return "\n".join([*lines, self._merge_bullets_with_llm(group)["original_line"]])

    monkeypatch.setattr(host.BulletpointAnalyzer, "_merge_bullets_with_llm", merge)
    monkeypatch.setattr(host.BulletpointAnalyzer, "analyze", analyze)
    model = Model(reached=reached)
    ace = make_ace(
        model,
        monkeypatch,
        executor=flash(staleness="full"),
        initial_playbook=twice,
        use_bulletpoint_analyzer=True,
    )
    given = {"train_samples": [samples(1)[0], samples(1, first=5)[0]], "val_samples": samples(1)}
    ace.run("offline", data_processor=Processor(), config=config(max_num_rounds=1), **given)
    assert merged.is_set()
    assert sum(helpful + harmful for _, helpful, harmful, _ in bullets(ace.playbook)) == tags_given(model) == 4
    assert [name for name, *_ in bullets(ace.playbook) if name.startswith("old-")] == ["old-00001"]


# -- online -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["full", "merge"])
def test_a_window_is_tested_with_what_the_windows_before_have_taught(policy, monkeypatch):
    model = Model()
    settings = flash(clock="virtual", max_concurrency=8, staleness=policy)
    ace = make_ace(model, monkeypatch, executor=settings)
    given = {"test_samples": [*samples(4), *samples(4), *samples(3)]}
    returned = ace.run("online", data_processor=Processor(), config=config(online_eval_frequency=4), **given)
    saved = files(folder())
    assert contents(saved["intermediate_playbooks/window_1_final_playbook.txt"]) == {f"R<{n}>": 1 for n in range(4)}
    tests = read("test_results.json")
    assert [row["window_accuracy"] for row in tests["test_results"]["window_results"]] == [0.5, 1.0, 1.0]
    assert returned["online_test_results"] == {"accuracy": 9 / 11, "correct": 9, "total": 11}
    assert tests["test_error_log"]["errors"] == [
        {"window": 1, "global_index": n, "prediction": "a guess", "ground_truth": f"answer {n}"} for n in (1, 2)
    ]
    rows = read("train_results.json")["train_results"]
    assert [(row["window"], row["global_step"]) for row in rows] == [(1, 4), (2, 8), (3, 11)]
    assert [row["cumulative_test_accuracy"] for row in rows] == [0.5, 0.75, 9 / 11]
    assert [(row["window"], row["global_step"]) for row in read("pre_train_post_train_results.json")] == [
        ((step - 1) // 4 + 1, step) for step in range(1, 12)
    ]


@pytest.mark.parametrize("slow", ["validate", "reflect"])
def test_a_window_waits_for_the_turns_and_the_test_of_the_one_before(slow, monkeypatch):
    settings = flash(clock="virtual", max_concurrency=32, staleness="full")  # so that no call waits for a slot
    ace = make_ace(Model(seconds={slow: 100.0}), monkeypatch, executor=settings)
    generate, begun = ace.generator.generate, []

    def noted(**given):
        if not given["call_id"].endswith("_post_curate"):  # a metric, for which nothing waits
            begun.append(number_of(given["question"]))
        return generate(**given)

    ace.generator.generate = noted
    monkeypatch.setattr(ace, "_run_test", lambda *args, **given: {"accuracy": 0.0})
    given = {"test_samples": [*samples(4), *samples(4, first=10)]}
    ace.run("online", data_processor=Processor(), config=config(online_eval_frequency=4), **given)
    assert begun == sorted(begun, key=lambda number: number >= 10)
    assert set(begun) == {*range(4), *range(10, 14)}
    assert set(contents(ace.playbook)) == {f"R<{n}>" for n in begun}


@pytest.mark.parametrize("seconds", [1.5, 4, 12, 20])
@pytest.mark.parametrize("mode", ["offline", "online"])
def test_a_stopped_run_writes_what_there_is(mode, seconds, monkeypatch):
    settings = flash(clock="virtual", staleness="full", max_seconds=seconds)
    ace = make_ace(Model(), monkeypatch, executor=settings)
    given = {"test_samples": samples(20)}
    if mode == "offline":
        given = {"train_samples": samples(20), "val_samples": samples(6, first=2)}
    ace.run(mode, data_processor=Processor(), config=config(online_eval_frequency=4), **given)
    learned = contents(ace.playbook)
    assert len(learned) < 20
    assert "results" in (kept := read("train_results.json")) or "train_results" in kept
    if mode == "online":
        windows = read("test_results.json")["test_results"]["window_results"]
        assert [each["window"] for each in windows] == list(range(1, len(windows) + 1))
        assert len(windows) < 5
