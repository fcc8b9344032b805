"""A meta-harness checkout: our double of it, or a real one, with a fake ``claude`` and a fake ``uv`` on the path.

``FAKE_CLAUDE`` is JSON: iteration, or ``all``, to knobs (hangs, fails, no_pending, malformed, bad_import, no_file,
name, score, helper, forks, waits_for, waits_for_best, prints, edits, base, more, idea). ``FAKE_UV`` is JSON: part of an
agent's name to knobs (forks; fails or killed, with the dataset or task).
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TIME = re.compile(r'"(propose|bench|wall)": [\d.e-]+')
MOMENT = re.compile(r"\d{8}_\d{6}_|\d{4}-\d\d-\d\dT[\d:.+]+")
SECONDS = re.compile(r'"duration_seconds": [\d.]+')
LAYOUTS = ("text_classification", "terminal_bench_2")


class Checkout:
    """One example in a folder of its own.

    Args:
        folder: for the example.
        source: what is copied.
    """

    def __init__(self, folder, source):
        self.root = folder
        self.example = folder / source.name
        shutil.copytree(source, self.example, ignore=shutil.ignore_patterns("__pycache__"))
        self.text = source.name == "text_classification"
        self.logs = self.example / "logs" / "r"
        self.fakes = folder / "fakes"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("FAKE_", "FLASHEVOLVE"))},
            # the fakes are programs of this Python, without any detour
            "PATH": os.pathsep.join([str(HERE / "fakes"), str(Path(sys.executable).parent), os.environ["PATH"]]),
            "FAKE_EXAMPLE": str(self.example),
            "FAKE_LOG": str(self.fakes),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def command(self, *options, iterations=4):
        own = ["--iterations", str(iterations), "--run-name", "r", *([] if self.text else ["--trials", "2"])]
        start = [sys.executable, "-c", "import sys; from flashevolve_plugins._cli import main; sys.exit(main())"]
        return [*start, "meta-harness", str(self.example), *own, *options]

    def setup(self, claude, uv, **variables):
        self.fakes.mkdir(exist_ok=True)
        knobs = {"FAKE_CLAUDE": json.dumps(claude or {}), "FAKE_UV": json.dumps(uv or {})}
        return {**self.environment, **knobs, **variables}

    def flash(self, *options, claude=None, uv=None, code=0, **more):
        environment = self.setup(claude, uv, **more.pop("variables", {}))
        done = subprocess.run(
            self.command(*options, **more), env=environment, cwd=self.root, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stderr

    def own_loop(self, *options, claude=None, uv=None, iterations=4):
        environment = self.setup(claude, uv)
        own = ["--iterations", str(iterations), "--run-name", "r", *([] if self.text else ["--trials", "2"])]
        program = [sys.executable, str(self.example / "meta_harness.py"), *own, *options]
        done = subprocess.run(program, env=environment, cwd=self.root, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def summary(self):
        path = self.logs / "evolution_summary.jsonl"
        whole = path.read_text().rpartition("\n")[0] if path.exists() else ""  # a line may be under way
        return [json.loads(line) for line in whole.splitlines()]

    def frontier(self):
        return json.loads((self.logs / "frontier_val.json").read_text())

    def best(self):
        frontier = self.frontier()
        return frontier["_pareto"][0]["system"] if self.text else frontier["_best"]["agent"]

    def names(self):
        return {row["system" if self.text else "agent"] for row in self.summary()}

    def session(self, iteration, again=""):
        return json.loads((self.fakes / f"claude-{iteration}{again}.json").read_text())

    def items(self):
        lines = (self.logs / "flashevolve_items.jsonl").read_text().splitlines()
        return {each["item"]: each for each in map(json.loads, lines) if "item" in each}

    def evaluated(self):
        return [json.loads(line) for line in (self.fakes / "uv.jsonl").read_text().splitlines()]


@pytest.fixture(params=LAYOUTS)
def checkout(request, tmp_path):
    """Both layouts."""
    return Checkout(tmp_path, HERE / "double" / request.param)


@pytest.fixture
def text(tmp_path):
    return Checkout(tmp_path, HERE / "double" / "text_classification")


@pytest.fixture
def make_checkout():
    return Checkout


@pytest.fixture
def told():
    """From a checkout to every file that a run wrote but ours, without moments and places."""
    return files_told


def files_told(checkout):
    """Every file that a run wrote but ours, without moments and places."""
    found = {}
    for folder in ("logs", "jobs", "results", "agents"):
        for path in (checkout.example / folder).rglob("*"):
            ours = path.name.startswith("flashevolve") or path.suffix == ".pyc"
            if path.is_file() and not ours and ".launcher" not in path.parts:  # numbered in a random order
                text = path.read_text().replace(str(checkout.root), "ROOT")
                text = SECONDS.sub("", TIME.sub(r'"\1": 0', MOMENT.sub("", text)))
                found[MOMENT.sub("", str(path.relative_to(checkout.example)))] = text
    return found
