"""Makes the runs that are missing, and keeps each as soon as it is over."""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from flashevolve_plugins.benchmarks.bench import one
from flashevolve_plugins.benchmarks.bench.programs import python_for, start
from flashevolve_plugins.benchmarks.bench.record import read
from flashevolve_plugins.benchmarks.bench.rivals import parse
from flashevolve_plugins.benchmarks.bench.served import Endpoint
from flashevolve_plugins.benchmarks.presets import PRESETS
from flashevolve_plugins.benchmarks.server.profiles import PROFILES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Executor
    from pathlib import Path

    from flashevolve_plugins.benchmarks.bench.cells import RunKey


@dataclass(frozen=True)
class Given:
    """A server and a task that the user has.

    Args:
        endpoint: the server.
        data: a file of examples.
    """

    endpoint: Endpoint
    data: str


def missing(keys: Iterable[RunKey], folder: Path) -> list[RunKey]:
    """The runs that have no record yet, each once."""
    return [key for key in dict.fromkeys(keys) if not (folder / key.path).is_file()]


def run_missing(keys: Iterable[RunKey], folder: Path, *, jobs: int = 1, given: Given | None = None) -> list[str]:
    """Make the runs that have no record yet.

    Runs in virtual time go side by side, and so do those of synchronous hosts through a server, which keep the
    processor idle; those of flash and of TurboGEPA through a server go one after the other.

    Args:
        keys: the runs.
        folder: where records are kept.
        jobs: runs at once.
        given: the user's own server and task.

    Returns:
        What failed, one sentence per run; those runs are missing the next time as well.
    """
    todo = missing(keys, folder)
    virtual = [key for key in todo if key.clock == "virtual"]
    served = [key for key in todo if key.clock == "server"]
    idle = [key for key in served if _is_synchronous(key)]
    busy = [key for key in served if not _is_synchronous(key)]
    progress = _Progress(len(todo), folder)
    processes = ProcessPoolExecutor if jobs > 1 else ThreadPoolExecutor
    _together(processes, jobs, virtual, partial(_run_virtual, folder=folder), progress)
    through_server = partial(_run_served, folder=folder, given=given)
    _together(ThreadPoolExecutor, jobs, idle, through_server, progress)
    _together(ThreadPoolExecutor, 1, busy, through_server, progress)
    return progress.failed


def _is_synchronous(key: RunKey) -> bool:
    rival = parse(key.rival)
    return rival.flash is None and rival.host != "turbo"


@dataclass
class _Progress:
    total: int
    folder: Path
    done: int = 0

    def __post_init__(self) -> None:
        self.failed: list[str] = []

    def tell(self, key: RunKey, error: BaseException | None) -> None:
        self.done += 1
        if error is not None:
            self.failed.append(f"{key} failed: {error}")
            outcome = f"failed: {error}"
        else:
            record = read(self.folder / key.path)
            outcome = f"{record.seconds:.0f} s, {record.metric_calls} calls, score {record.score:.2f}"
        print(f"{self.done}/{self.total} {key}: {outcome}", file=sys.stderr, flush=True)


def _together(
    kind: Callable[[int], Executor],
    jobs: int,
    keys: list[RunKey],
    run: Callable[[RunKey], Any],
    progress: _Progress,
) -> None:
    """Run all, some at once, and tell of each."""
    if not keys:
        return
    with kind(jobs) as pool:
        futures = {pool.submit(run, key): key for key in keys}
        try:
            for future in as_completed(futures):
                progress.tell(futures[future], future.exception())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _run_virtual(key: RunKey, folder: Path) -> None:
    one.main(one.job(key, folder))


def _run_served(key: RunKey, folder: Path, given: Given | None) -> None:
    python = python_for(parse(key.rival), folder)
    if given is not None:
        start(python, one.job(key, folder, given.endpoint, given.data))
        return
    with _simulated(key) as endpoint:
        start(python, one.job(key, folder, endpoint))


@contextmanager
def _simulated(key: RunKey) -> Iterator[Endpoint]:
    """A simulated server of the run's own."""
    from flashevolve_plugins.benchmarks.server import ServerSettings, SimulatedServer  # noqa: PLC0415 - only if asked

    profile, cell = PROFILES[key.cell.profile], key.cell
    landscape = PRESETS[cell.landscape].landscape(key.seed)
    latency = replace(profile.latency, time_scale=cell.time_scale)
    settings = ServerSettings(landscape, latency, profile.lengths, key.seed, max_requests=profile.max_requests)
    with SimulatedServer(settings) as server:
        yield Endpoint(server.base_url)
