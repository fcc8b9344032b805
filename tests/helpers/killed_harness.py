"""A run of superagentic-metaharness in a process of its own, which kills itself at the N-th call.

python killed_harness.py FOLDER LEDGER BUDGET SLOTS KILL_AT: KILL_AT counts sessions and jobs of this process, 0 lets it
end. Each finished call is a line of LEDGER before anybody else sees its result. With KEPT in the environment the
process waits to kill itself until all is kept that was finished for candidates under way.
"""

import json
import os
import pickle
import signal
import sqlite3
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from harness_task import Evaluator, Proposer, number, run

from flashevolve_plugins import Flash

JOBS = 3
BASELINE = "c0000"  # is evaluated again until it has ended
PATIENCE = 60  # seconds


class Counted:
    def __init__(self, folder, ledger, kill_at):
        self.folder, self.finished = Path(folder) / "run", []
        self.ledger = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.kill_at, self.begun, self.lock = kill_at, 0, threading.Lock()

    def begin(self):
        with self.lock:
            self.begun += 1
            if self.begun == self.kill_at:
                if "KEPT" in os.environ:
                    self.wait()
                os.kill(os.getpid(), signal.SIGKILL)

    def wait(self):
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and not self.kept():
            time.sleep(0.01)

    def kept(self):
        connection = sqlite3.connect(f"file:{self.folder / 'flashevolve.sqlite'}?mode=ro", uri=True)
        rows = connection.execute("SELECT number, recipe FROM items").fetchall()
        results = Counter(item for (item,) in connection.execute("SELECT item FROM results"))
        connection.close()
        recipes = {recipe.candidate: (number, recipe) for number, recipe in ((n, pickle.loads(r)) for n, r in rows)}
        # A manifest may be half written; what has ended for the run as well has left its items.
        ended = {path.parent.name for path in self.folder.glob("candidates/*/manifest.json")} - recipes.keys()
        left = [(kind, name) for kind, name in self.finished if name not in {BASELINE, *ended}]
        jobs = Counter(name for kind, name in left if kind == "job")
        made = {name for name, (_, recipe) in recipes.items() if recipe.result is not None}
        if not {name for _, name in left} <= made:
            return False
        return all(results[recipes[name][0]] > count for name, count in jobs.items())  # the jobs, and a validation

    def finish(self, kind, name, *what):
        with self.lock:
            os.write(self.ledger, (json.dumps([kind, name, *what]) + "\n").encode())
            self.finished.append((kind, name))


def main(folder, ledger, budget, slots, kill_at):
    counted = Counted(folder, ledger, int(kill_at))

    class Sessions(Proposer):
        def invoke(self, request):
            counted.begin()
            execution = super().invoke(request)
            counted.finish("session", request.candidate_id)
            return execution

    class Jobs(Evaluator):
        def flashevolve_jobs(self, workspace):
            return [lambda job=job: self.job(workspace, job) for job in range(JOBS)]

        def job(self, workspace, job):
            counted.begin()
            value = number(workspace)
            counted.finish("job", workspace.parent.name, job)
            return value

        def flashevolve_combine(self, workspace, results):
            from metaharness import EvaluationResult

            return EvaluationResult(float(sum(results)) / len(results))

    flash = Flash(max_concurrency=int(slots), reflection_concurrency=int(slots), progress=False)
    proposer, evaluator = Sessions(steps=lambda n: n % 3), Jobs()
    result, _ = run(Path(folder), flash, budget=int(budget), proposer=proposer, evaluator=evaluator)
    sys.stdout.write(json.dumps({"candidates": result.candidate_ids, "best": result.best_objective}))


if __name__ == "__main__":
    main(*sys.argv[1:])
