"""A program that runs gepa under flash, for tests that interrupt it. It says on standard output how far it is.

Its only argument is a JSON object: ``flash`` and ``optimize``, options of both; ``place``, where the run takes place;
``hang`` and ``hang_from``, how and from which metric call on every metric blocks for ever; ``runs``, how many runs;
``hold_from``, from which metric call on those of the first run wait for a line on standard input; ``clock_from``, a
word and a number: time stands still for the runs until each has said that word so often.
"""

import asyncio
import json
import os
import sys
import threading
import time

import gepa
from gepa_task import ONE, Reflection, Words

from flashevolve_plugins import Flash, RunStopped
from flashevolve_plugins._local import LocalDriver

ASKED = json.loads(sys.argv[1])
GO = threading.Event()


def say(*words):
    """One line, whole, whoever else speaks."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class Clock:
    """The runs' clock, which stands still until each run has come so far."""

    def __init__(self, word, times):
        self.word, self.left, self.lock = word, [times] * ASKED.get("runs", 1), threading.Lock()
        self.begun, self.went_on = time.monotonic(), None

    def tell(self, word, name):
        """A run has said something."""
        with self.lock:
            self.left[name] -= word == self.word
            if self.went_on is None and max(self.left) <= 0:
                self.went_on = time.monotonic()

    def now(self):
        """In place of a driver's clock."""
        return self.begun if self.went_on is None else self.begun + time.monotonic() - self.went_on


clock = None
if "clock_from" in ASKED:
    clock = Clock(*ASKED["clock_from"])
    LocalDriver.now = lambda _: clock.now()


class Telling(Words):
    """Says when a metric call has ended, and blocks where it is told to."""

    def __init__(self, name):
        super().__init__()
        self.name, self.begun, self.never = name, 0, threading.Lock()
        self.never.acquire()

    def evaluate(self, batch, candidate, capture_traces=False):
        """As any adapter's."""
        with self.lock:
            self.begun += 1
            begun = self.begun
        if ASKED.get("nested") and self.name == 0 and begun == ASKED["nested"]:
            say(
                "nested",
                optimize("nested", executor=Flash(progress=False), max_metric_calls=100_000).total_metric_calls,
            )
        if begun >= ASKED.get("hang_from", sys.maxsize):
            self.tell("hanging", begun)
            if ASKED["hang"] == "sleep":
                time.sleep(1e6)
            self.never.acquire()
        if self.name == 0 and begun >= ASKED.get("hold_from", sys.maxsize):
            say("holding")
            GO.wait()
        time.sleep(0.004)  # the work
        evaluated = super().evaluate(batch, candidate, capture_traces)
        self.tell("done", self.name)
        return evaluated

    def tell(self, word, *more):
        """Say it, and let the clock know."""
        say(word, *more)
        if clock is not None:
            clock.tell(word, self.name)


class Silent:
    """A logger for the host, whose lines would run into ours."""

    def log(self, message):
        """Say nothing."""


class Accepted:
    """Says when a candidate was accepted."""

    def __init__(self, name):
        self.name = name

    def on_candidate_accepted(self, event):
        """The host's callback."""
        say("accepted", self.name)


def optimize(name, **options):
    """One run."""
    arguments = {
        "seed_candidate": ONE,
        "trainset": list(range(12)),
        "valset": list(range(100, 110)),
        "adapter": Telling(name),
        "reflection_lm": Reflection(),
        "callbacks": [Accepted(name)],
        "logger": Silent(),
        "max_metric_calls": 100_000,
        **options,
    }
    return gepa.optimize(**arguments)


def run(name=0):
    """One run, and what came of it."""
    options = dict(ASKED.get("optimize", {}))
    if "runs" in ASKED and "run_dir" in options:
        options["run_dir"] += f"/{name}"
    flash = Flash(**{"progress": False, "max_concurrency": 4, "reflection_concurrency": 4, **ASKED["flash"]})
    try:
        result = optimize(name, executor=flash, **options)
    except RunStopped as stopped:
        best = {"best": stopped.best, "score": stopped.score, "run_dir": stopped.run_dir, "reason": stopped.reason}
        say("end", json.dumps({"run": name, "how": "RunStopped", **best}))
    else:
        scores = result.val_aggregate_scores
        best = {"best": result.best_candidate, "score": scores[result.best_idx], "scores": scores}
        calls = {"calls": result.total_metric_calls, "candidates": len(result.candidates)}
        say("end", json.dumps({"run": name, "how": "returned", **best, **calls}))


async def in_a_loop():
    """As in a notebook: a loop runs on the thread that calls the host."""
    run()
    await asyncio.sleep(0)
    say("the loop goes on")


def on_threads(count):
    """Several runs at once."""
    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


PLACES = {
    "main thread": lambda count: [run(name) for name in range(count)],
    "asyncio": lambda _: asyncio.run(in_a_loop()),
    "threads": on_threads,
}


def wait_for_a_line():
    """Let what is held go on."""
    sys.stdin.readline()
    GO.set()


if __name__ == "__main__":
    if "hold_from" in ASKED:
        threading.Thread(target=wait_for_a_line, daemon=True).start()
    PLACES[ASKED.get("place", "main thread")](ASKED.get("runs", 1))
    if "nested" in ASKED:
        for thread in threading.enumerate():
            if thread.name.startswith("flashevolve-slot"):
                thread.join()
    say("over")
