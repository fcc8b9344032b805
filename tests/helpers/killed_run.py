"""A run of gepa in a process of its own, which kills itself at the N-th call and writes down every finished one.

python killed_run.py RUN_DIR LEDGER BUDGET KILL_AT OPTIONS: KILL_AT counts calls of this process, 0 lets it end; OPTIONS
is JSON for gepa.optimize. Each finished call is a line of LEDGER before anybody else sees its result.
"""

import json
import os
import signal
import sys
import threading
import time

import gepa
from gepa_task import TWO, Reflection, Words

from flashevolve_plugins import Flash

SLOTS = 6
CALL = 0.005  # seconds that a call takes


class Counted:
    """Counts begun calls and kills the process at one of them; writes finished ones down."""

    def __init__(self, ledger, kill_at):
        self.ledger = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.kill_at, self.begun, self.lock = kill_at, 0, threading.Lock()

    def begin(self):
        with self.lock:
            self.begun += 1
            if self.begun == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    def finish(self, kind, *what):
        os.write(self.ledger, (json.dumps([kind, *what]) + "\n").encode())


def main(run_dir, ledger, budget, kill_at, options):
    counted = Counted(ledger, int(kill_at))

    class Adapter(Words):
        def evaluate(self, batch, candidate, capture_traces=False):
            for _ in batch:
                counted.begin()
            time.sleep(CALL)
            evaluation = super().evaluate(batch, candidate, capture_traces)
            for example in batch:
                counted.finish("example", example, candidate, capture_traces)
            return evaluation

    class Model(Reflection):
        def __call__(self, prompt):
            counted.begin()
            answer = super().__call__(prompt)
            counted.finish("reflection", prompt)
            return answer

    options = json.loads(options)
    executor = None if options.pop("host", False) else Flash(max_concurrency=SLOTS, progress=False)
    result = gepa.optimize(
        seed_candidate=TWO, trainset=list(range(40)), valset=list(range(40, 55)), adapter=Adapter(),
        reflection_lm=Model(), max_metric_calls=int(budget), run_dir=run_dir, executor=executor,
        display_progress_bar=False, **options,
    )  # fmt: skip
    told = {"calls": result.total_metric_calls, "candidates": result.candidates, "scores": result.val_aggregate_scores}
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
