"""The command line of the simulated server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import pytest

from flashevolve_plugins.benchmarks import Landscape
from flashevolve_plugins.benchmarks.playbook_landscape import PlaybookLandscape
from flashevolve_plugins.benchmarks.server import LatencyModel, OutputLengths, ServerSettings
from flashevolve_plugins.benchmarks.server import command as command_module

PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1));"
    "from flashevolve_plugins.benchmarks.server.command import main; raise SystemExit(main(sys.argv[1:]))"
)


def start(*arguments: str) -> subprocess.Popen[str]:
    """Start the command in a process of its own."""
    line = [sys.executable, "-c", PROGRAM, json.dumps(sys.path), *arguments]
    return subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_prints_its_address_and_ends_cleanly_on_a_signal(number: signal.Signals) -> None:
    with start("--time-scale", "0") as child:
        assert child.stdout
        assert child.stdout.readline().startswith("http://127.0.0.1:")
        child.send_signal(number)
        out, err = child.communicate(timeout=60)
    assert (child.returncode, out, err) == (0, "", "")


def test_it_ends_with_its_standard_input_when_asked_to() -> None:
    with start("--stop-with-stdin") as child:
        assert child.stdout
        assert child.stdout.readline().startswith("http://")
        assert child.communicate(timeout=60) == ("", "")
    assert child.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--host", "192.0.2.1"], "must be a loopback address"),
        (["--host", "example.org"], "must be a loopback address"),
        (["--port", "70000"], "--port must lie within 0 and 65535"),
        (["--port", "many"], "invalid int value"),
        (["--time-scale", "-1"], "time_scale must be 0 or more"),
        (["--max-num-seqs", "0"], "max_num_seqs must be 1 or more"),
        (["--mean-tokens", "9000"], "the mean must lie within 1 and the maximum"),
        (["--landscape", "[1"], "--landscape must be a JSON object"),
        (["--landscape", '{"hills": 3}'], "--landscape knows no hills"),
        (["--landscape", '{"rules": "many"}'], "--landscape has a value of the wrong type"),
        (["--landscape", '{"missed": 2}'], "missed must lie within 0 and 1"),
        (["--playbook", "[1"], "--playbook must be a JSON object"),
        (["--playbook", '{"hills": 3}'], "--playbook knows no hills"),
        (["--playbook", '{"lost": 2}'], "lost must lie within 0 and 1"),
        (["--max-requests", "0"], "max_requests must be 1 or more"),
        (["--retry-after", "-1"], "retry_after must be 0 or more"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_a_bad_argument_gets_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_module.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.startswith("simulate-server: ")
    assert err.count("\n") == 1


def test_every_setting_survives_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from flashevolve_plugins.benchmarks.server import serve as serve_module

    settings = ServerSettings(
        Landscape(seed=7, rules=9, needed=(2, 3), length_limit=5, conflicts=2, missed=0.25, lost=0.5),
        LatencyModel(0.5, 7.0, 3, 0.125, first_token=0.75, spread=0.5, time_scale=0.25),
        OutputLengths(20.0, 0.75, 90),
        11,
        ("a", "b"),
        5,
        2.5,
        PlaybookLandscape(seed=4, rules=9, needed=(2, 2), lost=0.5),
    )
    seen: list[Any] = []
    monkeypatch.setattr(serve_module, "serve", lambda settings, *_, **__: seen.append(settings))
    assert command_module.main(list(command_module.arguments(settings, 0))) == 0
    assert seen == [settings]
