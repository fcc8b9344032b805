"""What a run has paid for and not told its host yet, in one SQLite file of its directory.

A row is written as a sample ends, by a thread of its own, so that a process may be killed at any moment. It is deleted
once the host's own state file contains it.
"""

from __future__ import annotations

import json
import logging
import queue
import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from flashevolve_plugins._errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

logger = logging.getLogger("flashevolve_plugins")

FILE = "flashevolve.sqlite"
SCHEMA = 1
APPLICATION = 0x464C4556  # in SQLite's header: whose file it is
THREAD_NAME = "flashevolve-store"
BUSY = 10.0  # seconds to wait for somebody who reads the file
SYNC_EVERY = 1.0  # seconds; the system may lose so much if the machine itself stops
_TABLES = """
CREATE TABLE run (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE items (number INTEGER PRIMARY KEY, recipe BLOB NOT NULL, told TEXT);
CREATE TABLE results (number INTEGER PRIMARY KEY, item INTEGER, key BLOB NOT NULL, value BLOB NOT NULL, spent INTEGER);
CREATE INDEX results_of_item ON results (item);
"""
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs"}

_PUT_RESULT = "INSERT INTO results"
_Statement: TypeAlias = "tuple[str, tuple[Any, ...]]"
_Write: TypeAlias = "_Statement | Callable[[], object] | None"


@dataclass
class Result:
    """One finished sample.

    Args:
        number: the row's.
        item: the item that paid for it, or ``None``.
        key: what it is the result of.
        value: the result, frozen.
        spent: metric calls.
    """

    number: int
    item: int | None
    key: bytes
    value: bytes
    spent: int


@dataclass
class Open:
    """One item that was under way.

    Args:
        number: the row's.
        recipe: what its adapter needs to begin it again.
        told: what its host was told of it though it goes on when the run is resumed, or ``None``.
    """

    number: int
    recipe: bytes
    told: Any = None


class Store:
    """The file. Reading happens once, as it is opened; writing on the store's own thread, in the order of the calls.

    Args:
        run_dir: the run's directory, which exists.

    Raises:
        UsageError: the file is not ours, not readable or not writable, or of a newer version.
    """

    def __init__(self, run_dir: str | Path) -> None:
        self._path = Path(run_dir) / FILE
        self._writes: queue.SimpleQueue[_Write] = queue.SimpleQueue()
        self._lost = False
        self._behind: list[_Statement] = []
        connection = None
        try:
            connection = sqlite3.connect(self._path, timeout=BUSY, check_same_thread=False)
            self._require_ours(connection)
            self._prepare(connection)
            self._read(connection)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if not isinstance(error, sqlite3.Error):
                raise
            raise UsageError(
                f"{str(self._path)!r} cannot be used ({error}): move it away to go on without the calls that were "
                "under way, or name another directory."
            ) from error
        self._connection = connection  # from now on the thread's
        self._next_item = max((each.number for each in self.items), default=0) + 1
        self._next_result = max((each.number for each in self.results), default=0) + 1
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._write_all, name=THREAD_NAME, daemon=True)
        self._thread.start()

    def _read(self, connection: sqlite3.Connection) -> None:
        rows = connection.execute("SELECT name, value FROM run")
        #: What is known of the run, by name.
        self.run: dict[str, Any] = {name: json.loads(value) for name, value in rows}
        rows = connection.execute("SELECT number, recipe, told FROM items ORDER BY number")
        self.items = [Open(number, recipe, told and json.loads(told)) for number, recipe, told in rows]
        rows = connection.execute("SELECT number, item, key, value, spent FROM results ORDER BY number")
        self.results = [Result(*row) for row in rows]

    def _prepare(self, connection: sqlite3.Connection) -> None:
        on_network = filesystem(self._path) in _NETWORK or filesystem(self._path).startswith("fuse.")
        connection.execute(f"PRAGMA journal_mode={'DELETE' if on_network else 'WAL'}")  # WAL needs shared memory
        connection.execute(f"PRAGMA synchronous={'FULL' if on_network else 'NORMAL'}")

    def _require_ours(self, connection: sqlite3.Connection) -> None:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (schema,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not tables:
            connection.executescript(
                f"BEGIN; PRAGMA application_id={APPLICATION}; PRAGMA user_version={SCHEMA}; {_TABLES} COMMIT;"
            )
        elif application != APPLICATION:
            raise UsageError(
                f"{str(self._path)!r} is not a file of this package: move it away, or name another directory."
            )
        elif schema != SCHEMA:
            raise UsageError(
                f"{str(self._path)!r} has schema {schema}, and this version reads {SCHEMA}: install the version of "
                "flashevolve-plugins that wrote it."
            )

    # -- writing ----------------------------------------------------------------------------------------------------

    def put_run(self, name: str, value: Any) -> None:
        """Remember something of the run."""
        self.run[name] = value
        self._write("INSERT OR REPLACE INTO run VALUES (?, ?)", name, json.dumps(value))

    def put_item(self, recipe: bytes) -> int:
        """An item begins: keep what it needs to begin again, and return its row."""
        number, self._next_item = self._next_item, self._next_item + 1
        self._write("INSERT INTO items VALUES (?, ?, NULL)", number, recipe)
        return number

    def change_item(self, number: int, recipe: bytes) -> None:
        """More is known of what it needs."""
        self._write("UPDATE items SET recipe = ? WHERE number = ?", recipe, number)

    def tell_item(self, number: int, told: Any) -> None:
        """Its host was told of it, though it goes on when the run is resumed; ``None``: it was not."""
        self._write("UPDATE items SET told = ? WHERE number = ?", None if told is None else json.dumps(told), number)

    def put_result(self, item: int | None, key: bytes, value: bytes, spent: int) -> None:
        """A sample has ended. May be called from any thread."""
        with self._lock:
            number, self._next_result = self._next_result, self._next_result + 1
            self._write(f"{_PUT_RESULT} VALUES (?, ?, ?, ?, ?)", number, item, key, value, spent)

    def move_result(self, number: int, item: int | None) -> None:
        """A result belongs to another item from now on."""
        self._write("UPDATE results SET item = ? WHERE number = ?", item, number)

    def forget(self, items: Iterable[int]) -> None:
        """The host's own state file contains these items."""
        for number in items:
            self._write("DELETE FROM results WHERE item = ?", number)
            self._write("DELETE FROM items WHERE number = ?", number)

    def forget_item(self, number: int) -> None:
        """The item is not begun again, but its results may be asked for."""
        self._write("DELETE FROM items WHERE number = ?", number)

    def forget_loose(self) -> None:
        """Nothing is under way: results that belong to no item are of no use."""
        self._write("DELETE FROM results WHERE item IS NULL OR item NOT IN (SELECT number FROM items)")

    def forget_results(self, numbers: Iterable[int]) -> None:
        """Nobody will ask for these results any more."""
        for number in numbers:
            self._write("DELETE FROM results WHERE number = ?", number)

    def flush(self) -> None:
        """Wait until everything is written that was said before."""
        written = threading.Event()
        self._writes.put(written.set)
        written.wait()

    def close(self) -> None:
        """Write what is left, and end the thread."""
        self._writes.put(None)
        self._thread.join()

    def _write(self, statement: str, *values: Any) -> None:
        self._writes.put((statement, values))

    # -- on the store's thread --------------------------------------------------------------------------------------

    def _write_all(self) -> None:
        """Write what has come since the last time, at once, until there is a ``None``."""
        due: float | None = None  # when what is written has to be on the disk
        with closing(self._connection) as connection:
            more = True
            while more:
                taken = self._taken(due)
                more = None not in taken
                statements = [each for each in taken if isinstance(each, tuple)]
                if statements:
                    self._write_together(connection, statements)
                    due = time.monotonic() + SYNC_EVERY if due is None else due
                for each in taken:
                    if callable(each):
                        each()
                if not more or (due is not None and time.monotonic() >= due):
                    self._sync(connection)
                    due = None

    def _taken(self, due: float | None) -> list[_Write]:
        """What waits to be written; nothing, if nothing comes until then."""
        try:
            taken = [self._writes.get(timeout=None if due is None else max(0.0, due - time.monotonic()))]
        except queue.Empty:
            return []
        while not self._writes.empty():
            taken.append(self._writes.get())
        return taken

    def _write_together(self, connection: sqlite3.Connection, statements: list[_Statement]) -> None:
        """Write statements, after those that could not be written before.

        Results may be lost, which are then paid for again. What is said of items may not: one that the host has would
        be begun again.
        """
        waiting, self._behind = [*self._behind, *statements], []
        try:
            with connection:
                for statement, values in waiting:
                    connection.execute(statement, values)
        except sqlite3.OperationalError as error:  # no room, or somebody holds the file
            self._tell(error)
            self._behind = [each for each in waiting if not each[0].startswith(_PUT_RESULT)]
        except (sqlite3.Error, OverflowError) as error:  # a value that cannot be kept, as it is too big
            self._tell(error)
            if len(waiting) > 1:
                for each in waiting:
                    self._write_together(connection, [each])

    def _sync(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.Error as error:
            self._tell(error)

    def _tell(self, error: Exception) -> None:
        if not self._lost:
            self._lost = True
            logger.warning(
                "Finished calls cannot be kept in %s (%s): if the process is killed, those of proposals under way are "
                "paid for again. The run goes on; this is said once.",
                self._path,
                error,
            )


def filesystem(path: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """The type of a path's file system, such as ``ext4`` or ``nfs4``; empty where the system does not say."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    resolved = path.resolve()
    found = "", ""
    for line in lines:
        _, point, kind = (*line.split(" "), "", "", "")[:3]
        at = Path(point.replace("\\040", " "))
        if point and at in (resolved, *resolved.parents) and len(point) >= len(found[0]):
            found = point, kind
    return found[1]
