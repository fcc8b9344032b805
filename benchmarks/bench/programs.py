"""Starts runs in processes of their own, where needed in an environment of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from flashevolve_plugins._errors import FlashEvolveError

if TYPE_CHECKING:
    from pathlib import Path

    from flashevolve_plugins.benchmarks.bench.rivals import Rival

_PROGRAM = """
import json, site, sys
for folder in json.loads(sys.argv[1]):
    site.addsitedir(folder)  # behind what the environment has of its own
from flashevolve_plugins.benchmarks.bench.one import main
main(sys.argv[2])
"""
_LINES = 3  # of standard error, to say why a run failed


class RunFailedError(FlashEvolveError):
    """A run, or the making of its environment, failed; the text says why."""


def start(python: str, job: str) -> None:
    """Make one run and wait for it.

    Args:
        python: the interpreter.
        job: what ``one.main`` is told.

    Raises:
        RunFailedError: it failed.
    """
    path = json.dumps([os.path.abspath(entry) for entry in sys.path])  # noqa: PTH100 - of strings
    _call([python, "-c", _PROGRAM, path, job])


def python_for(rival: Rival, folder: Path) -> str:
    """The interpreter that runs a rival; makes its environment the first time.

    Args:
        rival: who.
        folder: of the results; environments lie below it.

    Raises:
        RunFailedError: the environment cannot be made.
    """
    if not rival.requirements:
        return sys.executable
    home = folder / "environments" / rival.name
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    made_for = home / "requirements.txt"
    wanted = "\n".join(rival.requirements) + "\n"
    if not made_for.is_file() or made_for.read_text("utf-8") != wanted:
        _call([sys.executable, "-m", "venv", "--clear", str(home)])
        _call([str(python), "-m", "pip", "install", "--quiet", *rival.requirements])
        made_for.write_text(wanted, "utf-8")
    return str(python)


def _call(command: list[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603 - our own programs
    if done.returncode:
        last = [line for line in done.stderr.splitlines() if line.strip()][-_LINES:]
        raise RunFailedError(" | ".join(last) or f"it ended with exit code {done.returncode}")
