"""Sessions that crash, hang, lie or flood, and evaluations that are killed: the run goes on, nothing outlives it."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from processes_told import PATIENCE, gone, pids_in, until


@pytest.mark.parametrize(
    ("knob", "outcome"),
    [
        ({"fails": 1}, None),
        ({"no_pending": 1}, None),
        ({"malformed": "{not json"}, "failed"),
        ({"malformed": '{"candidates": 3}'}, "failed"),
        ({"bad_import": 1}, "failed"),
        ({"no_file": 1}, "failed"),
        ({"name": "../evil"}, "failed"),
        ({"name": "x; import os"}, "failed"),
    ],
)
def test_a_session_that_goes_wrong_costs_its_iteration_alone(text, knob, outcome, tell):
    name = knob.get("name")
    if name:
        knob = {**knob, "no_file": 1}
    text.flash("--proposers", "2", claude={"2": knob}, iterations=3)
    rows = {row["iteration"]: row for row in text.summary()}
    assert {1, 3} <= rows.keys()
    assert text.best() == "p3_sys_3"
    assert (2 in rows) == (outcome is not None)
    if outcome:
        assert rows[2]["outcome"].startswith(outcome)
    fault = "a session that crashes, or leaves nothing, malformed JSON, a bad import, no file or a name that is none"
    lost = len({"p1_sys_1", "p3_sys_3"} - text.names())
    tell(fault, tries=8, outcome="its iteration alone; a line of the summary says why where it named some", lost=lost)


def test_a_session_that_hangs_is_ended_with_all_that_it_started(checkout, tell):
    knobs = {"1": {"forks": 1, "hangs": 1}}
    checkout.flash("--propose-timeout", "1", claude=knobs, iterations=2)
    gone(checkout.fakes)
    lost = len({"p2_sys_2"} ^ checkout.names())
    tell("a session that hangs", tries=2, outcome="ends at its timeout, with all that it started", lost=lost)


def test_what_a_session_leaves_running_ends_with_it(checkout, tell):
    checkout.flash(claude={"1": {"forks": 1}}, iterations=1)
    gone(checkout.fakes)
    lost = len({"p1_sys_1"} ^ checkout.names())
    tell("a process that a session leaves", tries=2, outcome="ends with it", lost=lost)


def test_an_evaluation_that_is_killed_is_tried_again_and_never_the_best(checkout, tell):
    kind = "second" if checkout.text else "hard"
    uv = {"sys_2": {"killed": kind, "forks": 1}}
    checkout.flash("--proposers", "1", claude={"2": {"score": 0.9}}, uv=uv, iterations=3)
    gone(checkout.fakes)
    assert {row["iteration"] for row in checkout.summary()} == {1, 2, 3}
    items = [json.loads(line) for line in (checkout.logs / "flashevolve_items.jsonl").read_text().splitlines()]
    second = next(each for each in items if each.get("reason", "").startswith("its evaluation gave no whole result"))
    assert second["terminal"] == "rejected"
    tries = [each for each in checkout.evaluated() if "sys_2" in each["of"]]
    assert len(tries) > 6
    lost = 3 - len({row["iteration"] for row in checkout.summary()})
    tell(
        "a job of an evaluation that is killed",
        tries=2,
        outcome="tried again; its candidate is never the best",
        lost=lost,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_every_process_and_keeps_what_was_evaluated(text, number, tell):
    knobs = {"2": {"forks": 1, "hangs": 1}, "3": {"forks": 1, "hangs": 1}}
    command, environment = text.command("--proposers", "2", iterations=3), text.setup(knobs, {})
    with subprocess.Popen(command, env=environment, cwd=text.root, stderr=subprocess.PIPE, text=True) as process:
        until(
            lambda: len(pids_in(text.fakes)) == 2 and text.summary(),
            lambda: process.poll() is not None and process.stderr.read(),
        )
        os.kill(process.pid, number)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "flashevolve: stopped; what was evaluated is kept." in errors
    gone(text.fakes)
    assert text.names() == {"p1_sys_1"}
    assert text.best() == "p1_sys_1"
    text.flash("--skip-baseline", iterations=1)
    lost = len({1, 2} ^ {row["iteration"] for row in text.summary()})
    outcome = "every process ends, the exit code is 130; the same command goes on with the next iteration"
    tell("Ctrl-C or SIGTERM while sessions hang", tries=2, outcome=outcome, lost=lost)


def test_ten_sessions_in_a_row_that_bring_nothing_end_the_run_in_one_sentence(text):
    told = text.flash(claude={"all": {"fails": 1}}, iterations=50, code=2)
    assert "10 proposals in a row brought nothing to try, the last since: the proposer returned no candidates" in told
    assert len(list(text.fakes.glob("claude-*.json"))) < 16


def test_no_secret_gets_into_logs_and_a_flood_is_bounded(text):
    planted = "sk-planted-0123456789"
    text.flash(claude={"1": {"prints": "x"}}, iterations=1, variables={"PLANTED_API_KEY": planted})
    files = [path for path in text.logs.rglob("*") if path.is_file()]
    assert [path for path in files if planted in path.read_text(errors="replace")] == []
    assert any("[PLANTED_API_KEY]" in path.read_text(errors="replace") for path in files)


@pytest.mark.parametrize(
    ("path", "sentence"),
    [("nowhere", "There is no meta_harness.py in 'nowhere'"), ("agents", "There is no meta_harness.py in ")],
)
def test_a_folder_without_an_example_is_one_sentence(text, path, sentence):
    place = path if path == "nowhere" else str(text.example / path)
    command = text.command()
    command[command.index(str(text.example))] = place
    done = subprocess.run(command, env=text.environment, cwd=text.root, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert sentence in done.stderr


def test_an_example_of_another_design_is_one_sentence(text):
    module = text.example / "meta_harness.py"
    module.write_text(module.read_text().replace("validate_candidates", "validate_them"))
    assert ": flash knows the layouts of text_classification and terminal_bench_2." in text.flash(code=2)
    module.write_text(module.read_text().replace("def render_task_prompt", "def prompt"))
    assert "has no render_task_prompt: flash knows" in text.flash(code=2)


def test_a_model_that_is_not_configured_is_one_sentence(text):
    assert "--model other is not in config.yaml: it has maker/Small." in text.flash("--model", "other", code=2)


def test_two_examples_whose_modules_have_the_same_names_get_along(make_checkout, tmp_path, monkeypatch):
    import sys

    from flashevolve_plugins.adapters.meta_harness.checkout import TERMINAL, TEXT, load

    here = Path(__file__).parent / "double"
    first = make_checkout(tmp_path / "a", here / "text_classification")
    second = make_checkout(tmp_path / "b", here / "terminal_bench_2")
    before = set(sys.modules)
    one, two = load(first.example), load(second.example)
    assert (one.layout, two.layout) == (TEXT, TERMINAL)
    assert one.module.claude_wrapper.__file__ == str(first.example / "claude_wrapper.py")
    assert two.module.claude_wrapper.__file__ == str(second.example / "claude_wrapper.py")
    assert not {"claude_wrapper", "benchmark"} & (set(sys.modules) - before)
