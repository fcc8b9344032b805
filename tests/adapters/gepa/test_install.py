"""How a run comes under flash, and how it does not."""

import inspect
import os
import subprocess
import sys
import threading

import gepa
import gepa.api
import gepa.core.engine
import pytest
from gepa.optimize_anything import EngineConfig, GEPAConfig, ReflectionConfig, optimize_anything

from flashevolve_plugins import Flash, HostError, UnknownNameError
from flashevolve_plugins.adapters.gepa import install
from flashevolve_plugins.adapters.gepa.install import require_supported

BEFORE = gepa.optimize.__wrapped__  # what `from gepa import optimize` gave before our import


@pytest.fixture
def arguments(kit):
    """A new run's arguments for gepa.optimize."""

    def make(**more):
        return {
            "seed_candidate": kit.ONE,
            "trainset": list(range(12)),
            "valset": list(range(100, 110)),
            "adapter": kit.Words(),
            "reflection_lm": kit.Reflection(),
            "max_metric_calls": 80,
            "logger": kit.Log(),
            **more,
        }

    return make


@pytest.fixture
def threads(monkeypatch, kit):
    """The names of the threads that evaluated, whichever run they belong to."""
    names = []
    monkeypatch.setattr(kit.Words, "working", lambda *_: names.append(threading.current_thread().name))
    return names


def flashy(names):
    return {name.startswith("flashevolve-slot") for name in names}


# -- executor= ---------------------------------------------------------------------------------------------------------


def test_executor_none_is_the_host_s_own_loop(arguments, threads):
    result = gepa.optimize(**arguments(), executor=None)
    assert flashy(threads) == {False}
    assert result.total_metric_calls >= 80


def test_no_executor_is_the_host_s_own_loop(arguments, threads):
    gepa.optimize(**arguments())
    assert flashy(threads) == {False}


@pytest.mark.parametrize("executor", ["flash", Flash(progress=False)], ids=["name", "object"])
def test_executor_flash_runs_under_flash(arguments, threads, executor):
    result = gepa.optimize(**arguments(), executor=executor)
    assert flashy(threads) == {True}
    assert result.total_metric_calls <= 80


@pytest.mark.parametrize("executor", ["ray", "Flash", 3, True])
def test_an_unknown_executor_lists_the_known_ones_before_anything_is_spent(arguments, executor):
    given = arguments()
    with pytest.raises(UnknownNameError, match=r"^Unknown executor .*: known are 'flash'\.$"):
        gepa.optimize(**given, executor=executor)
    assert given["adapter"].calls == 0


def test_the_signature_is_the_host_s_with_executor_last(arguments):
    theirs, ours = inspect.signature(BEFORE), inspect.signature(gepa.optimize)
    names = list(ours.parameters)
    assert names == [*theirs.parameters, "executor"]
    assert ours.parameters["executor"].kind is inspect.Parameter.KEYWORD_ONLY
    assert str(ours.parameters["executor"]) == "executor=None"
    assert ours.return_annotation == theirs.return_annotation
    assert gepa.optimize.__name__ == "optimize"
    assert gepa.optimize.__doc__ == BEFORE.__doc__
    assert gepa.optimize is gepa.api.optimize


def test_positional_arguments_stay_where_they_were(arguments, threads):
    given = arguments()
    order = [given.pop(name) for name in ("seed_candidate", "trainset", "valset", "adapter")]
    gepa.optimize(*order, **given, executor=Flash(progress=False))
    assert flashy(threads) == {True}


def test_one_flash_serves_many_runs(arguments):
    flash = Flash(progress=False, clock="virtual")
    results = [gepa.optimize(**arguments(), executor=flash) for _ in range(2)]
    assert results[0].candidates == results[1].candidates


# -- with Flash(): -----------------------------------------------------------------------------------------------------


def test_a_block_holds_for_an_optimize_that_was_imported_before(arguments, threads):
    with Flash(progress=False):
        BEFORE(**arguments())
    assert flashy(threads) == {True}
    threads.clear()
    BEFORE(**arguments())
    assert flashy(threads) == {False}


def test_an_explicit_none_inside_a_block_is_the_host_s_own_loop(arguments, threads):
    with Flash(progress=False) as flash:
        gepa.optimize(**arguments(), executor=None)
        assert flashy(threads) == {False}
        threads.clear()
        gepa.optimize(**arguments())
        assert flashy(threads) == {True}
    assert flash.last_run.spent <= 80


def test_the_innermost_block_wins_and_leaving_restores(arguments):
    outer, inner, given = (Flash(progress=False, clock="virtual") for _ in range(3))

    def used():
        BEFORE(**arguments())
        found = [each for each in (outer, inner, given) if each.last_run is not None]
        for each in found:
            each.last_run = None
        return found

    with outer:
        assert used() == [outer]
        with inner:
            assert used() == [inner]
            gepa.optimize(**arguments(), executor=given)
            assert used() == [inner, given]
            with outer:
                assert used() == [outer]
            assert used() == [inner]
        assert used() == [outer]
    assert used() == []


def test_leaving_by_an_error_restores_too(arguments, threads):
    with pytest.raises(ZeroDivisionError), Flash(progress=False):
        raise ZeroDivisionError
    failing = arguments()
    failing["adapter"].errors = {"evaluate": lambda number: number == 3}
    with pytest.raises(RuntimeError):
        gepa.optimize(**failing, executor=Flash(progress=False, clock="virtual"))
    threads.clear()
    BEFORE(**arguments())
    assert flashy(threads) == {False}


def test_opting_in_twice_is_opting_in_once(arguments, threads):
    flash = Flash(progress=False)
    with flash, flash:
        gepa.optimize(**arguments(), executor=flash)
    assert flashy(threads) == {True}
    threads.clear()
    BEFORE(**arguments())
    assert flashy(threads) == {False}


def test_a_block_holds_on_its_own_thread_alone(arguments, kit):
    inside, done = threading.Event(), threading.Event()
    names = {}

    def run(name):
        given = arguments()
        given["adapter"].working = lambda *_: names.setdefault(name, set()).add(threading.current_thread().name)
        BEFORE(**given)

    def other():
        assert inside.wait(60)
        run("other")
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with Flash(progress=False):
        inside.set()
        assert done.wait(60)  # the other's whole run happens inside this block
        run("own")
    thread.join(60)
    assert flashy(names["own"]) == {True}
    assert flashy(names["other"]) == {False}


def test_two_threads_run_at_once_with_flashes_of_their_own(arguments):
    meet, results = threading.Barrier(2), {}

    def run(seed, flash):
        given = arguments(seed=seed)
        meet.wait(60)
        with flash:
            results[seed] = BEFORE(**given), given["adapter"]

    flashes = [Flash(progress=False, max_concurrency=3), Flash(progress=False)]
    threads = [threading.Thread(target=run, args=each) for each in enumerate(flashes)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    for seed, flash in enumerate(flashes):
        result, adapter = results[seed]
        assert result.total_metric_calls == adapter.calls == flash.last_run.spent <= 80
    assert flashes[0].last_run.slots["task"] == 3


# -- switching off -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "off"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_the_environment_turns_everything_off(arguments, threads, monkeypatch, value, off):
    monkeypatch.setenv("FLASHEVOLVE_DISABLE", value)
    with Flash(progress=False):
        BEFORE(**arguments())
    gepa.optimize(**arguments(), executor="flash")
    assert flashy(threads) == {not off}


# -- joining the host --------------------------------------------------------------------------------------------------


def test_installing_again_changes_nothing():
    seen = gepa.optimize, gepa.api.optimize, gepa.core.engine.GEPAEngine.run
    install.install()
    assert (gepa.optimize, gepa.api.optimize, gepa.core.engine.GEPAEngine.run) == seen


ORDERS = {
    "host first": "from gepa import optimize; import flashevolve_plugins",
    "ours first": "import flashevolve_plugins; from gepa import optimize",
    "api first": "from gepa.api import optimize; import flashevolve_plugins",
}
SCRIPT = """
{imports}
import threading
from flashevolve_plugins import Flash
from gepa.core.adapter import EvaluationBatch

class Adapter:
    propose_new_texts = None
    flashevolve_evaluate = "example"
    names = set()

    def evaluate(self, batch, candidate, capture_traces=False):
        self.names.add(threading.current_thread().name.rpartition("-")[0])
        scores = [min(1.0, len(candidate["a"]) / 40) for _ in batch]
        return EvaluationBatch(outputs=scores, scores=scores, trajectories=scores if capture_traces else None)

    def make_reflective_dataset(self, candidate, evaluation, components):
        return {{"a": [{{"Feedback": "longer"}}]}}

class Quiet:
    def log(self, message):
        pass

with Flash(progress=False, reflection_concurrency=8):
    result = optimize({{"a": "x"}}, list(range(5)), list(range(5)), Adapter(), max_metric_calls=40, logger=Quiet(),
                      reflection_lm=lambda prompt: "```" + "y" * 30 + "```")
print(sorted(Adapter.names), len(result.candidates) > 1)
"""


@pytest.mark.parametrize("imports", ORDERS.values(), ids=ORDERS)
def test_the_order_of_imports_does_not_matter(imports, tmp_path):
    command = [sys.executable, "-c", SCRIPT.format(imports=imports)]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=dict(os.environ))
    assert found.stdout.strip() == "['flashevolve-slot'] True"
    assert found.stderr == ""


def test_an_engine_without_the_needed_seams_is_refused_by_name():
    class Engine:
        def _run_reflective_batch(self):
            """Only this one."""

    with pytest.raises(HostError, match=r"gepa .* is not supported \(it has no GEPAEngine\._batch_evaluate"):
        require_supported(Engine)
    require_supported(gepa.core.engine.GEPAEngine)


@pytest.mark.parametrize("lockstep", [False, True], ids=["flash", "lockstep"])
@pytest.mark.parametrize("gone", ["_evaluate_programs_on_valset", "_batch_evaluate"])
def test_an_unsupported_engine_is_refused_before_anything_is_spent(arguments, monkeypatch, gone, lockstep):
    monkeypatch.delattr(gepa.core.engine.GEPAEngine, gone)
    given = arguments()
    with pytest.raises(HostError, match=rf"no GEPAEngine.{gone}\): flash runs with gepa 0.1.4"):
        gepa.optimize(**given, executor=Flash(progress=False, lockstep=lockstep))
    assert given["adapter"].calls == 0


def test_optimize_anything_runs_inside_a_block(kit):
    def evaluate(candidate, example):
        return kit.score(example, {"a": candidate})

    config = GEPAConfig(
        engine=EngineConfig(max_metric_calls=90, display_progress_bar=False, cache_evaluation=False),
        reflection=ReflectionConfig(reflection_lm=kit.Reflection()),
    )
    config.tracking.logger = kit.Log()
    with Flash(progress=False, clock="virtual") as flash:
        result = optimize_anything(
            seed_candidate="start",
            evaluator=evaluate,
            dataset=list(range(12)),
            valset=list(range(100, 110)),
            config=config,
        )
    assert result.total_metric_calls <= 90
    assert flash.last_run.spent == result.total_metric_calls
    assert len(result.candidates) > 1
    for candidate, scores in zip(result.candidates, result.val_subscores, strict=True):
        (text,) = candidate.values()
        assert list(scores.values()) == [kit.score(each, {"a": text}) for each in range(100, 110)]
