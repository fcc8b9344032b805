"""A program that runs dspy.GEPA under flash and says how far it is; for tests that interrupt it.

Its only argument is a JSON object: ``flash``, options; ``log_dir``; ``hang_from``, from which metric call on every one
blocks for ever, and ``metric``: ``"plain"``, or ``"async"`` to block the event loop.
"""

import json
import os
import sys
import threading
import time

from dspy_task import Task

from flashevolve_plugins import Flash

ASKED = json.loads(sys.argv[1])
lock, begun = threading.Lock(), []


def say(*words):
    """One line, whole."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def main():
    """One run, and what came of it."""
    task = Task()
    task.dspy.configure(lm=task.task_lm)

    def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
        with lock:
            begun.append(gold)
            hangs = len(begun) >= ASKED["hang_from"]
        if hangs:
            say("hanging")
            time.sleep(1e6)
        score = task.metric(gold, pred, trace, pred_name, pred_trace)
        if pred_name is None:
            say("done")
        return score

    async def awaited(gold, pred, trace=None, pred_name=None, pred_trace=None):
        return metric(gold, pred, trace, pred_name, pred_trace)

    flash = Flash(**{"max_concurrency": 4, **ASKED["flash"]})
    program = task.compile(
        flash,
        metric=awaited if ASKED["metric"] == "async" else metric,
        log_dir=ASKED["log_dir"],
        max_metric_calls=100_000,
    )
    results = program.detailed_results
    best = max(results.val_aggregate_scores)
    say("end", json.dumps({"how": "returned", "calls": results.total_metric_calls, "score": best}))


if __name__ == "__main__":
    main()
    say("over")
