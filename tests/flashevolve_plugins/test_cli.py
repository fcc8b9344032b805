"""The command ``flashevolve``: what we can explain is one sentence and exit code 2, all else is the script's own."""

import importlib.util
import os
import subprocess
import sys
from importlib.metadata import version

import pytest

from flashevolve_plugins import Flash
from flashevolve_plugins._activation import current
from flashevolve_plugins._cli import main

COMMAND = "import sys; from flashevolve_plugins._cli import main; sys.exit(main())"
TELL = """
import json, sys
import neighbour
from flashevolve_plugins._activation import current

flash = current()
print(json.dumps({
    "name": __name__,
    "file": __file__,
    "arguments": sys.argv,
    "first": sys.path[0],
    "neighbour": neighbour.VALUE,
    "main": sys.modules["__main__"].__file__,
    "flash": [flash.max_concurrency, flash.reflection_concurrency, flash.staleness, flash.max_staleness],
    "lockstep": flash.lockstep,
}))
"""


@pytest.fixture
def command(tmp_path):
    """Run ``flashevolve`` in a process of its own, in an empty folder."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()

    def run(*arguments, **environment):
        return subprocess.run(
            [sys.executable, "-c", COMMAND, *map(str, arguments)],
            cwd=folder,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )

    return run


@pytest.fixture
def script(tmp_path):
    """Write a script beside a module that it may import."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "neighbour.py").write_text("VALUE = 'found'\n")

    def write(source):
        path = folder / "script.py"
        path.write_text(source)
        return path

    return write


def test_a_script_runs_as_python_would_run_it_with_flash_as_the_default(command, script):
    path = script(TELL)
    options = [
        "--staleness",
        "guarded",
        "--max-staleness",
        "2",
        "--max-concurrency",
        "5",
        "--reflection-concurrency",
        "3",
    ]
    done = command("run", *options, path, "--own", "option", "--lockstep", "-x")
    assert (done.stderr, done.returncode) == ("", 0)
    told = importlib.import_module("json").loads(done.stdout)
    assert told == {
        "name": "__main__",
        "file": str(path),
        "arguments": [str(path), "--own", "option", "--lockstep", "-x"],
        "first": str(path.parent),
        "neighbour": "found",
        "main": str(path),
        "flash": [5, 3, "guarded", 2],
        "lockstep": False,
    }


@pytest.mark.parametrize("control", ["pull", "adaptive"])
def test_control_is_named(command, script, control):
    path = script("from flashevolve_plugins._activation import current; print(current().control)")
    done = command("run", "--control", control, path)
    assert (done.stdout, done.stderr, done.returncode) == (f"{control}\n", "", 0)


def test_fixed_control_has_no_name(command, script):
    done = command("run", "--control", "fixed", script("print('ran')"))
    assert (done.stdout, done.returncode) == ("", 2)
    assert done.stderr.startswith('flashevolve: control="fixed" does not say how many workers: write control=Fixed(')


def test_without_options_the_defaults_of_flash_hold(command, script):
    done = command("run", os.path.relpath(script(TELL), script(TELL).parent.parent / "elsewhere"))
    assert (done.stderr, done.returncode) == ("", 0)
    assert '"flash": [null, null, "merge", null], "lockstep": false' in done.stdout


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("", 0),
        ("raise SystemExit", 0),
        ("raise SystemExit(0)", 0),
        ("import sys; sys.exit(7)", 7),
        ("raise SystemExit('a message')", 1),
    ],
)
def test_the_exit_code_is_the_scripts(source, code, command, script):
    done = command("run", script(source))
    assert done.returncode == code
    assert done.stderr == ("a message\n" if "message" in source else "")


def test_a_scripts_own_error_keeps_its_traceback(command, script):
    path = script("def work():\n    raise KeyError('mine')\n\nwork()\n")
    done = command("run", path)
    assert done.returncode == 1
    assert "Traceback (most recent call last)" in done.stderr
    assert f'File "{path}", line 2, in work' in done.stderr
    assert done.stderr.endswith("KeyError: 'mine'\n")


def test_an_error_of_ours_in_the_script_is_one_sentence(command, script):
    done = command("run", script("from flashevolve_plugins import Flash\nFlash(max_concurrency=0)\n"))
    assert (done.returncode, done.stdout) == (2, "")
    sentence = "flashevolve: max_concurrency=0 must be a whole number of at least 1, or None for the default.\n"
    assert done.stderr == sentence


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "nowhere.py"], "There is no script 'nowhere.py': give the path of a Python file."),
        (["run", "."], "There is no script '.': give the path of a Python file."),
        (["run", "--staleness", "gaurded", __file__], "Unknown staleness policy 'gaurded': known are "),
        (["run", "--max-staleness", "-1", __file__], "max_staleness=-1 must be a whole number of at least 0, or None"),
        (["run", "--max-concurrency", "0", __file__], "max_concurrency=0 must be a whole number of"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, sentence, capsys):
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"flashevolve: {sentence}")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["fly"], "'fly'"),
        (["run"], "script"),
        (["run", "--max-concurrency", "many", "script.py"], "'many'"),
        (["run", "--speed", "9", "script.py"], "--speed"),
        (["plugins", "all"], "all"),
    ],
)
def test_a_command_line_that_cannot_be_read_says_what_is_wrong(arguments, word, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    said = capsys.readouterr()
    assert caught.value.code == 2
    assert word in said.err.splitlines()[-1]
    assert said.err.startswith("usage: flashevolve")
    assert said.out == ""


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    for name in ("run", "plugins", "demo", "bench", "simulate-server"):
        assert sum(line.startswith(f"  {name} ") for line in lines) == 1


def test_plugins_lists_plugins_policies_and_hosts(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["plugins"]) == 0
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    by_name = {row[0]: row for row in rows if row}
    assert by_name["policies"][1] == "active"
    assert by_name["policies"][2].startswith("flashevolve-plugins ")
    assert by_name["full"] == ["full", "policies", 'Flash(staleness="full")']
    assert by_name["guarded"][1:] == ["policies", 'Flash(staleness="guarded")']


def test_plugins_says_so_when_the_environment_turns_flash_off(capsys, monkeypatch):
    sentence = "FLASHEVOLVE_DISABLE is set: every run uses its host's own loop."
    assert main(["plugins"]) == 0
    assert sentence not in capsys.readouterr().out
    monkeypatch.setenv("FLASHEVOLVE_DISABLE", "1")
    assert main(["plugins"]) == 0
    assert sentence in capsys.readouterr().out


def test_the_version_is_the_installed_one(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"flashevolve {version('flashevolve-plugins')}\n"


@pytest.mark.parametrize("host", ["gepa", "dspy"])
def test_plugins_says_which_extra_a_missing_host_needs(host, capsys, monkeypatch):
    from importlib import metadata

    there = {"gepa": ["gepa"], "dspy": ["dspy"], "ace": ["ace-playbook"], "metaharness": ["superagentic-metaharness"]}
    del there[host]
    monkeypatch.setattr(metadata, "packages_distributions", lambda: there)
    monkeypatch.setattr(metadata, "version", lambda name: "9.9")
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["plugins"]) == 0
    out = capsys.readouterr().out
    assert f"missing: pip install 'flashevolve-plugins[{host}]'" in out
    assert "installed: 9.9" in out
    assert "installed: ace-playbook 9.9" in out


@pytest.mark.parametrize(
    ("command", "missing", "extra"),
    [
        ("demo", "dspy", "demo"),
        ("demo", "starlette", "demo"),
        ("simulate-server", "starlette", "server"),
        ("simulate-server", "uvicorn", "server"),
    ],
)
def test_a_missing_extra_is_one_sentence_with_what_to_install(command, missing, extra, capsys, monkeypatch):
    find = importlib.util.find_spec
    here = importlib.util.find_spec("pluggy")
    known = {"dspy", "starlette", "uvicorn"}
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == missing else here if name in known else find(name, *rest),
    )
    assert main([command]) == 2
    sentence = f"{missing} is not installed: pip install 'flashevolve-plugins[{extra}]'."
    assert capsys.readouterr().err == f"flashevolve: {sentence}\n"


def test_run_leaves_the_process_as_it_was(script, capsys):
    path, arguments, default = list(sys.path), list(sys.argv), current()
    mains = sys.modules["__main__"]
    for source in ("", "raise ZeroDivisionError", "raise SystemExit(3)", "import sys\nsys.path.append('x')"):
        try:
            main(["run", str(script(source))])
        except (ZeroDivisionError, SystemExit):
            assert source.startswith("raise")
        assert (sys.path, sys.argv, current()) == (path, arguments, default)
        assert sys.modules["__main__"] is mains


def test_the_environment_turns_run_off(command, script):
    source = "from flashevolve_plugins._activation import current\nprint(current())"
    assert command("run", script(source), FLASHEVOLVE_DISABLE="1").stdout == "None\n"
    assert command("run", script(source), FLASHEVOLVE_DISABLE="0").stdout.startswith("Flash(")


def test_every_thread_of_the_script_uses_flash(command, script):
    source = """
import threading
from flashevolve_plugins._activation import current
threading.Thread(target=lambda: print(type(current()).__name__)).start()
"""
    assert command("run", script(source)).stdout == f"{Flash.__name__}\n"


def test_without_a_command_it_prints_its_help(capsys):
    assert main([]) == 0
    assert "simulate-server" in capsys.readouterr().out
