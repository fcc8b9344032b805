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

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from contextlib import AbstractContextManager

    from anyio.from_thread import BlockingPortal

    from flashevolve_plugins._model import Sample

_End: TypeAlias = tuple[int, int, Any, "BaseException | None", float]
_Tasks: TypeAlias = "queue.SimpleQueue[Callable[[], _End] | None]"

JOIN_SECONDS = 1.0  # for a worker between two samples; one inside a sample is abandoned at once
THREAD_NAME = "flashevolve-slot"


class _Worker(threading.Thread):
    """Runs one sample after the other. A daemon: a call that never returns must not keep the process alive."""

    def __init__(self, number: int, tasks: _Tasks, inbox: queue.SimpleQueue[_End]) -> None:
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


class LocalDriver(Driver):
    """Runs samples on this machine.

    Blocking samples run on daemon threads named ``flashevolve-slot-<n>``, each with a copy of the caller's context
    variables as they were when the sample started. Every resource has threads of its own, no more than it ever had
    samples at once: those of a resource with one slot all run on the same thread. Coroutine samples run on one
    event-loop thread. All else, host code, policies and the Scheduler, runs on the thread that calls the driver.

    Its arguments are those of :class:`Driver`.
    """

    def _prepare(self) -> None:
        self._inbox: queue.SimpleQueue[_End] = queue.SimpleQueue()
        self._tasks: defaultdict[str, _Tasks] = defaultdict(queue.SimpleQueue)
        self._workers: list[_Worker] = []
        self._crews: Counter[str] = Counter()  # resource -> its workers
        self._on_threads: dict[tuple[int, int], str] = {}  # sample -> its resource
        self._running: Counter[str] = Counter()  # resource -> its samples on threads
        self._portal: BlockingPortal | None = None
        self._portal_exit: AbstractContextManager[BlockingPortal] | None = None
        self._futures: dict[tuple[int, int], Future[None]] = {}
        self.abandoned = 0

    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    def _start(self, item: int, index: int, sample: Sample) -> None:
        if sample.asynchronous:
            self._start_async(item, index, sample)
            return
        context = contextvars.copy_context()
        tasks = self._tasks[sample.resource]
        self._on_threads[item, index] = sample.resource
        self._running[sample.resource] += 1
        if self._running[sample.resource] > self._crews[sample.resource]:
            worker = _Worker(len(self._workers) + 1, tasks, self._inbox)
            self._workers.append(worker)
            self._crews[sample.resource] += 1
            worker.start()
        tasks.put(partial(context.run, _run, item, index, sample))

    def _start_async(self, item: int, index: int, sample: Sample) -> None:
        async def run() -> None:
            started = time.monotonic()
            try:
                result, error = await sample.call(), None
            except BaseException as raised:  # noqa: BLE001 - a cancelled sample is reported like any other
                result, error = None, raised
            self._inbox.put((item, index, result, error, time.monotonic() - started))

        self._futures[item, index] = self._event_loop().start_task_soon(run)

    def _event_loop(self) -> BlockingPortal:
        if self._portal is None:
            from anyio.from_thread import start_blocking_portal  # noqa: PLC0415 - only runs with async samples pay

            self._portal_exit = start_blocking_portal()
            self._portal = self._portal_exit.__enter__()
            self._portal.call(_name_event_loop_thread)
        return self._portal

    def _wait(self) -> _End:
        while True:
            try:
                end = self._inbox.get(timeout=SNAPSHOT_EVERY)
                break
            except queue.Empty:  # nothing ended: views and a pending interrupt get their turn
                self._tell_snapshot()
        if self._futures.pop(end[:2], None) is None:
            self._running[self._on_threads.pop(end[:2])] -= 1
        return end

    def _cancel(self, item: int, index: int) -> None:
        future = self._futures.get((item, index))
        if future is not None:
            future.cancel()

    def close(self) -> None:
        """End the threads.

        A worker inside a sample is left to itself and counted in :attr:`abandoned`. A coroutine is cancelled where it
        awaits; one that blocks instead is waited for.
        """
        for worker in self._workers:
            worker.tasks.put(None)
        for worker in self._workers:
            if worker.is_alive():  # not if an interrupt came before it had started
                worker.join(JOIN_SECONDS if worker.idle else 0)
        self.abandoned += sum(worker.is_alive() for worker in self._workers)
        self._workers.clear()
        if self._portal is not None and self._portal_exit is not None:
            for future in self._futures.values():
                future.cancel()
            self._portal_exit.__exit__(None, None, None)
            self._portal = self._portal_exit = None


def _run(item: int, index: int, sample: Sample) -> _End:
    started = time.monotonic()
    try:
        result, error = sample.call(), None
    except BaseException as raised:  # noqa: BLE001 - reported to the caller's thread, where it is raised or scored
        result, error = None, raised
    return item, index, result, error, time.monotonic() - started


def _name_event_loop_thread() -> None:
    threading.current_thread().name = "flashevolve-event-loop"
