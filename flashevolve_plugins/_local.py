"""The local driver: a plain loop on the caller's thread, named worker threads, one event-loop thread."""

from __future__ import annotations

import contextvars
import queue
import threading
import time
from collections import Counter, defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from flashevolve_plugins._driver import SNAPSHOT_EVERY, Driver
from flashevolve_plugins._errors import raised_in_slot
from flashevolve_plugins._stall import Stall

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashevolve_plugins._calls import End
    from flashevolve_plugins._model import Sample


class _Try:
    """One try of a sample; both ends of the inbox know it by identity."""

    __slots__ = ("abandoned", "cancel", "index", "item", "sample", "started")

    def __init__(self, item: int, index: int, sample: Sample) -> None:
        self.item, self.index, self.sample = item, index, sample
        self.abandoned = False
        self.cancel: Callable[[], object] | None = None
        self.started = time.monotonic()


_Told: TypeAlias = tuple[_Try, Any, "BaseException | None", float]
_Tasks: TypeAlias = "queue.SimpleQueue[Callable[[], _Told] | None]"

JOIN_SECONDS = 10.0  # at most, for a worker between two samples; one inside a sample is abandoned at once
LOOK_SECONDS = 0.05  # between two looks whether it still is
THREAD_NAME = "flashevolve-slot"


class _Worker(threading.Thread):
    """Runs one sample after the other. A daemon: a call that never returns must not keep the process alive."""

    def __init__(self, number: int, tasks: _Tasks, inbox: queue.SimpleQueue[_Told | None]) -> None:
        super().__init__(name=f"{THREAD_NAME}-{number}", daemon=True)
        self.tasks = tasks
        self._inbox = inbox
        self.idle = True

    def run(self) -> None:
        """Take tasks until there is a ``None``."""
        while (task := self.tasks.get()) is not None:
            self.idle = False
            end = task()
            self.idle = True
            self._inbox.put(end)
            del task, end  # an idle worker keeps nothing of its last sample alive

    def end(self) -> None:
        """Wait for its end, as long as it is between two samples: a busy machine may keep it from ending at once."""
        until = time.monotonic() + JOIN_SECONDS
        while self.is_alive() and self.idle and time.monotonic() < until:
            self.join(LOOK_SECONDS)


class LocalDriver(Driver):
    """Runs samples on this machine.

    Blocking samples run on daemon threads named ``flashevolve-slot-<n>``, each with a copy of the caller's context
    variables as they were when the sample started. Every resource has threads of its own, no more than it ever had
    samples at once: those of a resource with one slot all run on the same thread. Coroutine samples run on one
    event-loop thread. All else, host code, policies and the Scheduler, runs on the thread that calls the driver.

    Its arguments are those of :class:`Driver`.
    """

    def _prepare(self) -> None:
        self._inbox: queue.SimpleQueue[_Told | None] = queue.SimpleQueue()
        self._tasks: defaultdict[str, _Tasks] = defaultdict(queue.SimpleQueue)
        self._workers: list[_Worker] = []
        self._crews: Counter[str] = Counter()  # resource -> its workers, less those inside abandoned calls
        self._tries: dict[tuple[int, int], _Try] = {}
        self._running: Counter[str] = Counter()  # resource -> its samples on threads
        self._coroutines = 0  # that have not ended
        self._stall = Stall(self.now())

    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    def _start(self, item: int, index: int, sample: Sample) -> None:
        tried = self._tries[item, index] = _Try(item, index, sample)
        if sample.asynchronous:
            self._start_async(tried)
            return
        context = contextvars.copy_context()
        tasks = self._tasks[sample.resource]
        self._running[sample.resource] += 1
        if self._running[sample.resource] > self._crews[sample.resource]:
            worker = _Worker(len(self._workers) + 1, tasks, self._inbox)
            self._workers.append(worker)
            self._crews[sample.resource] += 1
            worker.start()
        tasks.put(partial(context.run, _run, tried))

    def _start_async(self, tried: _Try) -> None:
        inbox = self._inbox

        def report(result: Any, error: BaseException | None) -> None:
            told = error and raised_in_slot(error)
            inbox.put((tried, result, told, time.monotonic() - tried.started))

        self._coroutines += 1
        tried.cancel = self.loop.start(tried.sample.call, report).cancel

    def _wait(self) -> End | None:
        due = self.due()
        seconds = min(SNAPSHOT_EVERY, due - self.now())
        try:
            told = self._inbox.get(timeout=seconds) if seconds > 0 else self._inbox.get_nowait()
        except queue.Empty:  # nothing ended: views and a pending interrupt get their turn
            if due > self.now():
                self._stall.check(self.now(), self._calls)
                self._tell_snapshot()
            return None
        if told is None:  # woken
            return None
        self._stall.ended(self.now())
        return self._told(*told)

    def _told(self, tried: _Try, result: Any, error: BaseException | None, seconds: float) -> End | None:
        """What a try gave, if anybody waits for it."""
        resource, on_thread = tried.sample.resource, not tried.sample.asynchronous
        self._coroutines -= not on_thread
        if tried.abandoned:
            self._crews[resource] += on_thread
            self._calls.came_back(resource)
            return None
        self._running[resource] -= on_thread
        del self._tries[tried.item, tried.index]
        return tried.item, tried.index, result, error, seconds

    def wake(self) -> None:
        """End a wait. The queue's ``put`` may interrupt its own ``get`` or ``put``."""
        self._inbox.put(None)

    def _cancel(self, item: int, index: int) -> None:
        tried = self._tries.get((item, index))
        if tried is not None and tried.cancel is not None:
            tried.cancel()

    def _abandon_try(self, item: int, index: int) -> None:
        tried = self._tries.pop((item, index))
        tried.abandoned = True
        if tried.cancel is not None:
            tried.cancel()
        else:
            self._running[tried.sample.resource] -= 1
            self._crews[tried.sample.resource] -= 1

    def close(self) -> None:
        """End the threads.

        A worker inside a sample, and a coroutine that takes no notice of being cancelled, are left to themselves and
        counted in :attr:`abandoned`.
        """
        self._calls.timers.clear()
        self._close_loop()  # first: workers may wait for it
        self.abandoned += self._still_running()
        for worker in self._workers:
            worker.tasks.put(None)
        for worker in self._workers:
            worker.end()
        self._calls.lost.clear()
        self.abandoned += sum(worker.is_alive() for worker in self._workers)
        self._workers.clear()

    def _still_running(self) -> int:
        """Coroutines that have not ended."""
        while True:
            try:
                told = self._inbox.get_nowait()
                self._coroutines -= told is not None and told[0].sample.asynchronous
            except queue.Empty:
                return self._coroutines


def _run(tried: _Try) -> _Told:
    started = time.monotonic()
    try:
        result, error = tried.sample.call(), None
    except BaseException as raised:  # noqa: BLE001 - reported to the caller's thread, where it is raised or scored
        result, error = None, raised_in_slot(raised)
    return tried, result, error, time.monotonic() - started
