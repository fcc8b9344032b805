"""Taking up a run in virtual time, where nothing is in flight: to the call, what was paid for is counted once."""

import functools
import shutil
from contextlib import suppress

import pytest

from flashevolve_plugins import _store
from flashevolve_plugins._run_dir import LOCK
from flashevolve_plugins.adapters.gepa.bookkeeping import StateWriter
from flashevolve_plugins.adapters.gepa.taking_up import TakingUp
from flashevolve_plugins.hooks import Decided, Speculative, Trailing


def early():
    """Leaves gates, rollouts and validations before their ends."""
    return [Decided(), Speculative(evaluate=0.5, rollout=0.5), Trailing(after=0.3, risk=0.4)]


OPTIONS = {
    "default": {},
    "merges": {"use_merge": True},
    "merges and cache": {"use_merge": True, "cache_evaluation": True},
    "full": {"staleness": "full"},
    "best first": {"staleness": "best-first"},
    "reflective": {"staleness": "reflective"},
    "rollouts": {"rollouts": 2},
    "left early": {"plugins": early},
    "full, left early": {"staleness": "full", "plugins": early},
}
MOMENTS = range(3, 260, 51)  # calls before the interruption
BUDGET = 300
PROPOSAL = 2 * 3 + 10  # metric calls with its validation


@pytest.fixture
def interrupted(kit, tmp_path, monkeypatch):
    """Runs that end at a call. ``killed``: nothing is written from then on, as if the process had been killed."""
    stores, init = [], _store.Store.__init__

    def keeping(store, *arguments):
        init(store, *arguments)
        stores.append(store)

    monkeypatch.setattr(_store.Store, "__init__", keeping)

    def run(moment, *, killed, slots=6, staleness="merge", rollouts=1, plugins=list, **options):
        before, after = tmp_path / f"{moment} before", tmp_path / f"{moment} after"
        adapter = kit.Words()

        def interrupt(*_):
            if adapter.calls > moment:
                if killed:
                    stores[-1].flush()
                    shutil.copytree(before, after)
                    (after / LOCK).unlink()
                raise KeyboardInterrupt

        adapter.working = interrupt
        settings = {"clock": "virtual", "max_concurrency": slots, "staleness": staleness, "rollouts": rollouts}
        given = {"seed_candidate": kit.TWO, "calls": BUDGET, **options}
        with suppress(KeyboardInterrupt):
            kit.run(kit.flash(**settings, plugins=plugins()), adapter=adapter, run_dir=str(before), **given)
        run_dir = str(after if killed else before)
        again = kit.run(kit.flash(**settings, plugins=plugins()), run_dir=run_dir, **given)
        return adapter.calls - 1, again

    return run


@pytest.mark.parametrize("killed", [False, True], ids=["interrupted", "killed"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_call_is_paid_for_once_and_counted_once(interrupted, options, killed):
    for moment in MOMENTS:
        paid, again = interrupted(moment, killed=killed, **options)
        assert paid + again.adapter.calls == again.result.total_metric_calls <= BUDGET
        assert BUDGET - again.result.total_metric_calls < PROPOSAL * options.get("rollouts", 1)
        contents = [tuple(sorted(candidate.items())) for candidate in again.result.candidates]
        assert len(contents) == len(set(contents))
        assert again.state.is_consistent()
        assert [entry["i"] for entry in again.trace] == list(range(len(again.trace)))


@pytest.mark.parametrize("seed", [1, 3])
def test_a_merge_near_the_end_leaves_what_was_paid_for_and_not_asked_for_yet_its_share(interrupted, seed):
    for moment in (249, 263, 277):
        paid, again = interrupted(moment, killed=True, slots=16, seed=seed)
        assert paid + again.adapter.calls == again.result.total_metric_calls <= BUDGET


def test_reflections_that_had_ended_are_not_asked_for_again(interrupted, kit, monkeypatch):
    repeated, asked, answer = [], [], kit.Reflection.answer
    monkeypatch.setattr(kit.Reflection, "answer", lambda model, prompt: asked.append(prompt) or answer(model, prompt))
    for moment in MOMENTS:
        asked.clear()
        interrupted(moment, killed=True)
        repeated.append(len(asked) - len(set(asked)))
    assert sum(repeated) <= len(MOMENTS) // 2  # the sampler of the second process may draw what had ended before


def test_nothing_that_was_paid_for_is_left_over(interrupted, monkeypatch):
    left, settle = [], TakingUp.settle

    def settled(kept):
        calls = settle(kept)
        if calls:
            left.append(calls)
        return calls

    monkeypatch.setattr(TakingUp, "settle", settled)
    for moment in (125, 164, 190, 229):  # a merge is being validated, and others wait by now
        interrupted(moment, killed=True, trainset=list(range(40)), valset=list(range(40, 80)), calls=700)
    assert not left


@pytest.mark.parametrize("seed", [0, 2])
def test_a_merge_of_many_that_wait_for_each_other_is_merged_together_again(interrupted, monkeypatch, seed):
    left, settle = [], TakingUp.settle
    monkeypatch.setattr(TakingUp, "settle", lambda kept: left.append(settle(kept)) or left[-1])
    options = {"trainset": list(range(40)), "valset": list(range(40, 360)), "calls": 2400, "seed": seed}
    paid, again = interrupted(1100, killed=True, **options)
    assert paid + again.adapter.calls == again.result.total_metric_calls <= 2400
    assert not any(left)


@pytest.mark.parametrize("grace", [0.0, 0.7, 5.0])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_after_a_deadline_every_call_is_paid_for_once_and_counted_once(kit, tmp_path, options, grace):
    given = {"seed_candidate": kit.TWO, "calls": BUDGET, **options}
    own = {name: given.pop(name) for name in ("staleness", "rollouts") if name in given}
    plugins = given.pop("plugins", list)
    for seconds in (7.0, 9.5, 17.3):
        run_dir, flash = (
            str(tmp_path / str(seconds)),
            {"clock": "virtual", "max_concurrency": 6, **own},
        )
        stopped = kit.run(
            kit.flash(**flash, plugins=plugins(), max_seconds=seconds, grace=grace), run_dir=run_dir, **given
        )
        again = kit.run(kit.flash(**flash, plugins=plugins()), run_dir=run_dir, **given)
        known = len(stopped.result.candidates)
        assert again.result.candidates[:known] == stopped.result.candidates
        assert stopped.adapter.calls + again.adapter.calls == again.result.total_metric_calls <= BUDGET
        assert len(again.result.candidates) > known


@pytest.mark.parametrize("moment", [5, 12], ids=["seed", "gate"])
def test_the_least_budget_is_enough_for_what_is_left_of_a_run_that_was_killed(interrupted, moment):
    paid, again = interrupted(moment, killed=True, calls=26)
    assert paid + again.adapter.calls == again.result.total_metric_calls == 16
    assert len(again.trace) == 1


def test_what_is_kept_of_items_is_on_disk_before_the_state_file_that_holds_them(kit, tmp_path, monkeypatch):
    happened = []
    for of, name in ((_store.Store, "tell_item"), (_store.Store, "flush"), (StateWriter, "write")):
        noted = functools.partial(happened.append, name)
        own = getattr(of, name)
        monkeypatch.setattr(of, name, lambda *given, own=own, noted=noted, **named: (noted(), own(*given, **named))[1])
    kit.run(kit.flash(clock="virtual", max_concurrency=6, staleness="merge"), run_dir=str(tmp_path), calls=BUDGET)
    assert happened.count("write") > 5
    assert "tell_item" in happened
    told = False
    for name in happened:
        assert not (told and name == "write")
        told = name == "tell_item" or (told and name != "flush")
