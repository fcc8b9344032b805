"""The records of a run's items on disk: one JSON line each, appended as the item ends. ``_items_view`` prints them."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime, timezone
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

from flashevolve_plugins._errors import UsageError
from flashevolve_plugins._redact import redact, redacted

if TYPE_CHECKING:
    from flashevolve_plugins._flash import Flash
    from flashevolve_plugins._model import Evidence, ItemRecord, PoolEntry

FILE = "flashevolve_items.jsonl"
SCHEMA = 1
LONGEST_FEEDBACK = LONGEST_REASON = 4_000  # characters
LONGEST_NAME = 200

logger = logging.getLogger("flashevolve_plugins")
_hookimpl = pluggy.HookimplMarker("flashevolve")


def with_item_file(flash: Flash, run_dir: str | None, *, host: str) -> Flash:
    """The settings for one run, whose items are recorded in its directory if it has one.

    Args:
        flash: the settings.
        run_dir: the run's directory, if the host has one; else that of the settings.
        host: the host, and what it runs, for the reader.
    """
    run_dir = run_dir or flash.run_dir
    if run_dir is None or flash.record is False:
        return flash
    policy = flash.staleness if isinstance(flash.staleness, str) else type(flash.staleness).__name__
    header = {"schema": SCHEMA, "started": _now(), "host": host, "policy": policy}
    recording = copy(flash)
    recording.plugins = (*flash.plugins, ItemFile(run_dir, header, scores_only=flash.record == "scores"))
    return recording


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


class ItemFile:
    """An observer like any third party's.

    What cannot be written is told once, and the run goes on.

    Args:
        run_dir: the run's directory.
        header: the line that begins the run.
        scores_only: leave out every word of prompts, feedback, reasons, errors and examples.
    """

    def __init__(self, run_dir: str, header: Mapping[str, Any], *, scores_only: bool = False) -> None:
        self._scores_only = scores_only
        self._path = Path(run_dir) / FILE
        self._header = header
        self._pool: dict[int, PoolEntry] = {}
        self._begun = self._reported = self._unsynced = False

    @_hookimpl
    def flashevolve_pool_updated(self, entry: PoolEntry) -> None:
        """Keep what items are compared with."""
        self._pool[entry.version] = entry

    @_hookimpl
    def flashevolve_item_ended(self, record: ItemRecord) -> None:
        """Append the record."""
        try:
            if not self._begun:
                _append(self._path, self._header)
                self._begun = True
            line = self._line(record)
            _append(self._path, _without_words(line) if self._scores_only else redacted(line))
            self._unsynced = True
        except Exception as error:  # noqa: BLE001 - a full disk or an odd text must not stop the run
            if not self._reported:
                self._reported = True
                logger.warning(
                    "Item %s cannot be recorded in %s (%s: %s). The run goes on; this is said once.",
                    record.number,
                    self._path,
                    type(error).__name__,
                    error,
                )

    @_hookimpl
    def flashevolve_snapshot(self) -> None:
        """Twice a second: see that what was appended survives the machine, too."""
        if self._unsynced:
            self._unsynced = False
            with suppress(OSError), self._path.open("ab") as file:
                os.fsync(file.fileno())

    @_hookimpl
    def flashevolve_run_finished(self) -> None:
        """The last records."""
        self.flashevolve_snapshot()

    def _line(self, record: ItemRecord) -> dict[str, Any]:
        line = {
            "item": record.number,
            "terminal": record.terminal.value,
            "reason": _cut(record.reason, LONGEST_REASON),
            "version": record.version,
            "staleness": record.staleness,
            "calls": record.spent,
            "started": round(record.started, 3),
            "ended": round(record.ended, 3),
            "story": record.story,
            "error": _cut("" if record.error is None else f"{type(record.error).__name__}: {record.error}"),
            "checks": [
                {
                    "stage": each.stage,
                    "staleness": each.staleness,
                    "verdict": each.verdict.value,
                    "reason": _cut(each.reason, LONGEST_REASON),
                }
                for each in record.checks
            ],
            "members": record.members,
            "merged_into": record.merged_into,
            **({} if record.evidence is None else self._evidence(record.evidence)),
            "entries": [self._entry(self._pool[version], record.evidence) for version in record.entries],
            "stopped_scores": [_number(each) for each in record.partial.values()],
            "stopped_examples": [_name(each) for each in record.partial],
        }
        return {name: value for name, value in line.items() if value not in (None, "", (), [], {})}

    def _evidence(self, evidence: Evidence) -> dict[str, Any]:
        return {
            "parent": evidence.parent,
            "changed": self._changed(evidence.artifact, evidence.parent),
            "before": [_number(each) for each in evidence.before],
            "after": [_number(each) for each in evidence.after],
            "examples": [_name(each) for each in evidence.examples],
            "feedback": _cut(evidence.feedback, LONGEST_FEEDBACK),
        }

    def _entry(self, entry: PoolEntry, evidence: Evidence | None) -> dict[str, Any]:
        line: dict[str, Any] = {"version": entry.version, "score": _number(entry.score), "parents": entry.parents}
        if evidence is None or evidence.artifact != entry.artifact:
            line["changed"] = self._changed(entry.artifact, entry.parents[0] if entry.parents else None)
        return line

    def _changed(self, artifact: Any, parent: int | None) -> dict[str, str]:
        """What of an artifact differs from its parent: component name to its whole text."""
        if artifact is None:
            return {}
        if not isinstance(artifact, Mapping):
            return {"artifact": _text(artifact)}
        before = self._pool[parent].artifact if parent in self._pool else {}
        return {str(name): _text(text) for name, text in artifact.items() if name not in before or before[name] != text}


#: What of a record holds words of prompts, examples, models or users.
WORDS = ("reason", "story", "feedback", "changed", "examples", "stopped_examples")


def _without_words(line: Mapping[str, Any]) -> dict[str, Any]:
    """A record without any text that is not ours: of an error its type."""
    kept = {name: value for name, value in line.items() if name not in WORDS}
    if "error" in kept:
        kept["error"] = kept["error"].partition(":")[0]
    for name in ("checks", "entries"):
        if name in kept:
            kept[name] = [{field: value for field, value in each.items() if field not in WORDS} for each in kept[name]]
    return kept


def _append(path: Path, line: Mapping[str, Any]) -> None:
    """Append a line, on a line of its own also where the last one was cut off, and hand it to the system."""
    text = json.dumps(line, ensure_ascii=False, separators=(",", ":"))
    data = text.encode("utf-8", "backslashreplace") + b"\n"  # a lone surrogate is written as JSON escapes it
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.seek(0, 2):
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                data = b"\n" + data
        file.write(data)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def _name(value: Any) -> str | int:
    """An example's name."""
    return value if isinstance(value, int) else _cut(_text(value))


def _number(score: Any) -> float | None:
    try:
        number = float(score)
    except (TypeError, ValueError):
        return None
    return None if isnan(number) else number


def _cut(text: Any, longest: int = LONGEST_NAME) -> str:
    text = str(text)
    text = redact(text) if len(text) > longest else text  # before a secret is cut in two
    return text if len(text) <= longest else f"{text[:longest]}[cut]"


@dataclass(frozen=True)
class RecordedRun:
    """One run of a file.

    Args:
        number: counted from 1 in the file.
        header: what was said of it when it began.
        items: its records, in the order in which the items ended.
    """

    number: int
    header: Mapping[str, Any]
    items: list[dict[str, Any]] = field(default_factory=list)


def read_items(run_dir: str) -> tuple[list[RecordedRun], int]:
    """Read what a directory's runs recorded.

    Args:
        run_dir: the directory.

    Returns:
        The runs, oldest first, and the number of lines that could not be read.

    Raises:
        UsageError: there is nothing to read, or a newer version wrote it.
    """
    path = Path(run_dir) / FILE
    if not path.parent.is_dir():
        raise UsageError(f"There is no directory {run_dir!r}: give the run_dir of a run (dspy's log_dir).")
    if not path.is_file():
        raise UsageError(
            f"There is no {FILE} in {run_dir!r}: a run under flash with this run_dir (dspy's log_dir) writes it."
        )
    runs: list[RecordedRun] = []
    unread = 0
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be read ({error.strerror}): make it readable.") from error
    for line in filter(None, lines):
        told = _parsed(line)
        if "schema" in told:
            if told["schema"] != SCHEMA:
                raise UsageError(
                    f"{str(path)!r} has schema {told['schema']}, and this version reads {SCHEMA}: "
                    "install the version of flashevolve-plugins that wrote it."
                )
            runs.append(RecordedRun(len(runs) + 1, told))
        elif "item" in told and "terminal" in told and runs:
            runs[-1].items.append(told)
        else:
            unread += 1
    return runs, unread


def _parsed(line: bytes) -> dict[str, Any]:
    """The line's object, empty where it holds none."""
    try:
        told = json.loads(line)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}
