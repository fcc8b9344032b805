"""Runs of a row's cases with everything recorded that a user can see, files and services included."""

import contextlib
import io
import re
import shutil

from gepa.core.state import GEPAState
from gepa_checks import assert_same
from gepa_records import contents
from gepa_task import TWO
from gepa_values import FOLDER, host_files

FRAMES = re.compile(r"Traceback \(most recent call last\):\n(?: .*\n)+")
DEFAULTS = {"seed_candidate": TWO, "max_metric_calls": 90}


def made(options):
    """The options with every zero-argument callable called."""
    return {name: each() if callable(each) else each for name, each in options.items()}


class Runner:
    """Runs cases.

    Args:
        kit: the recorded runs of ``gepa.optimize``.
        services: the recorders of what is outside this process.
    """

    def __init__(self, kit, services):
        self._kit, self._services = kit, services

    def run(self, executor, case, seed, *, before_executor=None, on_engine=None):
        """One run of a case; what it raises is its ``error``.

        Args:
            executor: as ``gepa.optimize`` has it.
            case: the options; ``before`` among them are those of a run that goes before in the same folder.
            seed: the host's.
            before_executor: the executor of that run; the same one by default.
            on_engine: called with the engine before it runs.
        """
        options = {**DEFAULTS, "seed": seed, **case}
        before = options.pop("before", None)
        shutil.rmtree(FOLDER, ignore_errors=True)
        if "run_dir" in options:
            FOLDER.mkdir()
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            if before is not None:
                self._kit.run(before_executor or executor, catch=True, **made({**options, **before}))
                self._services.take()
            saved = FOLDER / "gepa_state.bin"
            first = GEPAState.load(str(FOLDER)).i + 1 if saved.exists() else 0  # iteration
            run = self._kit.run(executor, catch=True, on_engine=on_engine, **made(options))
        run.printed, run.services, run.files = readable(printed.getvalue()), self._services.take(), files()
        run.first = first
        return run


def readable(text):
    """A text without the way to an error, which is not the host's alone."""
    return FRAMES.sub("", text)


def files():
    """What is in the run directory."""
    found = {}
    for each in host_files():
        if each.suffix == ".bin":
            found[str(each.relative_to(FOLDER))] = contents(GEPAState.load(str(FOLDER)))
        elif each.is_file():
            found[str(each.relative_to(FOLDER))] = readable(each.read_text(encoding="utf-8"))
    return found


def assert_equal(host, flash):
    """Nothing differs between two runs. Raises AssertionError that names the first difference."""
    assert_same(host, flash)
    for name in ("printed", "services", "files"):
        assert getattr(host, name) == getattr(flash, name), f"{name} differ"


def differ(one, other):
    """Whether a user sees a difference between two runs."""
    try:
        assert_equal(one, other)
    except AssertionError:
        return True
    return False
