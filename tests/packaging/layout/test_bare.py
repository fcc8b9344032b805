"""A bare install: no host and no server."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest


def flashevolve(*arguments):
    command = Path(sys.executable).with_name("flashevolve")
    return subprocess.run([command, *arguments], capture_output=True, text=True, check=False, timeout=500)


@pytest.mark.parametrize("name", ["dspy", "gepa", "litellm", "starlette", "uvicorn"])
def test_this_environment_is_bare(name):
    assert find_spec(name) is None


@pytest.mark.parametrize(("command", "extra"), [("demo", "demo"), ("bench", "bench"), ("simulate-server", "server")])
def test_a_command_whose_packages_are_missing_names_the_extra(command, extra):
    done = flashevolve(command)
    assert done.returncode == 2
    assert f"flashevolve-plugins[{extra}]" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_plugins_are_listed_without_a_host():
    done = flashevolve("plugins")
    assert done.returncode == 0, done.stderr
    assert "policies" in done.stdout
    assert "gepa" in done.stdout
