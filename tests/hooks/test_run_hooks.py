"""A run's plugins: who is asked, in which order, and what happens when one raises."""

import re
import threading
import warnings

import pytest

from flashevolve_plugins import FlashEvolveError, PluginError, UsageError
from flashevolve_plugins._model import Terminal, Verdict
from flashevolve_plugins.hooks import Full, Judgement, Snapshot, StalenessPolicy, hookimpl
from flashevolve_plugins.hooks.manager import RunHooks


class Says:
    """A plugin that judges, and notes that it was asked."""

    def __init__(self, name, answer, asked=None):
        self.name, self.answer, self.asked = name, answer, asked if asked is not None else []

    @hookimpl
    def flashevolve_judge_stale(self, item, pool):
        self.asked.append(self.name)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Watcher:
    """An observer of everything; raises where it is told to."""

    def __init__(self, raises_in=""):
        self.seen, self.threads, self.raises_in = [], set(), raises_in

    def _see(self, what, about):
        self.seen.append((what, about))
        self.threads.add(threading.current_thread())
        if what == self.raises_in:
            raise RuntimeError(f"no {what}")

    @hookimpl
    def flashevolve_run_started(self, snapshot):
        self._see("run_started", snapshot.seconds)

    @hookimpl
    def flashevolve_stage_started(self, item, stage):
        self._see("stage_started", (item, stage))

    @hookimpl
    def flashevolve_stage_finished(self, item, stage):
        self._see("stage_finished", (item, stage))

    @hookimpl
    def flashevolve_pool_updated(self, entry):
        self._see("pool_updated", entry.version)

    @hookimpl
    def flashevolve_item_ended(self, record):
        self._see("item_ended", record.number)

    @hookimpl
    def flashevolve_snapshot(self, snapshot):
        self._see("snapshot", snapshot.items)

    @hookimpl
    def flashevolve_run_finished(self, snapshot):
        self._see("run_finished", snapshot.version)


def test_the_plugin_named_last_is_asked_first_and_the_first_answer_wins(view, pool):
    asked = []
    young = Judgement(Verdict.DISCARD, "young")
    hooks = RunHooks(Full(), [Says("a", young, asked), Says("b", None, asked), Says("c", None, asked)])
    assert hooks.judge_stale(view(1), pool) == young
    assert asked == ["c", "b", "a"]
    assert RunHooks(Full(), [Says("a", None)]).judge_stale(view(1), pool).verdict is Verdict.ACCEPT


def test_without_an_answer_the_item_goes_on(view, pool):
    class Silent(StalenessPolicy):
        def judge(self, item, pool):
            return None

    assert RunHooks(Silent()).judge_stale(view(9), pool) == Judgement(Verdict.ACCEPT)


@pytest.mark.parametrize("answer", [ValueError("no idea"), True, "accept"])
def test_a_decision_that_raises_or_answers_nonsense_names_plugin_hook_and_item(answer, view, pool):
    with pytest.raises(PluginError, match="'Says#1' raised in flashevolve_judge_stale for item 7: ") as caught:
        RunHooks(Full(), [Says("a", answer)]).judge_stale(view(1), pool)
    error = caught.value
    assert (error.plugin, error.hook, error.about) == ("Says#1", "flashevolve_judge_stale", "item 7")
    assert error.__cause__ is error.error
    assert isinstance(error, FlashEvolveError)
    assert str(answer) in str(error)


def test_a_decision_that_raises_fails_its_item_and_no_other(run_items):
    class OnceBroken:
        def __init__(self):
            self.failed = []

        @hookimpl
        def flashevolve_judge_stale(self, item, pool):
            if not self.failed:
                self.failed.append(item.number)
                raise ValueError("no idea")

    broken = OnceBroken()
    records = run_items(RunHooks(Full(), [broken]), 6)
    (number,) = broken.failed
    failed = records.pop(number)
    assert failed.terminal is Terminal.FAILED
    assert isinstance(failed.error, PluginError)
    assert f"raised in flashevolve_judge_stale for item {number}: ValueError: no idea" in failed.reason
    assert [record.terminal for record in records.values()] == [Terminal.COMMITTED] * 5


def test_an_observer_that_raises_is_reported_once_and_the_run_goes_on(run_items):
    raising, watching = Watcher("stage_started"), Watcher()
    with pytest.warns(RuntimeWarning) as caught:
        records = run_items(RunHooks(Full(), [watching, raising]), 4)
    (warning,) = caught
    pattern = "Plugin 'Watcher#2' raised in flashevolve_stage_started for item=1, stage='rollout': RuntimeError: no "
    assert re.match(pattern, str(warning.message))
    assert {record.terminal for record in records.values()} == {Terminal.COMMITTED}
    assert raising.seen == watching.seen
    assert sum(what == "stage_started" for what, _ in watching.seen) == 8


@pytest.mark.parametrize("hook", ["run_started", "snapshot", "pool_updated", "item_ended", "run_finished"])
def test_every_observation_survives_an_observer(hook, run_items):
    watching = Watcher()
    with pytest.warns(RuntimeWarning, match=f"flashevolve_{hook}"):
        run_items(RunHooks(Full(), [Watcher(hook), watching]), 2)
    assert (watching.seen[-1][0], watching.seen[0][0]) == ("run_finished", "run_started")


def test_observers_see_every_item_once_in_order_on_the_callers_thread(run_items):
    watcher = Watcher()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_items(RunHooks(Full(), [watcher]), 3)
    assert watcher.threads == {threading.current_thread()}
    assert sorted(about for what, about in watcher.seen if what == "item_ended") == [1, 2, 3]
    assert [about for what, about in watcher.seen if what == "pool_updated"] == [1, 2, 3]
    for item in (1, 2, 3):
        stages = [(what, about[1]) for what, about in watcher.seen if what.startswith("stage") and about[0] == item]
        moves = ["stage_started", "stage_finished"]
        assert stages == [(move, stage) for stage in ("rollout", "validate") for move in moves]


class Misspelt:
    @hookimpl
    def flashevolve_jugde_stale(self, item): ...


class WrongArgument:
    @hookimpl
    def flashevolve_snapshot(self, snap): ...


class Unmarked:
    def flashevolve_snapshot(self, snapshot): ...


@pytest.mark.parametrize(
    ("plugin", "problem"),
    [
        (Misspelt(), "'Misspelt#1' implements a hook that does not exist so: .*flashevolve_jugde_stale"),
        (WrongArgument(), "'WrongArgument#1' implements a hook that does not exist so: .*'snap'"),
        (Watcher, r"'Watcher' is a class: pass an object, Watcher\(\)"),
        (Unmarked(), "'Unmarked' implements no hook: mark its methods with @hookimpl"),
        (object(), "'object' implements no hook"),
        (None, "'NoneType' implements no hook"),
    ],
)
def test_a_plugin_without_a_valid_hook_is_refused_with_its_name(plugin, problem):
    with pytest.raises(UsageError, match=problem) as caught:
        RunHooks(Full(), [plugin])
    assert "\n" not in str(caught.value)


def test_a_plugin_given_twice_is_refused():
    watcher = Watcher()
    with pytest.raises(UsageError, match="is given twice"):
        RunHooks(Full(), [watcher, watcher])


def test_two_plugins_of_one_class_are_two_plugins():
    first, second = Watcher(), Watcher()
    RunHooks(Full(), [first, second]).snapshot(Snapshot(items=3))
    assert first.seen == second.seen == [("snapshot", 3)]
