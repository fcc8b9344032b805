"""Stages, drivers and a host's loop for tests with real threads."""

from __future__ import annotations

import contextvars
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._local import LocalDriver
from flashevolve_plugins._model import ItemRecord, Limits, PoolEntry, Sample, Stage, Terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flashevolve_plugins._bodies import Body
    from flashevolve_plugins._policies import AcceptAll

PATIENCE = 60.0  # seconds until a test that would hang fails instead

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="unset")


def make_limits(slots: int = 4, **more: Any) -> Limits:
    return Limits(slots={"task": slots}, stages=("rollout", "validate"), entry="task", **more)


def make_stage(*calls: Callable[[], Any], name: str = "rollout", asynchronous: bool = False) -> Stage:
    return Stage(name, tuple(Sample(call, "task", cost=1, asynchronous=asynchronous) for call in calls))


@contextmanager
def opened(limits: Limits | None = None, policies: AcceptAll | None = None) -> Iterator[LocalDriver]:
    driver = LocalDriver(limits or make_limits(), policies)
    try:
        yield driver
    finally:
        driver.close()


def run_host(driver: LocalDriver, source: Callable[[int], Body | None]) -> list[ItemRecord]:
    records = []
    driver.offer_from(source)
    while (ended := driver.next_ended()) is not None:
        committed = ended.record.terminal is Terminal.COMMITTED
        version = driver.pool.version + 1
        driver.recorded(ended, [PoolEntry(version, None, 0.0, item=ended.number)] if committed else [])
        records.append(ended.record)
    return records


def our_threads(prefix: str = "flashevolve") -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(prefix)]
