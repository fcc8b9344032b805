"""The host's bookkeeping that grows with the pool: its state file, its logs, its candidate tree.

The host writes all of them anew at every iteration or candidate, whatever they have grown to. Here each gets a share of
the run's time. As long as it needs less, as in small runs, everything is written when the host writes it; beyond that,
what is new waits until the share allows it again, and the end of the run writes everything.
"""

from __future__ import annotations

import time
import types
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from flashevolve_plugins.adapters.gepa.state_file import StateWriter
from flashevolve_plugins.adapters.gepa.tree_page import draw_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FREE_SECONDS = 1.0  # of processor time that each may use whatever the run's length
STATE_SHARE = 0.1  # a state that takes 0.1 s to write is on disk within a second
LOG_SHARE = TREE_SHARE = 0.05


class Share:
    """A share of the time that goes by.

    Args:
        share: of it, 0 to 1.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._used = -FREE_SECONDS
        self._began = time.monotonic()

    @property
    def free(self) -> bool:
        """Whether something may be done now."""
        return self._used <= self._share * (time.monotonic() - self._began)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Count the processor time of a block."""
        before = time.thread_time()
        try:
            yield
        finally:
            self._used += time.thread_time() - before


class Bookkeeping:
    """Decides when the host's files are written. All calls come from the host's thread.

    Args:
        engine: the host's engine.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        #: Called before the state file is written: what is kept of the items in it must be on disk by then.
        self.saving: Callable[[], None] = lambda: None
        #: Called when the state file is up to date.
        self.saved: Callable[[], None] = lambda: None
        self._state: Any = None
        self._kind: Any = None
        self._unsaved = self._undrawn = self._ended = False
        self._logs: list[Callable[[], None]] = []
        self._state_share, self._log_share, self._tree_share = Share(STATE_SHARE), Share(LOG_SHARE), Share(TREE_SHARE)

    def begin(self, state: Any) -> None:
        """Take charge of a state's files.

        The state becomes an instance of a subclass, under the same name, whose ``save`` asks here. Its instance
        dictionary, which is what the host writes, knows nothing of it.
        """
        self._state, self._kind, self._unsaved = state, type(state), True
        kind, self._writer = self._kind, StateWriter(type(state))

        def save(state: Any, run_dir: str | None, **options: Any) -> None:
            if state is self._state and run_dir == self._engine.run_dir:
                self._unsaved |= self._ended  # the host's last act
                self.save()
            else:
                kind.save(state, run_dir, **options)

        def write_log(state: Any, run_dir: str, *file: Any) -> None:
            write = partial(kind._atomic_write_json, state, run_dir, *file)
            if state is self._state and run_dir == self._engine.run_dir:
                self._logs.append(write)
            else:
                write()

        body = {"save": save, "_atomic_write_json": write_log, "__module__": kind.__module__}
        state.__class__ = types.new_class(kind.__name__, (kind,), exec_body=lambda namespace: namespace.update(body))

    def changed(self) -> None:
        """The host's state has changed: write it as soon as may be."""
        self._unsaved = True
        self.tick()

    def tick(self) -> None:
        """Write what is not up to date. What that raises is raised again when the host asks for it to be saved."""
        with suppress(Exception):
            self.save()

    def save(self) -> None:
        """Write the state file if it is not up to date, and the logs beside it, each if its share allows it."""
        engine = self._engine
        if engine.run_dir is None:
            return
        if self._unsaved and (self._state_share.free or self._ended):
            self._logs.clear()
            with self._state_share.taken():
                self.saving()
                engine._sync_adapter_state_to_state(self._state)
                self._writer.write(self._state, engine.run_dir, use_cloudpickle=engine.use_cloudpickle)
            self._unsaved = False
            self.saved()
        if self._logs and (self._log_share.free or self._ended):
            with self._log_share.taken():
                for write in self._logs:
                    write()
            self._logs.clear()

    def draw(self, state: Any) -> None:
        """Stands in for the host's ``_log_candidate_tree``."""
        self._undrawn = not self._tree_share.free
        if not self._undrawn:
            with self._tree_share.taken():
                draw_tree(self._engine, state)

    def end(self) -> None:
        """From now on everything is written when the host writes it; draw the last tree."""
        if self._state is None or self._ended:
            return
        self._ended = True
        if self._undrawn:
            draw_tree(self._engine, self._state)

    def release(self) -> None:
        """Give the state back to the host."""
        if self._state is not None:
            self._state.__class__ = self._kind
            self._state = None
