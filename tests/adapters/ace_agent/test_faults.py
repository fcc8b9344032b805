"""What goes wrong: an empty validation set, few samples, failures, a dead server, interrupts, another checkout."""

import json
import socket
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

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

from flashevolve_plugins import BackendError, Flash, HostError, UnknownNameError, UsageError
from flashevolve_plugins.adapters.ace import ace_agent_run, session

PATIENCE = 60.0  # seconds; who waits longer fails


def flash(**settings):
    return Flash(progress=False, **{"max_concurrency": 4, **settings})


def run(ace, mode, size=10, tests=0, validation=4, **settings):
    given = {"train_samples": samples(size), "val_samples": samples(validation)} if mode == "offline" else {}
    if tests or mode == "online":
        given["test_samples"] = samples(tests or size)
    return ace.run(mode, data_processor=Processor(), config=config(**settings), **given)


# -- faults of the host -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lockstep", [False, True])
def test_an_empty_validation_set_is_refused_before_the_first_call(lockstep, monkeypatch):
    model = Model()
    ace = make_ace(model, monkeypatch, executor=Flash(progress=False, lockstep=lockstep))
    with pytest.raises(UsageError, match="^val_samples is empty, and mode='offline' validates on it: pass at least"):
        run(ace, "offline", tests=3, validation=0)
    assert model.calls == []


def test_fewer_samples_than_eval_steps_are_validated_at_the_end_of_each_epoch(monkeypatch):
    ace = make_ace(Model(), monkeypatch, executor=flash(epoch_barrier=True))
    returned = run(ace, "offline", size=5, num_epochs=2)["training_results"]
    results = read("train_results.json")["results"]
    assert [(row["epoch"], row["step"]) for row in results] == [(1, 4), (2, 4)]
    returned = run(ace, "offline", size=5, num_epochs=2, eval_steps=100, save_dir="results/again")
    (path,) = Path("results/again").iterdir()
    results = json.loads((path / "train_results.json").read_text(encoding="utf-8"))["results"]
    assert [(row["epoch"], row["step"]) for row in results] == [(1, 5), (2, 5)]
    assert returned["training_results"] == {"best_validation_accuracy": 1.0}
    assert (path / "best_playbook.txt").read_text(encoding="utf-8") == ace.best_playbook
    assert set(contents(ace.best_playbook)) == {f"R<{n}>" for n in range(5)}


def test_a_failed_sample_is_counted_and_has_no_row(monkeypatch, caplog):
    ace = make_ace(Model(fails={7}), monkeypatch, executor=flash(clock="virtual"))
    run(ace, "offline", size=8, eval_steps=8)
    assert "1 of 8 samples failed and taught nothing; the first: ValueError: " in caplog.text
    assert [row["step"] for row in read("pre_train_post_train_results.json")] == list(range(1, 8))
    assert [row["step"] for row in read("train_results.json")["results"]] == [7]  # else the epoch had none
    assert set(contents(ace.playbook)) == {f"R<{n}>" for n in range(7)}


def test_a_failed_validation_sample_counts_as_wrong(monkeypatch, caplog):
    ace = make_ace(Model(fails={3}), monkeypatch, executor=flash(clock="virtual"))
    given = {"train_samples": samples(3), "val_samples": samples(4)}
    returned = ace.run("offline", data_processor=Processor(), config=config(eval_steps=3), **given)
    assert returned["training_results"] == {"best_validation_accuracy": 0.75}
    (log,) = read("val_results.json")
    assert log["val_results"] == {"accuracy": 0.75, "correct": 3, "total": 4, "no_answer": 1}
    assert log["error_log"]["errors"] == [
        {"index": 3, "prediction": "No final answer found", "ground_truth": "answer 3"}
    ]
    assert "1 of 4 samples of a test failed and count as wrong" in caplog.text


def test_a_failed_generation_for_metrics_counts_as_wrong_and_loses_nothing(monkeypatch):
    ace = make_ace(Model(), monkeypatch, executor=flash(clock="virtual"))
    generate = ace.generator.generate

    def fail(**given):
        if given["call_id"] == "train_e_1_s_2_post_curate":
            raise KeyError("no metrics")
        return generate(**given)

    ace.generator.generate = fail
    run(ace, "offline", size=4)
    rows = read("pre_train_post_train_results.json")
    assert [row["post_train_result"]["is_correct"] for row in rows] == [True, False, True, True]
    assert rows[1]["post_train_result"]["final_answer"] == "No final answer found"
    assert rows[1]["post_train_result"]["playbook_length"] > 0
    assert set(contents(ace.playbook)) == {f"R<{n}>" for n in range(4)}


def test_a_processor_that_cannot_evaluate_ends_the_run_as_in_the_host(monkeypatch):
    class Broken(Processor):
        def evaluate_accuracy(self, answers, targets):
            raise ZeroDivisionError("nothing to divide by")

    ace = make_ace(Model(), monkeypatch, executor=flash(clock="virtual"))
    given = {"train_samples": samples(4), "val_samples": samples(2)}
    with pytest.raises(ZeroDivisionError, match="nothing to divide by"):
        ace.run("offline", data_processor=Broken(), config=config(), **given)
    assert (folder() / "final_playbook.txt").read_text(encoding="utf-8") == ace.playbook


def test_nothing_but_failures_end_the_run_with_one_sentence(monkeypatch):
    ace = make_ace(Model(fails=range(8, 99)), monkeypatch, executor=flash(clock="virtual"))
    with pytest.raises(BackendError, match=r"10 samples in a row failed \(ValueError: question \d+ has no answer\)"):
        run(ace, "offline", size=40, validation=2)
    kept = (folder() / "final_playbook.txt").read_text(encoding="utf-8")
    assert kept == ace.playbook
    assert {"R<0>", "R<3>"} <= set(contents(kept)) <= {f"R<{n}>" for n in range(8)}


# -- a dead server ----------------------------------------------------------------------------------------------------


@pytest.fixture
def server():
    """A socket that listens, and its URL."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        yield listening, f"http://127.0.0.1:{listening.getsockname()[1]}/v1"


@pytest.mark.parametrize("mode", ["offline", "online"])
def test_a_server_that_is_not_there_costs_nothing(mode, server, monkeypatch):
    listening, url = server
    listening.close()
    model = Model(base_url=url)
    ace = make_ace(model, monkeypatch, executor=flash())
    with pytest.raises(BackendError, match=f"^No server answers at {url} .*Nothing was spent"):
        run(ace, mode, tests=3)
    assert model.calls == []


def test_a_server_that_dies_ends_the_run_in_seconds_and_nothing_is_repeated_afterwards(server, monkeypatch):
    """The host would try each call again up to 1000 times, 15 to 30 seconds apart."""
    listening, url = server
    over, asleep, dying = threading.Event(), threading.Semaphore(0), threading.Barrier(2)

    def sleep(seconds):
        assert seconds >= 7
        asleep.release()
        assert over.wait(PATIENCE)

    def reached(role, prompt):
        if number_of(prompt) >= 4:
            dying.wait(PATIENCE)  # then both slots meet it
            listening.close()
            raise ConnectionError("Connection error.")

    clock = sys.modules["llm"].time
    monkeypatch.setattr(sys.modules["llm"], "time", SimpleNamespace(time=clock.time, sleep=sleep))
    monkeypatch.setattr(session, "SILENT", 0.0)
    model = Model(base_url=url, reached=reached)
    ace = make_ace(model, monkeypatch, executor=flash(max_concurrency=2))
    with pytest.raises(BackendError, match=f"no server answers at {url}"):
        run(ace, "offline", validation=1)
    assert asleep.acquire(timeout=PATIENCE)
    assert asleep.acquire(timeout=PATIENCE)
    spent = len(model.calls)
    threads = [each for each in threading.enumerate() if each.name.startswith("flashevolve-slot")]
    over.set()
    for each in threads:
        each.join(PATIENCE)
    assert not any(each.is_alive() for each in threads)
    assert len(model.calls) == spent
    assert set(contents((folder() / "final_playbook.txt").read_text(encoding="utf-8"))) <= {f"R<{n}>" for n in range(4)}


# -- interrupts -------------------------------------------------------------------------------------------------------


class Stop(BaseException):
    pass


def stopping(after):
    """A model that is interrupted after so many curations."""
    curated = []

    def reached(role, prompt):
        curated.extend(["once"] * (role == "curator"))
        if len(curated) >= after and role == "generator":
            raise Stop

    return Model(reached=reached)


MODES = [("offline", {"num_epochs": 2}), ("online", {"online_eval_frequency": 4})]


@pytest.mark.parametrize("policy", ["full", "merge"])
@pytest.mark.parametrize(("mode", "settings"), MODES, ids=["offline", "online"])
def test_an_interrupted_run_keeps_its_playbook_and_goes_on_where_it_was(mode, settings, policy, tmp_path, monkeypatch):
    def executor():
        kept = str(tmp_path / "kept")
        return flash(run_dir=kept, staleness=policy, clock="virtual", max_concurrency=3)

    first = stopping(after=4)
    ace = make_ace(first, monkeypatch, executor=executor())
    with pytest.raises(Stop):
        run(ace, mode, save_dir="results/first", **settings)
    (old,) = Path("results/first").iterdir()
    assert (old / "final_playbook.txt").read_text(encoding="utf-8") == ace.playbook
    assert contents(ace.playbook)
    old_rows = json.loads((old / "pre_train_post_train_results.json").read_text(encoding="utf-8"))

    second = Model()
    again = make_ace(second, monkeypatch, executor=executor())
    returned = run(again, mode, save_dir="results/second", **settings)
    (new,) = Path("results/second").iterdir()
    found = files(new)
    rows = json.loads(found["pre_train_post_train_results.json"])
    epochs = settings.get("num_epochs", 1)
    assert len(rows) == 10 * epochs
    assert all(row in rows for row in old_rows)
    assert contents(again.playbook) == {f"R<{n}>": 1 for n in range(10)}
    assert len({name for name, *_ in bullets(again.playbook)}) == 10
    told = [json.loads(line) for line in found["bullet_usage_log.jsonl"].splitlines()]
    begun = Counter((each["epoch"], each["step"]) for each in told if each["reflection_summary"] is None)
    assert begun == {(epoch, step): 1 for epoch in range(1, epochs + 1) for step in range(1, 11)}
    assert {path.name for path in old.glob("intermediate_playbooks/*")} <= {
        path.name for path in new.glob("intermediate_playbooks/*")
    }
    if mode == "offline":
        results = json.loads(found["train_results.json"])["results"]
        assert [(row["epoch"], row["step"]) for row in results] == [(1, 4), (1, 8), (2, 4), (2, 8)]
    else:
        windows = json.loads(found["test_results.json"])["test_results"]["window_results"]
        assert [window["start_idx"] for window in windows] == [0, 4, 8]
        assert returned["online_test_results"]["total"] == 10

    third = Model()
    last = make_ace(third, monkeypatch, executor=executor())
    run(last, mode, save_dir="results/third", **settings)
    assert third.count("curator") == third.count("reflector") == 0  # all was done
    assert last.playbook == again.playbook
    assert last.best_playbook == again.best_playbook
    (third_folder,) = Path("results/third").iterdir()
    assert files(third_folder)["train_results.json"] == found["train_results.json"]


def test_a_run_directory_of_the_other_mode_is_refused(tmp_path, monkeypatch):
    settings = {"run_dir": str(tmp_path / "kept"), "clock": "virtual"}
    run(make_ace(Model(), monkeypatch, executor=flash(**settings)), "offline", size=3)
    with pytest.raises(UsageError, match="belongs to a run with another host"):
        run(make_ace(Model(), monkeypatch, executor=flash(**settings)), "online", size=3)


# -- checkouts, and who runs under flash ------------------------------------------------------------------------------


def test_a_checkout_without_what_flash_calls_gets_one_sentence_that_names_it(host, monkeypatch):
    def generate(self, question, playbook, context, retrieved, use_json_mode, call_id, log_dir):
        raise AssertionError

    model = Model()
    ace = make_ace(model, monkeypatch, executor=flash())
    monkeypatch.setattr(host.Generator, "generate", generate)
    monkeypatch.delattr(sys.modules["ace.ace"], "get_next_global_id")
    monkeypatch.delattr(host.Curator, "curate")
    named = (
        r"get_next_global_id\(\), generator.generate\(reflection=\), generator.generate\(\) without retrieved=, "
        r"curator.curate\(\)"
    )
    with pytest.raises(HostError, match=rf"does not have what flash calls \({named}\): check out a commit"):
        run(ace, "offline")
    assert model.calls == []


def test_policies_that_ask_are_answered_by_the_curators_model(monkeypatch):
    model = Model()
    ace = make_ace(model, monkeypatch, executor=flash())
    monkeypatch.setattr(ace_agent_run, "run_under_flash", lambda host, flash: host.ask("what of H<3>?"))
    given = {"test_samples": samples(1), "data_processor": Processor(), "config": config(), "save_path": "."}
    answer = ace._online_train_and_test(usage_log_path="log", playbook_dir=".", log_dir=".", **given)
    assert model.calls == [("curator", "what of H<3>?")]
    assert json.loads(answer)["operations"][0]["content"] == "R<3>"


def test_online_takes_each_sample_once(monkeypatch):
    ace = make_ace(Model(), monkeypatch, executor=flash())
    with pytest.raises(UsageError, match="num_epochs=2 does not go with mode='online'"):
        run(ace, "online", num_epochs=2)


def test_an_executor_that_is_none_is_refused_when_ace_is_made(monkeypatch):
    with pytest.raises(UnknownNameError, match="Unknown executor 'flush': known are 'flash'"):
        make_ace(Model(), monkeypatch, executor="flush")


def test_a_with_block_reaches_an_ace_and_none_keeps_it_out(monkeypatch):
    for given, under in ((..., True), (None, False)):
        settings = flash(clock="virtual")
        ace = make_ace(Model(), monkeypatch, executor=given)
        with settings:
            run(ace, "offline", size=3)
        assert set(contents(ace.playbook)) == {"R<0>", "R<1>", "R<2>"}
        assert (settings.last_run is not None) == under


def test_eval_only_is_the_hosts_own(monkeypatch):
    settings = flash()
    ace = make_ace(Model(), monkeypatch, executor=settings)
    tested = run(ace, "eval_only", tests=6)["test_results"]
    assert (tested["correct"], tested["total"]) == (2, 6)
    assert settings.last_run is None


def test_a_wrong_mode_and_a_wrong_argument_get_the_hosts_words(monkeypatch):
    ace = make_ace(Model(), monkeypatch, executor=flash())
    with pytest.raises(TypeError, match="missing a required argument: 'mode'"):
        ace.run()
    with pytest.raises(TypeError, match="unexpected keyword argument 'samples'"):
        ace.run("offline", samples=[])


def test_a_process_that_imports_both_learns_executor_without_a_warning():
    import ace

    code = (
        "import sys, types, warnings; warnings.simplefilter('error', RuntimeWarning)\n"
        "tiktoken = types.ModuleType('tiktoken'); sys.modules['tiktoken'] = tiktoken\n"
        "tiktoken.get_encoding = lambda name: None\n"
        "import ace, flashevolve_plugins, inspect\n"
        "print('executor' in inspect.signature(ace.ACE).parameters)"
    )
    root = Path(ace.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "True"
