"""Twenty thousand samples in one process: memory, threads, file descriptors and tasks stay as they are."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import weakref
from dataclasses import dataclass
from typing import Any, ClassVar

import gepa
import pytest
from gepa.core.adapter import EvaluationBatch

from flashevolve_plugins import Flash

MINIBATCH = 50  # few iterations, each of which the host keeps in its state
OUTPUT = 4_000  # characters: of 15,000 outputs 60 MB
FIRST, LAST = 5_000, 20_000  # samples at the two looks
MOST_GROWTH = 20  # MB; what is in flight at one look alone is a third of it
IN_FLIGHT = 16 * 2 * MINIBATCH  # outputs of the proposals in flight, rollouts and gates


class Output:
    """What a sample gives. Those that are alive are counted."""

    alive: ClassVar[weakref.WeakSet[Output]] = weakref.WeakSet()

    def __init__(self, number: int) -> None:
        self.text = f"{number:>{OUTPUT}}"
        Output.alive.add(self)


class Adapter:
    """Evaluates in no time; no proposal is ever better."""

    propose_new_texts = None
    flashevolve_evaluate = "example"

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.samples = 0

    def evaluate(self, batch: list[Any], candidate: dict[str, str], capture_traces: bool = False) -> EvaluationBatch:
        del candidate
        with self.lock:
            self.samples += len(batch)
        outputs = [Output(each) for each in batch]
        return EvaluationBatch(outputs, [0.5] * len(batch), outputs if capture_traces else None)

    def make_reflective_dataset(self, candidate: Any, evaluation: Any, components: list[str]) -> Any:
        del candidate, evaluation
        return {name: [{"Feedback": "so so"}] for name in components}


@dataclass
class Look:
    """What the process holds at a moment."""

    megabytes: float
    threads: int
    files: int
    tasks: int
    outputs: int


def look() -> Look:
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - one file of the kernel's
        pages = int(file.read().split()[1])
    return Look(
        megabytes=pages * os.sysconf("SC_PAGESIZE") / 1e6,
        threads=threading.active_count(),
        files=len(os.listdir("/proc/self/fd")),  # noqa: PTH208
        tasks=sum(isinstance(each, asyncio.Task) for each in gc.get_objects()),
        outputs=len(Output.alive),
    )


def join() -> None:
    """Threads that have nothing left to do may not have ended yet."""
    for each in threading.enumerate():
        if each.name.startswith("flashevolve"):
            each.join(60)


def run(samples: int, run_dir: Any, flash: Flash, at: dict[int, Look] | None = None) -> Adapter:
    """One run of so many samples, with a look at the process once it has reached each number in ``at``."""
    adapter, left = Adapter(), sorted(at or {})

    def stop(_: Any) -> bool:
        if left and adapter.samples >= left[0] and at is not None:
            at[left.pop(0)] = look()
        return adapter.samples >= samples

    texts = iter(range(10**9))
    gepa.optimize(
        seed_candidate={"a": "start"},
        trainset=list(range(MINIBATCH)),
        valset=list(range(10)),
        adapter=adapter,
        reflection_lm=lambda _: f"```\ntext {next(texts)}\n```",
        reflection_minibatch_size=MINIBATCH,
        stop_callbacks=stop,
        skip_perfect_score=False,
        run_dir=str(run_dir),
        executor=flash,
        logger=type("Quiet", (), {"log": lambda *_: None})(),
    )
    join()
    return adapter


needs_proc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self")


@needs_proc
@pytest.mark.parametrize("staleness", ["merge", "full"])
def test_twenty_thousand_samples_leave_the_process_as_it_was(staleness, tmp_path, tell):
    flash = Flash(max_concurrency=8, progress=False, staleness=staleness)
    run(500, tmp_path / "warm", flash)
    before = look()
    at = {FIRST: before, LAST: before}
    run(LAST + 2_000, tmp_path / "long", flash, at)
    first, last, after = at[FIRST], at[LAST], look()
    assert first is not before
    assert last.megabytes - first.megabytes < MOST_GROWTH, (first, last)
    assert max(first.outputs, last.outputs) <= IN_FLIGHT, (first, last)
    slots = sum(flash.last_run.slots.values())  # each is a thread from the first moment on at which all of them work
    assert max(first.threads, last.threads) <= before.threads + slots + 2, (before, first, last)
    assert last.files <= first.files + slots, (first, last)
    assert last.tasks <= first.tasks
    assert (after.threads, after.files, after.tasks) == (before.threads, before.files, before.tasks)
    assert after.outputs == 0
    if staleness == "merge":
        tell("20,000 samples in one process", tries=1, outcome="memory, threads, files and tasks flat", lost=0)


@needs_proc
def test_twenty_runs_one_after_another_leave_nothing_behind(tmp_path, tell):
    flash = Flash(max_concurrency=8, progress=False)
    adapters: list[weakref.ref[Adapter]] = []
    looks = []
    for number in range(20):
        adapters.append(weakref.ref(run(400, tmp_path / str(number), flash)))
        looks.append(look())
    second, last = looks[1], looks[-1]
    assert [each for each in adapters if each() is not None] == []
    assert last.outputs == 0
    assert (last.threads, last.files, last.tasks) == (second.threads, second.files, second.tasks)
    assert last.megabytes - second.megabytes < MOST_GROWTH, (second, last)
    tell("20 runs one after another in one process", tries=20, outcome="nothing is left of them", lost=0)
