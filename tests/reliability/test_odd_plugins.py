"""Policies, callbacks, trackers and stoppers that raise or block, and clocks that jump."""

from __future__ import annotations

import ast
import json
import random
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from gepa_kit import kit, no_thread_stays  # noqa: F401 - fixtures
from gepa_records import Tracker

from flashevolve_plugins import PluginError
from flashevolve_plugins.hooks import hookimpl

OBSERVERS = (
    "flashevolve_run_started",
    "flashevolve_stage_started",
    "flashevolve_stage_finished",
    "flashevolve_pool_updated",
    "flashevolve_item_ended",
    "flashevolve_snapshot",
    "flashevolve_run_finished",
)
DECISIONS = {
    "flashevolve_merge_batch": "merge",
    "flashevolve_plan": "merge",
    "flashevolve_control": "merge",
    "flashevolve_judge_stale": "guarded",
}
CALLS = 200


def plugin(hook: str, act: Any) -> Any:
    """A plugin with one hook, which does something and answers nothing; of control it is asked all the time."""
    name = "Odd" + hook.removeprefix("flashevolve_").title().replace("_", "")
    return type(name, (), {hook: hookimpl(lambda self: act()), "period": 1e-3})()


def raising() -> None:
    raise ZeroDivisionError("an odd one")


def kept(run_dir: Path) -> int:
    """What is missing of a run's directory: its state, or its items' records."""
    return sum(not (run_dir / name).exists() for name in ("gepa_state.bin", "flashevolve_items.jsonl"))


@pytest.mark.parametrize("hook", OBSERVERS)
def test_an_observer_that_raises_is_told_once_and_changes_nothing(hook, kit, tell, tmp_path):  # noqa: F811
    plain = kit.run(kit.flash(), calls=CALLS)
    with pytest.warns(RuntimeWarning, match=rf"Odd\w+#\d+' raised in {hook} for .*an odd one. The run goes on") as told:
        odd = kit.run(kit.flash(plugins=[plugin(hook, raising)]), calls=CALLS, run_dir=str(tmp_path))
    kit.check(odd, CALLS)
    assert odd.result.candidates == plain.result.candidates
    assert len([each for each in told if "an odd one" in str(each.message)]) == 1
    tell(f"{hook} raises", tries=1, outcome="told once, the run goes on", lost=kept(tmp_path))


@pytest.mark.parametrize("hook", [each for each in DECISIONS if each != "flashevolve_judge_stale"])
def test_a_decision_without_an_item_that_raises_ends_the_run_with_its_state(hook, kit, tell, tmp_path):  # noqa: F811
    left = iter(range(3))

    def later() -> None:
        if next(left, None) is None:
            raising()

    flash = kit.flash(plugins=[plugin(hook, later)], staleness=DECISIONS[hook])
    with pytest.raises(
        PluginError, match=rf"Odd\w+#\d+' raised in {hook} for (the run|items? \d+).*: Zero.*an odd one"
    ):
        kit.run(flash, calls=400, run_dir=str(tmp_path))
    again = kit.run(kit.flash(), calls=400, run_dir=str(tmp_path))
    assert again.result.total_metric_calls <= 400
    tell(f"{hook} raises", tries=1, outcome="one sentence, state kept", lost=kept(tmp_path))


def test_a_judgement_that_raises_fails_its_item_alone(kit, tell, tmp_path):  # noqa: F811
    flash = kit.flash(plugins=[plugin("flashevolve_judge_stale", raising)], max_concurrency=20)
    run = kit.run(flash, calls=CALLS, run_dir=str(tmp_path))
    kit.check(run, CALLS)
    lines = (tmp_path / "flashevolve_items.jsonl").read_text("utf-8").splitlines()[1:]
    failed = [each for each in map(json.loads, lines) if each["terminal"] == "failed"]
    assert failed
    assert all(f"raised in flashevolve_judge_stale for item {each['item']}" in each["error"] for each in failed)
    tell("flashevolve_judge_stale raises", tries=1, outcome="its item fails", lost=kept(tmp_path))


class Held:
    """Mixed into an adapter: others can wait until nothing runs any more."""

    def __init__(self) -> None:
        super().__init__()
        self.quiet = threading.Condition()
        self.running = self.waited = 0

    def evaluate(self, batch, candidate, capture_traces=False):
        with self.quiet:
            self.running += 1
        try:
            return super().evaluate(batch, candidate, capture_traces)
        finally:
            with self.quiet:
                self.running -= 1
                self.quiet.notify_all()

    def block(self) -> None:
        """Keep the caller's thread until every slot is idle, and no sample can be handed out."""
        with self.quiet:
            self.waited += 1
            assert self.quiet.wait_for(lambda: self.running == 0, timeout=30)


class Overtaken:
    """Holds the first reflections until others' candidates have entered the pool, so that theirs are stale."""

    def __init__(self, kit: Any) -> None:  # noqa: F811
        self.pool, self.entered, first = 0, threading.Event(), iter(range(4))
        self.reflection = kit.Reflection()
        self.reflection.working = lambda: next(first, None) is None or self.entered.wait(30)

    @hookimpl
    def flashevolve_pool_updated(self) -> None:
        self.pool += 1
        if self.pool > 1:  # the seed's is the first
            self.entered.set()


def held(kit: Any) -> Any:  # noqa: F811
    return type("HeldWords", (Held, kit.Words), {})()


@pytest.mark.parametrize("hook", [*OBSERVERS, *DECISIONS])
def test_a_hook_that_blocks_corrupts_nothing(hook, kit, tell, tmp_path):  # noqa: F811
    settings = {"clock": "local", "max_concurrency": 20, "staleness": DECISIONS.get(hook, "merge")}
    for seed in range(5):  # whether a stale item passes its gate is luck
        adapter, run_dir, overtaken = held(kit), tmp_path / str(seed), Overtaken(kit)
        flash = kit.flash(plugins=[plugin(hook, adapter.block), overtaken], **settings)
        reflection = overtaken.reflection
        run = kit.run(flash, adapter=adapter, reflection=reflection, calls=CALLS, seed=seed, run_dir=str(run_dir))
        kit.check(run, CALLS)
        if adapter.waited:
            break
    assert adapter.waited > 0
    tell(f"{hook} blocks", tries=1, outcome="the run waits, and goes on", lost=kept(run_dir))


# -- the host's own parts


def test_a_callback_that_blocks_corrupts_nothing(kit, tell):  # noqa: F811
    adapter, recorder = held(kit), kit.Callbacks()
    recorder.watchers.append(lambda *_: adapter.block())
    run = kit.run(kit.flash(clock="local"), adapter=adapter, recorder=recorder, calls=CALLS)
    kit.check(run, CALLS)
    assert adapter.waited > 20
    lost = abs(adapter.calls - run.result.total_metric_calls)
    tell("every callback blocks", tries=1, outcome="the run waits, and goes on", lost=lost)


def test_a_stopper_that_blocks_corrupts_nothing(kit, tell):  # noqa: F811
    adapter = held(kit)
    stopper = lambda _: bool(adapter.block())  # noqa: E731
    run = kit.run(kit.flash(clock="local"), adapter=adapter, calls=CALLS, stop_callbacks=stopper)
    kit.check(run, CALLS)
    assert adapter.waited > 5
    lost = abs(adapter.calls - run.result.total_metric_calls)
    tell("a stopper blocks", tries=1, outcome="the run waits, and goes on", lost=lost)


@pytest.mark.parametrize("staleness", ["guarded", "merge"])
def test_a_stopper_that_raises_ends_the_run_with_its_state(staleness, kit, tell, tmp_path):  # noqa: F811
    asked = []

    def stopper(state):
        asked.append(state)
        if len(asked) > 12:
            raising()
        return False

    run = kit.run(kit.flash(staleness=staleness), calls=400, stop_callbacks=stopper, run_dir=str(tmp_path), catch=True)
    assert isinstance(run.error, ZeroDivisionError)  # as from the host
    again = kit.run(kit.flash(), calls=400, run_dir=str(tmp_path))
    assert again.result.total_metric_calls <= 400
    spent = run.adapter.calls
    lost = kept(tmp_path) + max(0, spent + again.adapter.calls - 10 - again.result.total_metric_calls)
    tell(f"a stopper raises, {staleness}", tries=1, outcome="its error, state kept", lost=lost)


class Failing(Tracker):
    """A tracker whose service is gone after a while."""

    left = 20

    def __getattribute__(self, name):
        if name == "log_metrics":
            type(self).left -= 1
            if type(self).left < 0:
                raise ConnectionError("the tracker is gone")
        return super().__getattribute__(name)


@pytest.mark.parametrize("goes_on", [False, True], ids=["ends", "goes on"])
def test_a_tracker_that_raises_is_the_host_s_to_judge(goes_on, kit, tell, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr("gepa_kit.Tracker", type("FailingTracker", (Failing,), {"left": 20}))
    options = {"raise_on_exception": False} if goes_on else {}
    run = kit.run(kit.flash(), calls=300, run_dir=str(tmp_path), catch=True, **options)
    if goes_on:
        assert run.error is None
        assert run.result.total_metric_calls == run.adapter.calls <= 300
    else:
        assert isinstance(run.error, ConnectionError)
    outcome = "iterations fail, the run goes on" if goes_on else "its error, state kept"
    tell(f"a tracker raises, the run {'goes on' if goes_on else 'ends'}", tries=1, outcome=outcome, lost=kept(tmp_path))


def test_sys_exit_in_an_observer_ends_the_run_with_its_state(kit, tell, tmp_path):  # noqa: F811
    left = iter(range(5))

    def leave() -> None:
        if next(left, None) is None:
            raise SystemExit(3)

    flash = kit.flash(plugins=[plugin("flashevolve_item_ended", leave)])
    with pytest.raises(SystemExit):
        kit.run(flash, calls=400, run_dir=str(tmp_path))
    tell("an observer calls sys.exit", tries=1, outcome="the process ends, state kept", lost=kept(tmp_path))


# -- clocks

#: File, and function or import, with the reason why it reads the time of day: nothing else measures with it.
DATES = {
    ("_audit.py", "_now"): "when a run began, for readers",
    ("_failures.py", "import"): "when a server wants to be asked again, which it may say as a date",
    ("checkout_host.py", "__init__"): "a run's name, as its host gives it",
    ("superagentic.py", "_write_indexes"): "when a run was over, as its host writes it",
    ("_run_dir.py", "_holder"): "a lock's age: processes, also of other machines, share the file system's time alone",
}
WALL = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today")}


def test_only_the_monotonic_clock_measures(source_root):
    found = set()
    rooms = [source_root / name for name in ("flashevolve_plugins", "hooks", "adapters")]
    for file in (file for room in rooms for file in room.rglob("*.py")):
        tree = ast.parse(file.read_text("utf-8"))
        for function in ast.walk(tree):
            if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
                continue
            for node in ast.walk(function):
                named = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
                if named and (node.value.id, node.attr) in WALL:
                    found.add((file.name, getattr(function, "name", "")))
                if isinstance(node, ast.ImportFrom) and node.module == "time":
                    found |= {(file.name, "import") for each in node.names if each.name in {"time", "time_ns"}}
    assert {each for each in found if each[1]} == set(DATES)


def test_a_clock_that_jumps_changes_nothing(kit, tell, tmp_path, monkeypatch):  # noqa: F811
    """A year back, a year on: as when a machine wakes up, or learns the time."""
    plain = kit.run(kit.flash(clock="local", max_concurrency=1, max_items=1), calls=CALLS)
    luck, real = random.Random(1), time.time
    monkeypatch.setattr(time, "time", lambda: real() + luck.uniform(-3e7, 3e7))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flash = kit.flash(clock="local", max_concurrency=1, max_items=1)
        run = kit.run(flash, calls=CALLS, run_dir=str(tmp_path))
    kit.check(run, CALLS)
    assert run.result.candidates == plain.result.candidates
    records = [json.loads(line) for line in (tmp_path / "flashevolve_items.jsonl").read_text("utf-8").splitlines()[1:]]
    odd = [each for each in records if not 0 <= each["started"] <= each["ended"] < 600]
    assert 0 <= run.last.seconds < 600
    tell("the clock jumps", tries=1, outcome="nothing changes", lost=len(odd))
