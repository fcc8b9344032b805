"""A run of ACE that is stopped: what is being curated is applied, and a resume learns the rest."""

import itertools
import signal
import sys
import threading

import pytest
from ace_task import NumberModel, contents, make_ace, make_task

from flashevolve_plugins import Flash, RunStopped, UsageError


def flash(**settings):
    return Flash(progress=False, **{"evaluate": "example", "max_concurrency": 4, "clock": "virtual", **settings})


@pytest.mark.parametrize("policy", ["full", "merge"])
@pytest.mark.parametrize("seconds", [1, 9, 17, 26])
def test_what_is_being_curated_is_applied_and_a_resume_learns_the_rest(tmp_path, policy, seconds):
    model = NumberModel()
    ace = make_ace(model, executor=flash(staleness=policy, run_dir=str(tmp_path), max_seconds=seconds))
    result = ace.adapt_offline(make_task(20))
    learned = sorted(f"rule {record.sample_id[1:]}" for record in result.history)
    assert contents(ace) == learned
    assert len(learned) < 20
    asked = {rule for role, request in model.calls if role == "Curator" for rule in learned if rule in request}
    assert asked == set(learned), "what a curator was asked for is in the playbook"

    again = make_ace(model, executor=flash(staleness=policy, run_dir=str(tmp_path)))
    result = again.adapt_offline(make_task(20))
    assert sorted(record.sample_id for record in result.history) == sorted(f"s{n}" for n in range(20))
    assert contents(again) == sorted(f"rule {n}" for n in range(20))


def test_no_curation_is_lost_whenever_it_stops():
    for tenths in range(1, 140, 7):
        model = NumberModel()
        ace = make_ace(model, executor=flash(staleness="full", max_seconds=tenths / 10, max_concurrency=2))
        ace.adapt_offline(make_task(9))
        assert len(contents(ace)) == model.count("Curator")


@pytest.mark.parametrize(("grace", "learned"), [(0, 0), (0.5, 0), (1, 4), (10, 4)])
def test_what_is_being_curated_has_the_grace_period(grace, learned):
    """Four calls of the curator run from second 11 to second 13."""
    ace = make_ace(NumberModel(), executor=flash(staleness="full", max_seconds=12, grace=grace))
    assert len(ace.adapt_offline(make_task(20)).history) == learned
    assert len(contents(ace)) == learned


def test_the_error_carries_the_playbook(tmp_path):
    executor = flash(max_seconds=26, on_stop="raise", run_dir=str(tmp_path))
    ace = make_ace(NumberModel(), executor=executor)
    with pytest.raises(RunStopped, match="max_seconds=26 are over") as stopped:
        ace.adapt_offline(make_task(20))
    assert sorted(stopped.value.best.values()) == contents(ace) != []
    assert (stopped.value.score, stopped.value.run_dir) == (None, str(tmp_path))
    assert (tmp_path / "flashevolve_ace.json").is_file()


def test_a_score_to_stop_at_is_refused():
    model = NumberModel()
    with pytest.raises(UsageError, match="stop_score does not go with ACE"):
        make_ace(model, executor=flash(stop_score=0.5)).adapt_offline(make_task(3))
    assert model.num_calls == 0


@pytest.mark.skipif(sys.platform == "win32", reason="needs pthread_kill")
def test_ctrl_c_once_returns_what_was_learned_though_every_model_hangs():
    release, numbers, lock = threading.Event(), itertools.count(1), threading.Lock()

    def hang(role, request):
        with lock:
            number = next(numbers)
        if number > 12:
            if number == 16:  # all four slots hang, or are about to
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            release.wait(60)

    model = NumberModel(reached=hang)
    ace = make_ace(model, executor=flash(staleness="full", clock="local", grace=0.2))
    try:
        result = ace.adapt_offline(make_task(20))
        assert not release.is_set()
    finally:
        release.set()
    assert contents(ace) == sorted(f"rule {record.sample_id[1:]}" for record in result.history)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
