"""What stops a run before its end: Ctrl-C, SIGTERM, a file, a deadline, a score, its host.

The first request offers nothing more and ends what is not nearly done; the rest has the grace period. A second Ctrl-C
or SIGTERM raises at once, as without flash.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._errors import RunStopped
from flashevolve_plugins._item import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextvars import Token

    from typing_extensions import Self

    from flashevolve_plugins._driver import Driver
    from flashevolve_plugins._flash import Flash

FILE = "flashevolve.stop"
LOOK_EVERY = 0.5  # seconds between two looks for a stop file

logger = logging.getLogger("flashevolve_plugins")

#: The run around the running code: that of a metric, or of a host's callback, which runs a host itself.
_around: ContextVar[Stopping | None] = ContextVar("flashevolve_around", default=None)


class Stopping:
    """What may stop one run, and how far a stop has got. A context manager around the run; does nothing in lockstep.

    Signals are handled on the main thread alone, and only where Python's own handlers are in force.

    Args:
        flash: the run's settings.
        run_dir: the run's directory, if it has one.
        drain: whether a stop also waits for what still runs of items that are ended; else only for what is settled.
    """

    def __init__(self, flash: Flash, run_dir: str | None, *, drain: bool = True) -> None:
        self._flash, self._run_dir, self._drain = flash, run_dir, drain
        #: Whether the host itself was asked to stop; an adapter whose host can be says so.
        self.host_asks: Callable[[], bool] = bool
        self._files = [Path(flash.stop_file)] if flash.stop_file is not None else []
        self._files += [Path(run_dir) / FILE] if run_dir is not None else []
        self._driver: Driver | None = None
        self._deadline = self._next_look = math.inf
        self._version = 0  # of the pool, as far as its scores were looked at
        self._handled: dict[int, Any] = {}  # signal -> the handler before
        self._signal: int | None = None  # which came
        self._outer: Stopping | None = None
        self._token: Token[Stopping | None] | None = None
        self._thread = threading.get_ident()
        #: Why the run stops; ``None`` until a stop begins.
        self.reason: str | None = None
        self._by_host = False
        self._ends = math.inf  # of the grace period
        self._cut = False  # whether a signal ends the grace period
        #: Whether nobody waits for anything of the run any more.
        self.over = False

    def __enter__(self) -> Self:
        """Listen to signals."""
        if not self._flash.lockstep:
            self._outer = _around.get()
            self._token = _around.set(self)
            self._install()
        return self

    def __exit__(self, *exc: object) -> None:
        """Restore the handlers that were there before, unless others have taken their place."""
        self.over = True
        for number, before in self._handled.items():
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, before)
        if self._token is not None:
            _around.reset(self._token)

    # -- signals ----------------------------------------------------------------------------------------------------

    def _install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.getsignal(number)
            if _is_pythons_own(number, before):
                with suppress(ValueError):  # a thread of another interpreter
                    signal.signal(number, self._on_signal)
                    self._handled[number] = before

    def _on_signal(self, number: int, frame: object) -> None:
        """May run between any two steps of the main thread: says nothing, and takes no lock."""
        del frame
        if self._signal is not None:
            raise _leaving(number)
        self._signal = number
        if self._driver is not None:
            self._driver.wake()

    # -- for the driver ---------------------------------------------------------------------------------------------

    def watch(self, driver: Driver) -> None:
        """Stop this driver's run from now on. The deadline is counted from here."""
        self._driver, driver.stopping = driver, self
        self._next_look = driver.now()
        if self._flash.max_seconds is not None:
            self._deadline = driver.now() + self._flash.max_seconds

    @property
    def alarm(self) -> float:
        """When :meth:`heed` is to be called at the latest, by the driver's clock."""
        return self._deadline if self.reason is None else self._ends

    def heed(self, driver: Driver) -> bool:
        """Begin a stop that was asked for, or end one whose time is up; whether that was so."""
        now = driver.now()
        if self.reason is None:
            reason = self._asked(driver, now)
            if reason is None:
                return False
            self._begin(driver, reason, now)
            return True
        if self.over or not self._is_due(driver, now):
            return False
        self.over, self._ends = True, now
        driver.abandon(self.reason)
        return True

    def _asked(self, driver: Driver, now: float) -> str | None:
        """Why the run is to stop, if it is."""
        flash = self._flash
        if self._signal is not None:
            return "Ctrl-C" if self._signal == signal.SIGINT else signal.Signals(self._signal).name
        if now >= self._deadline:
            return f"max_seconds={flash.max_seconds:g} are over"
        if flash.stop_score is not None and self._reached(driver, flash.stop_score):
            return f"a candidate has reached stop_score={flash.stop_score:g}"
        if self.host_asks():
            self._by_host = True
            return "the host was asked to stop"
        if self._outer is not None and self._outer.ends_inner():
            return "the run around it stops"
        return self._found(now)

    def _reached(self, driver: Driver, score: float) -> bool:
        since, self._version = self._version, driver.pool.version
        return any(entry.score >= score for entry in driver.pool.since(since))

    def ends_inner(self) -> bool:
        """Whether a run inside this one is to stop. One in a slot goes on for as long as somebody waits for it."""
        if self.over or threading.get_ident() != self._thread:
            return self.over
        late = self._driver is not None and self._driver.now() >= self._deadline
        return late or self._signal is not None or self.reason is not None

    def _found(self, now: float) -> str | None:
        """Look for stop files. One is removed, so that a resumed run does not stop at once."""
        if now < self._next_look:
            return None
        self._next_look = now + LOOK_EVERY
        for path in self._files:
            if path.exists():
                with suppress(OSError):
                    path.unlink()
                return f"the file {os.fspath(path)!r}"
        return None

    def _begin(self, driver: Driver, reason: str, now: float) -> None:
        self.reason, self._cut = reason, self._signal is not None
        self._ends = now + (0.0 if self._outer is not None and self._outer.over else self._flash.grace)
        again = " Ctrl-C again stops at once." if self._cut else " Ctrl-C ends the wait."
        logger.warning(
            "Stopping (%s): nothing more is offered, and what is nearly done has %.10g seconds.%s",
            reason,
            self._ends - now,
            again if self._handled else "",
        )
        driver.stop(reason, cancel=True, settle=True)

    def _is_due(self, driver: Driver, now: float) -> bool:
        """Whether the wait is over."""
        if now >= self._ends or (self._signal is not None and not self._cut):
            return True
        items = driver.scheduler.items.values()
        return not self._drain and not any(item.settling and item.kind is not Kind.JOB for item in items)

    # -- for whoever runs the host ----------------------------------------------------------------------------------

    def error(self) -> BaseException:
        """What ends a run that was stopped before there was any result."""
        if self._signal is not None:
            return _leaving(self._signal)
        return RunStopped(self.reason or "", run_dir=self._run_dir)

    def require_none(self, best: Callable[[], tuple[Mapping[str, str], float | None]]) -> None:
        """Raise if the run was stopped and is to raise then. Comes last, when everything is saved.

        Args:
            best: gives the best candidate, component name to text, and its validation score.

        Raises:
            RunStopped: it was stopped, with ``on_stop="raise"``, and not by its host.
        """
        stopped = (self.reason is not None and not self._by_host) or self._signal is not None
        if stopped and self._flash.on_stop == "raise":
            texts, score = best()
            raise RunStopped(self.reason or "Ctrl-C", best=texts, score=score, run_dir=self._run_dir)


def _is_pythons_own(number: int, handler: Any) -> bool:
    """Whether a signal does what it does where nobody has said anything else."""
    if number != signal.SIGINT:
        return handler is signal.SIG_DFL
    # asyncio.run has a handler of its own, which cancels its task: nobody would see that while the host runs.
    of_asyncio = getattr(getattr(handler, "func", None), "__module__", None) == "asyncio.runners"
    return handler is signal.default_int_handler or of_asyncio


def _leaving(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
