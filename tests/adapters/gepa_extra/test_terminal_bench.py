"""gepa's ``TerminusAdapter``: its own code, and a program named ``tb`` in place of terminal bench's."""

import importlib
import os
import sys
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pydantic
import pytest
from gepa_adapters import TRAINSET, VALSET, answer, run_all

from flashevolve_plugins import Flash, UsageError

FAKE = Path(__file__).with_name("fake_tb.py")


class CommandBatchResponse(pydantic.BaseModel):
    commands: list[str]


@pytest.fixture
def module(monkeypatch, tmp_path):
    """The adapter's module, in a folder of its own that has what it expects."""
    for name in ("terminal_bench", "terminal_bench.agents", "terminal_bench.agents.terminus_1"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["terminal_bench.agents.terminus_1"].CommandBatchResponse = CommandBatchResponse
    programs = tmp_path / "bin"
    programs.mkdir()
    tb = programs / "tb"
    tb.write_text(f'#!/bin/sh\nexec {sys.executable} -I {FAKE} "$@"\n', "utf-8")
    tb.chmod(0o700)
    (tmp_path / "prompt-templates").mkdir()
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)
    name = "gepa.adapters.terminal_bench_adapter.terminal_bench_adapter"
    monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)


def rows(module, numbers):
    ids = ["-".join(["case", *answer(each).split()]) for each in numbers]
    return [module.TerminalBenchTask(task_id=each, model_name="some/model") for each in ids]


SEED = {"instruction_prompt": "start"}


def test_it_works_one_batch_at_a_time(kit, module, monkeypatch, caplog):
    def make(_):
        seconds = map(str, count())  # it names its runs after the second, which is another one in every run
        clock = SimpleNamespace(now=lambda: SimpleNamespace(strftime=lambda _: next(seconds)))
        monkeypatch.setattr(module, "datetime", clock)
        return module.TerminusAdapter(n_concurrent=2)

    run = run_all(
        kit,
        make,
        meet=(),
        seed_candidate=SEED,
        rows=lambda numbers: rows(module, numbers),
        calls=60,
    )
    assert run.last.slots["task"] == 1
    assert caplog.messages == []
    assert max(value for scores in run.result.val_subscores for value in scores.values()) > 0
    assert not Path("running").exists()


@pytest.mark.parametrize("way", ["example", "batch"])
def test_it_is_never_asked_for_two_batches_at_once(kit, module, way):
    with pytest.raises(UsageError, match="does not go with TerminusAdapter, which evaluates one batch at a time"):
        kit.run(
            Flash(progress=False, evaluate=way), adapter=module.TerminusAdapter(), trainset=rows(module, TRAINSET),
            valset=rows(module, VALSET), seed_candidate=SEED,
        )  # fmt: skip
    assert not Path("runs").exists()
