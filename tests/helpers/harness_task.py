"""A harness for superagentic-metaharness: a file with a number, which proposers change and the evaluator scores."""

import json
import re
import subprocess
import threading
from collections import Counter
from pathlib import Path

import metaharness
from metaharness import EvaluationResult, ValidationResult
from metaharness.models import ProposalExecution, ProposalResult

FILE = "number.txt"
TIMES = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(\+00:00)?")
TEMPORARY = re.compile(r"/[^\s\"]*?/(alpha|beta)/")


def number(workspace):
    return int((Path(workspace) / FILE).read_text())


class Proposer:
    """Adds to the number what ``steps`` says of the candidate's own number, and starts what ``command`` says.

    Args:
        steps: from the candidate's number, 1 for the first, to what is added; 0 changes nothing.
        reached: called with the request as the proposer begins.
        command: a shell command that runs in the workspace.
        timeout: of that command, in seconds.
        started: called with the workspace once the command runs; the timeout begins when it returns.
        applied: from the candidate's number to whether the proposal is applied.
        files: from the candidate's number to more files that are written.
        seconds: from the candidate's number to virtual seconds.
    """

    name = "steps"
    flashevolve_evaluate = "example"

    def __init__(
        self,
        steps=lambda n: n % 3 - 1,
        reached=None,
        command=None,
        timeout=60,
        applied=lambda n: True,
        files=lambda n: {},
        seconds=lambda n: 3.0,
        started=lambda workspace: None,
    ):
        self.steps, self.reached, self.command, self.timeout = steps, reached, command, timeout
        self.applied, self.files, self.seconds, self.started = applied, files, seconds, started
        self.sessions = Counter()
        self._lock = threading.Lock()

    def flashevolve_seconds(self, request):
        return self.seconds(int(request.candidate_id[1:]))

    def prepare(self, request):
        return request

    def invoke(self, request):
        n = int(request.candidate_id[1:])
        with self._lock:
            self.sessions[n] += 1
        if self.reached is not None:
            self.reached(request)
        folder = request.candidate_dir / "proposal"
        folder.mkdir(parents=True, exist_ok=True)
        printed = folder / "stdout.jsonl"
        timed_out = False
        if self.command:
            with subprocess.Popen(  # noqa: S602 - the test's own command
                self.command,
                shell=True,
                cwd=request.workspace_dir,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            ) as process:
                self.started(request.workspace_dir)
                try:
                    printed.write_text(process.communicate(timeout=self.timeout)[0])
                except subprocess.TimeoutExpired:
                    timed_out = True
                    process.kill()
        if not printed.exists():
            printed.write_text("")
        if self.steps(n):
            (request.workspace_dir / FILE).write_text(str(number(request.workspace_dir) + self.steps(n)))
        for name, text in self.files(n).items():
            target = request.workspace_dir / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        return ProposalExecution(
            ["steps"], request.workspace_dir, printed, printed, metadata={"n": n, "timed_out": timed_out}
        )

    def collect(self, execution):
        n, timed_out = execution.metadata["n"], execution.metadata["timed_out"]
        return ProposalResult(
            applied=self.applied(n) and not timed_out,
            summary=f"step {n}",
            changed_files=[FILE] if self.steps(n) else [],
            raw_stdout_path=execution.stdout_path,
            metadata={"timed_out": timed_out},
        )


class Evaluator:
    """The number is the score."""

    flashevolve_evaluate = "example"

    def __init__(self, reached=None, seconds=1.0):
        self.reached, self.seconds = reached, seconds
        self.evaluated = []

    def flashevolve_seconds(self, workspace):
        return self.seconds

    def evaluate(self, workspace):
        self.evaluated.append(workspace.parent.name)
        if self.reached is not None:
            self.reached(workspace)
        value = float(number(workspace))
        results = {"positive": value > 0, "small": value < 2}
        return EvaluationResult(value, {"context_len": abs(value)}, metadata={"task_results": results})


class HeldOut(Evaluator):
    """Has a held-out test as well."""

    def evaluate_test(self, workspace):
        self.evaluated.append(f"test {workspace.parent.name}")
        return EvaluationResult(float(number(workspace)) / 2, {"half": 1.0})


class Validator:
    def validate(self, workspace):
        value = number(workspace)
        return ValidationResult(value > -2, f"the number is {value}")


def run(folder, executor, *, budget=6, proposer=None, evaluator=None, **options):
    """One run in a folder of its own: its result, and its directory."""
    baseline = folder / "baseline"
    baseline.mkdir(parents=True, exist_ok=True)
    (baseline / FILE).write_text("0")
    result = metaharness.optimize_harness(
        baseline,
        proposer or Proposer(),
        evaluator or Evaluator(),
        folder / "run",
        budget,
        "a large number",
        executor=executor,
        **options,
    )
    return result, folder / "run"


def told(folder):
    """Every file of a run directory but ours, without moments and without the folder's own path."""
    return {
        str(path.relative_to(folder)): TEMPORARY.sub("/", TIMES.sub("then", path.read_text(errors="replace")))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith("flashevolve")
    }


def manifests(folder):
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("candidates/*/manifest.json"))]
    return {each["candidate_id"]: each for each in found}
