"""A run that stopped goes on where it was: skillbook, recent reflections, results."""

import json

import pytest
from framework_task import NumberModel, book_of, contents, counters, make_ace, make_dedup, make_samples, run, timeless

from flashevolve_plugins import Flash, UsageError


class Stop(BaseException):
    """Stands for Ctrl-C."""


def stops_at(number, role="agent"):
    def reached(called, prompt):
        if called == role and f"question {number}\n" in prompt:
            raise Stop

    return reached


def test_lockstep_taken_up_is_the_hosts_own_run(tmp_path):
    told = NumberModel()
    own = make_ace(told, dedup=make_dedup())
    whole = run(own, make_samples(6), epochs=2)
    settings = {"lockstep": True, "progress": False, "run_dir": str(tmp_path / "run")}
    first = make_ace(NumberModel(reached=stops_at(4)), dedup=make_dedup(), executor=Flash(**settings))
    with pytest.raises(Stop):
        run(first, make_samples(6), epochs=2)
    model = NumberModel()
    second = make_ace(model, dedup=make_dedup(), executor=Flash(**settings))
    samples = make_samples(6)
    results = run(second, samples, epochs=2)
    assert results == whole
    assert all(each.sample is samples[each.step - 1] for each in results)
    assert timeless(second.skillbook) == timeless(own.skillbook)
    assert second._recent_reflections == own._recent_reflections
    assert model.count("agent") == 2 + 6
    assert told.calls[-len(model.calls) :] == model.calls


def test_what_is_over_is_not_made_again_and_counts_once(tmp_path):
    settings = {"evaluate": "example", "max_concurrency": 4, "staleness": "full", "progress": False}
    book = book_of("rule 3")
    first = make_ace(
        NumberModel(reached=stops_at(3), fails={1}),
        executor=Flash(**settings, clock="virtual", run_dir=str(tmp_path)),
        skillbook=book,
    )
    samples = make_samples(21)
    samples.append(samples.pop(3))
    with pytest.raises(Stop):
        run(first, samples)
    state = json.loads((tmp_path / "flashevolve_ace.json").read_text())
    assert 1 < len(state["done"]) < 20
    given, model = book_of("to be replaced"), NumberModel()
    second = make_ace(model, executor=Flash(**settings, run_dir=str(tmp_path)), skillbook=given)
    results = run(second, samples)
    assert second.skillbook is given
    assert contents(second) == sorted(f"rule {n}" for n in range(21) if n != 1)
    assert counters(second)["rule 3"] == (1, 0, 0)
    assert sorted(each.step for each in results) == [1, *range(3, 22)]
    assert model.count("agent") == 21 - len(state["done"])


def test_the_tags_of_a_turn_that_was_interrupted_count_once(tmp_path):
    settings = {"evaluate": "example", "max_concurrency": 2, "staleness": "full", "progress": False}
    model = NumberModel(reached=stops_at(3, "manager"))
    flash = Flash(**settings, clock="virtual", run_dir=str(tmp_path))
    with pytest.raises(Stop):
        run(make_ace(model, executor=flash, skillbook=book_of("rule 3")), make_samples(5))
    assert model.count("reflector") > 3
    ace = make_ace(NumberModel(), executor=Flash(**settings, run_dir=str(tmp_path)))
    assert len(run(ace, make_samples(5))) == 5
    assert counters(ace)["rule 3"] == (1, 0, 0)


def test_a_run_that_is_over_gives_its_results_again_and_another_is_refused(tmp_path, caplog):
    def settings():
        return Flash(evaluate="example", progress=False, run_dir=str(tmp_path))

    results = run(make_ace(NumberModel(fails={2}), executor=settings()), make_samples(5))
    model = NumberModel()
    again = make_ace(model, executor=settings())
    assert run(again, make_samples(5)) == results
    assert len(results) == 4
    assert model.calls == []
    assert contents(again) == [f"rule {n}" for n in (0, 1, 3, 4)]
    with pytest.raises(UsageError, match="belongs to a run with other samples"):
        run(make_ace(model, executor=settings()), make_samples(5, first=1))
    assert model.calls == []
