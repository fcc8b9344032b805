"""Whatever goes wrong: a delta is in the playbook whole or not at all, and the file on disk agrees with itself."""

import json
import threading
from collections import Counter
from contextlib import suppress

import numpy as np
import pytest
from ace import Bullet, Feedback, OpenAILLM, Playbook
from ace_task import NumberModel, contents, make_ace, make_task
from item_records import Records

from flashevolve_plugins import BackendError, Flash, UsageError
from flashevolve_plugins._run_dir import Lock
from flashevolve_plugins.adapters.ace.entries import MOST_CHANGES, Entries, following
from flashevolve_plugins.hooks import Aggregate


def flash(**settings):
    return Flash(progress=False, **{"evaluate": "example", "max_concurrency": 4, **settings})


class Poisoned(NumberModel):
    """The reflection on question 3 names a helpful bullet by something that is no id."""

    def _reflector(self, user):
        said = super()._reflector(user)
        return {**said, "helpful_ids": [{"id": "ctx-1"}]} if "QUERY:\nquestion 3\n" in user else said


@pytest.mark.parametrize("policy", ["full", "merge", Aggregate(group=4)])
def test_a_delta_that_cannot_be_applied_leaves_nothing_and_costs_no_other(policy, caplog):
    ace = make_ace(Poisoned(), executor=flash(staleness=policy, clock="virtual"))
    result = ace.adapt_offline(make_task(12))
    assert contents(ace) == sorted(f"rule {n}" for n in range(12) if n != 3)
    assert [record.step for record in result.history] == list(range(1, 12))
    assert "1 of 12 samples failed and taught nothing; the first: TypeError" in caplog.text


class Stop(BaseException):
    pass


def test_an_interrupt_inside_a_merge_is_taken_up_with_all_or_nothing_of_it(tmp_path):
    told = []

    def stop_at_the_second_of_a_merge(record):
        told.append(record)
        if len(told) == 2:
            raise Stop

    settings = {"staleness": Aggregate(group=4), "clock": "virtual", "run_dir": str(tmp_path)}
    with pytest.raises(Stop):
        make_ace(NumberModel(), executor=flash(**settings)).adapt_offline(make_task(8), stop_at_the_second_of_a_merge)
    again = make_ace(NumberModel(), executor=flash(**settings))
    result = again.adapt_offline(make_task(8))
    assert contents(again) == sorted(f"rule {n}" for n in range(8))
    assert sorted(record.sample_id for record in result.history) == sorted(f"s{n}" for n in range(8))


def test_an_interrupt_while_a_delta_is_applied_leaves_the_last_file(tmp_path):
    settings = {"staleness": "full", "clock": "virtual", "run_dir": str(tmp_path)}
    ace = make_ace(NumberModel(), executor=flash(**settings))
    refine = ace._maybe_refine

    def interrupted():
        if len(ace.playbook) == 5:
            raise Stop
        return refine()

    ace._maybe_refine = interrupted
    with pytest.raises(Stop):
        ace.adapt_offline(make_task(9))
    state = json.loads((tmp_path / "flashevolve_ace.json").read_text())
    assert len(state["done"]) == len(state["state"]["history"]) == len(state["state"]["playbook"]["bullets"]) < 5
    again = make_ace(NumberModel(), executor=flash(**settings))
    again.adapt_offline(make_task(9))
    assert contents(again) == sorted(f"rule {n}" for n in range(9))


def test_what_failed_is_tried_again_by_the_next_call(tmp_path):
    settings = {"clock": "virtual", "run_dir": str(tmp_path)}
    with pytest.raises(BackendError):
        make_ace(NumberModel(fails={2, *range(9, 60)}), executor=flash(**settings)).adapt_offline(make_task(60))
    model = NumberModel(fails={30})
    result = make_ace(model, executor=flash(**settings)).adapt_offline(make_task(60))
    assert {record.sample_id for record in result.history} == {f"s{n}" for n in range(60)} - {"s30"}
    assert model.count("Generator") <= 53


def test_an_operation_that_ages_while_another_is_judged_is_judged_as_well():
    """Two bullets: the second one changes while the model judges what is to become of the first."""
    read, first_done, judging, second_done = (threading.Barrier(3), *(threading.Event() for _ in range(3)))
    edit = lambda name, text: {"op": "UPDATE", "target_id": f"ctx-{name}", "content": text}  # noqa: E731

    class Model(NumberModel):
        def complete(self, system, user):
            judging.set()
            assert second_done.wait(60)
            return super().complete(system, user).replace("discard", "accept", 1)

    def operations(rules, shown):
        read.wait(60)
        if rules == ["rule 0"]:
            return [edit("a", "newer a")]
        if rules == ["rule 1"]:
            assert judging.wait(60)
            return [edit("b", "newer b")]
        assert first_done.wait(60)
        return [edit("a", "newest a"), edit("b", "newest b")]

    def told(record):
        events = {"s0": first_done, "s1": second_done}
        if record.sample_id in events:
            events[record.sample_id].set()

    playbook = Playbook()
    for name in "ab":
        playbook.add(Bullet(f"old {name}", id=f"ctx-{name}"))
    model, ends = Model(operations=operations), Records()
    ace = make_ace(model, executor=flash(staleness="reflective", plugins=[ends]), playbook=playbook)
    ace.adapt_offline(make_task(3), told)
    (record,) = [each for each in ends.all if each.number == 3]
    assert len(record.checks) == 2
    assert sum(role == "Judge" for role, _ in model.calls) == 2
    assert contents(ace) == ["newest a", "newest b"]


class NumberedOpenAI(OpenAILLM, NumberModel):
    """A model that is known to allow calls at once."""

    def __init__(self):
        NumberModel.__init__(self)

    complete, complete_json = NumberModel.complete, NumberModel.complete_json


def test_a_function_that_embeds_is_called_once_at_a_time():
    inside, most, lock = Counter(), [], threading.Lock()
    together = threading.Barrier(2)

    def embed(texts):
        with lock:
            inside["now"] += 1
            most.append(inside["now"])
        with suppress(threading.BrokenBarrierError):  # who comes second while the first is there would meet it
            together.wait(0.05)
        with lock:
            inside["now"] -= 1
        return [[1.0, float(len(text))] for text in texts]

    executor = Flash(progress=False, staleness="full", max_concurrency=8)
    ace = make_ace(NumberedOpenAI(), executor=executor)
    ace.embedder = embed
    ace.adapt_offline(make_task(8))
    assert executor.last_run.slots["task"] == 8
    assert max(most) == 1


def test_a_directory_that_cannot_be_written_is_told_before_anything_is_spent(tmp_path):
    (tmp_path / "file").write_text("")
    model = NumberModel()
    with pytest.raises(UsageError, match="cannot be written"):
        make_ace(model, executor=flash(run_dir=str(tmp_path / "file"))).adapt_offline(make_task(3))
    assert model.num_calls == 0


def test_a_disk_that_fills_up_is_told_once_and_the_run_goes_on(tmp_path, monkeypatch, caplog):
    from flashevolve_plugins.adapters.ace import resume

    monkeypatch.setattr(resume, "EVERY", 0.0)
    monkeypatch.setattr(resume, "SHARE", 0)
    ace = make_ace(NumberModel(), executor=flash(run_dir=str(tmp_path), clock="virtual"))

    def full(*_):
        raise OSError(28, "No space left on device")

    result = ace.adapt_offline(make_task(9), lambda _: monkeypatch.setattr(resume.StateFile, "_write", full))
    assert len(result.history) == 9
    assert caplog.text.count("The run cannot be kept in") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["flashevolve_ace.json", "flashevolve_items.jsonl"]


def test_numbers_of_numpy_are_kept(tmp_path):
    feedback = lambda sample, generation: Feedback(correct=np.bool_(1), signal="fine")  # noqa: E731
    settings = {"run_dir": str(tmp_path), "clock": "virtual"}
    make_ace(NumberModel(), executor=flash(**settings)).adapt_offline(make_task(4), feedback_fn=feedback)
    again = make_ace(NumberModel(), executor=flash(**settings)).adapt_offline(make_task(4), feedback_fn=feedback)
    assert [record.correct for record in again.history] == [True] * 4


def test_versions_share_what_they_have_in_common():
    now, version = {}, Entries({})
    kept = []
    for n in range(3 * MOST_CHANGES):
        now = {**now, f"e{n}": "new", f"e{n // 2}": f"changed {n}"}
        if n % 5 == 4:
            del now[f"e{n - 1}"]
        following_one = following(version, now)
        assert following(following_one, dict(now)) is following_one
        kept.append((version := following_one, dict(now)))
    for entries, expected in kept:
        assert dict(entries) == expected
        assert len(entries) == len(expected)
        assert ("e0" in entries) == ("e0" in expected)
    assert sum(len(entries.changes) <= MOST_CHANGES for entries, _ in kept) == len(kept)
    assert len({id(entries.whole) for entries, _ in kept}) < 12


def test_a_directory_in_use_is_refused_before_anything_is_spent(tmp_path):
    model = NumberModel()
    with Lock(str(tmp_path)), pytest.raises(UsageError, match="in use by process"):
        make_ace(model, executor=flash(run_dir=str(tmp_path))).adapt_offline(make_task(3))
    assert not model.calls
    make_ace(model, executor=flash(run_dir=str(tmp_path))).adapt_offline(make_task(3))
    assert not (tmp_path / "flashevolve.lock").exists()
