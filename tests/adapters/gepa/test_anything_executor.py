"""Where optimize_anything takes its executor: the function, its EngineConfig, a block; and how it does not."""

import dataclasses
import inspect
import json
import os
import pickle
import subprocess
import sys

import gepa
import gepa.optimize_anything as oa
import pytest
from anything_task import Evaluator, Words, run
from gepa.optimize_anything import EngineConfig, GEPAConfig
from gepa_records import Log

from flashevolve_plugins import Flash, UnknownNameError, UsageError
from flashevolve_plugins.adapters.gepa import install

HOST = inspect.unwrap(oa.optimize_anything)  # what an import before ours gave


def quiet(**settings):
    return Flash(progress=False, **settings)


def configured(executor):
    """Puts an executor into a run's EngineConfig."""
    return lambda config: dataclasses.replace(config, engine=dataclasses.replace(config.engine, executor=executor))


def under_flash(function=..., config=None):
    """Whether a run evaluates in slots."""
    evaluator = Evaluator()
    run(function, evaluator=evaluator, configure=configured(config))
    (found,) = {name.startswith("flashevolve-slot") for name in evaluator.threads}
    return found


@pytest.mark.parametrize(
    ("function", "config", "expected"),
    [
        (..., None, False),
        (quiet(), None, True),
        ("flash", None, True),
        (None, None, False),
        (..., quiet(), True),
        (..., "flash", True),
        (..., {"progress": False, "max_concurrency": 2}, True),
        (quiet(lockstep=True), quiet(), False),
        (quiet(), quiet(lockstep=True), True),
        (None, quiet(), False),
    ],
)
def test_the_function_s_executor_wins_over_the_configuration_s(function, config, expected):
    assert under_flash(function, config) is expected


def test_the_function_s_own_flash_is_the_one_that_runs():
    function, config, block = quiet(), quiet(), quiet()
    with block:
        assert under_flash(function, config)
    assert function.last_run is not None
    assert config.last_run is None
    assert block.last_run is None
    assert under_flash(..., config)
    assert config.last_run is not None


def test_a_block_holds_unless_the_function_is_given_none():
    with quiet() as block:
        assert under_flash()
        assert block.last_run is not None
        assert not under_flash(None)


def test_a_function_imported_before_ours_reads_its_configuration_too(monkeypatch):
    config, block = quiet(), quiet()
    arguments = {"seed_candidate": "start", "evaluator": Evaluator()}
    parts = {"reflection": oa.ReflectionConfig(reflection_lm=Words()), "tracking": oa.TrackingConfig(logger=Log())}

    def host(configured, function=HOST, **more):
        engine = EngineConfig(max_metric_calls=20, executor=configured)
        function(**arguments, config=GEPAConfig(engine=engine, **parts), **more)

    with block:
        host(config)
    assert config.last_run is not None
    assert block.last_run is None
    config.last_run = None
    host(config, oa.optimize_anything, executor=None)
    assert config.last_run is None
    with block:
        host(None)
    assert block.last_run is not None
    monkeypatch.setenv("FLASHEVOLVE_DISABLE", "1")
    host(config)
    assert config.last_run is None


def test_an_executor_assigned_to_a_configuration_counts():
    def assign(config):
        config.engine.executor = flash
        return config

    flash = quiet()
    run(..., configure=assign)
    assert flash.last_run is not None


def test_the_environment_turns_it_off(monkeypatch):
    monkeypatch.setenv("FLASHEVOLVE_DISABLE", "1")
    assert not under_flash(quiet())
    assert not under_flash(..., quiet())


@pytest.mark.parametrize(
    ("executor", "error", "words"),
    [
        ("flsh", UnknownNameError, r"^Unknown executor 'flsh': known are 'flash'\.$"),
        (Flash, UsageError, r"^executor=Flash is the class: write executor=Flash\(\)\.$"),
        (3, UnknownNameError, "^Unknown executor 3"),
    ],
)
def test_what_is_no_executor_is_refused_before_anything_is_evaluated(executor, error, words):
    evaluator = Evaluator()
    with pytest.raises(error, match=words):
        run(executor, evaluator=evaluator)
    with pytest.raises(error, match=words):
        EngineConfig(executor=executor)
    config = GEPAConfig()
    config.engine.executor = executor
    with pytest.raises(error, match=words):
        run(..., evaluator=evaluator, configure=lambda _: config)
    assert evaluator.calls == []


def test_options_that_flash_does_not_have_are_refused_by_name():
    with pytest.raises(UnknownNameError, match="^Unknown option of Flash 'slots': known are 'check_connection', "):
        GEPAConfig(engine={"executor": {"slots": 3}})
    with pytest.raises(UsageError, match="^max_concurrency=0 must be"):
        GEPAConfig(engine={"executor": {"max_concurrency": 0}})


# -- the host's names and types stay -----------------------------------------------------------------------------------


def test_the_signatures_are_the_host_s_with_executor_last():
    theirs, ours = inspect.signature(HOST), inspect.signature(oa.optimize_anything)
    assert list(ours.parameters) == [*theirs.parameters, "executor"]
    assert oa.optimize_anything.__doc__ == HOST.__doc__
    assert list(inspect.signature(EngineConfig).parameters)[-2:] == ["selection_strategy", "executor"]
    assert gepa.optimize_anything is oa


def test_installing_again_changes_nothing():
    seen = oa.optimize_anything, oa.EngineConfig.__init__, dataclasses.fields(oa.EngineConfig)
    install.install()
    assert (oa.optimize_anything, oa.EngineConfig.__init__, dataclasses.fields(oa.EngineConfig)) == seen


def test_the_configuration_is_the_dataclass_it_was_with_one_more_field():
    plain, flash = EngineConfig(seed=3), quiet()
    given = EngineConfig(seed=3, executor=flash)
    assert plain == EngineConfig(seed=3, executor=None) != given
    assert plain.max_workers == EngineConfig().max_workers >= 1
    assert [each.name for each in dataclasses.fields(plain)][-2:] == ["selection_strategy", "executor"]
    assert dataclasses.replace(given, seed=4) == EngineConfig(seed=4, executor=flash)
    assert repr(plain).endswith("selection_strategy=None, executor=None)")
    assert pickle.loads(pickle.dumps(plain)) == plain
    with pytest.raises(TypeError, match="unhashable"):
        hash(plain)
    with pytest.raises(TypeError, match="unexpected keyword argument 'executr'"):
        EngineConfig(executr="flash")


def test_a_configuration_goes_through_a_file_and_back():
    assert GEPAConfig.from_dict(json.loads(json.dumps(GEPAConfig().to_dict()))) == GEPAConfig()
    config = GEPAConfig(engine=EngineConfig(executor="flash"))
    assert GEPAConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_a_flash_in_a_configuration_survives_as_its_options():
    flash = quiet(max_concurrency=3, staleness="guarded", max_staleness=2)
    run(..., configure=configured(flash))
    written = json.dumps(GEPAConfig(engine=EngineConfig(executor=flash)).to_dict())
    read = GEPAConfig.from_dict(json.loads(written))
    made = run(..., configure=lambda config: dataclasses.replace(config, engine=again(config, read)))
    assert made.result is not None
    assert read.engine.executor["max_concurrency"] == 3


def again(config, read):
    return dataclasses.replace(config.engine, executor=read.engine.executor)


# -- joining the host --------------------------------------------------------------------------------------------------

IMPORTS = {
    "host first": "from gepa.optimize_anything import optimize_anything, EngineConfig; import flashevolve_plugins",
    "ours first": "import flashevolve_plugins; from gepa.optimize_anything import optimize_anything, EngineConfig",
    "module first": "import gepa.optimize_anything as oa; import flashevolve_plugins\n"
    "optimize_anything, EngineConfig = oa.optimize_anything, oa.EngineConfig",
    "attribute": "import flashevolve_plugins, gepa\n"
    "optimize_anything, EngineConfig = gepa.optimize_anything.optimize_anything, gepa.optimize_anything.EngineConfig",
}
SCRIPT = """
{imports}
import threading
from flashevolve_plugins import Flash
from gepa.optimize_anything import GEPAConfig, ReflectionConfig

names = set()

def evaluate(candidate):
    names.add(threading.current_thread().name.rpartition("-")[0])
    return min(1.0, len(candidate) / 40)

reflection = ReflectionConfig(reflection_lm=lambda prompt: "```" + "y" * 30 + "```")
flash = Flash(progress=True, reflection_concurrency=2)
{how}
print(sorted(names), result.best_candidate)
"""
CONFIG = "GEPAConfig(engine=EngineConfig(max_metric_calls=20{more}), reflection=reflection)"
HOW = {
    "block": f"with flash: result = optimize_anything('x', evaluator=evaluate, config={CONFIG.format(more='')})",
    "configuration": f"result = optimize_anything('x', evaluator=evaluate, "
    f"config={CONFIG.format(more=', executor=flash')})",
    "function": f"result = optimize_anything('x', evaluator=evaluate, executor=flash, config={CONFIG.format(more='')})",
}


@pytest.mark.parametrize(
    ("order", "how"), [(order, how) for order in IMPORTS for how in HOW if (order, how) != ("host first", "function")]
)
def test_the_order_of_imports_does_not_matter(order, how, tmp_path):
    script = SCRIPT.format(imports=IMPORTS[order], how=HOW[how])
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path, env=dict(os.environ)
    )
    assert found.stdout.strip() == f"['flashevolve-slot'] {'y' * 30}", found.stderr
    (progress,) = found.stderr.splitlines()
    assert progress.startswith("flash: ")
