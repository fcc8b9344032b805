"""The command ``flashevolve items``: what became of each item of a run, and why."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import textwrap
from collections import Counter
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._audit import FILE, read_items
from flashevolve_plugins._errors import UnknownNameError, UsageError
from flashevolve_plugins._model import Terminal
from flashevolve_plugins._redact import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from flashevolve_plugins._audit import RecordedRun

HEAD = ("item", "terminal", "stale", "calls", "scores", "into", "reason")
RIGHT = {"item", "stale", "calls", "into"}


def main(arguments: list[str]) -> int:
    """Run the command.

    Args:
        arguments: those after ``flashevolve items``.

    Returns:
        The exit code.

    Raises:
        UsageError: there is nothing to read, or an option that cannot work.
    """
    parser = argparse.ArgumentParser(
        prog="flashevolve items", description="What became of each proposal of a run under flash, and why."
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", help="the run's run_dir (dspy: log_dir)")
    parser.add_argument("--terminal", metavar="NAMES", help="only those that ended so, separated by commas")
    parser.add_argument("--text", metavar="WORDS", help="only those whose proposed text has these words in a row")
    parser.add_argument("--run", type=int, metavar="N", help="only the run of that number, where it was resumed")
    parser.add_argument("--item", type=int, metavar="N", help="everything about the item of that number")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args(arguments)
    terminals = _terminals(options.terminal)
    runs, unread = read_items(options.run_dir)
    if unread:
        lines = "1 line" if unread == 1 else f"{unread} lines"
        sys.stderr.write(f"flashevolve: {lines} of {FILE} cannot be read, as after a crash, and left out.\n")
    if options.run is not None and not 0 < options.run <= len(runs):
        raise UsageError(f"There is no run {options.run} in {options.run_dir!r}: it holds {len(runs)}.")
    chosen = [
        (run, [item for item in run.items if _matches(item, options.item, terminals, options.text)])
        for run in runs
        if options.run in (None, run.number)
    ]
    if options.item is not None and not any(options.item == item["item"] for run, _ in chosen for item in run.items):
        raise UsageError(
            f"There is no item {options.item}: it has not ended, or a policy's question to a model took the number."
        )
    if options.json:
        return _print(json.dumps({"run": run.number, **item}) for run, items in chosen for item in items)
    if not any(items for _, items in chosen):
        return _print([f"None of {sum(len(run.items) for run, _ in chosen)} items matches."])
    if options.item is not None:
        return _print(line for run, items in chosen for item in items for line in _details(item, run))
    return _print(line for run, items in chosen if items for line in _section(run, items))


def _terminals(names: str | None) -> frozenset[str]:
    known = [each.value for each in Terminal]
    chosen = [name.strip() for name in names.split(",")] if names is not None else known
    for name in chosen:
        if name not in known:
            raise UnknownNameError("terminal", name, known)
    return frozenset(chosen)


def _matches(item: Mapping[str, Any], number: int | None, terminals: frozenset[str], words: str | None) -> bool:
    return (
        number in (None, item["item"])
        and item["terminal"] in terminals
        and (words is None or any(_plain(words) in _plain(text) for text in _proposed(item)))
    )


def _plain(text: str) -> str:
    """A text without what gets lost when it is pasted."""
    return " ".join(text.split()).casefold()


def _proposed(item: Mapping[str, Any]) -> Iterator[str]:
    """The texts that an item proposed."""
    for each in (item, *item.get("entries", ())):
        yield from each.get("changed", {}).values()


# -- the table ----------------------------------------------------------------------------------------------------


def _section(run: RecordedRun, items: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [HEAD, *(_row(item) for item in items)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    terminal = shutil.get_terminal_size(fallback=(0, 0)).columns  # 0 where there is none: nothing is cut
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if name in RIGHT else cell.ljust(width)
            for cell, width, name in zip(row, widths, HEAD, strict=True)
        ]
        line = "  ".join(cells).rstrip()
        lines.append(line if not terminal or len(line) <= terminal else f"{line[: terminal - 1]}…")
    return [_title(run, len(items)), *lines, ""]


def _title(run: RecordedRun, shown: int) -> str:
    header, ends = run.header, Counter(item["terminal"] for item in run.items)
    of = f"{shown} of {len(run.items)}" if shown < len(run.items) else str(shown)
    return (
        f"Run {run.number} ({header.get('host')}, policy {header.get('policy')}, started {header.get('started')}): "
        f"{of} items; in all {sum(item.get('calls', 0) for item in run.items)} calls, "
        f"{', '.join(f'{count} {name}' for name, count in ends.most_common())}"
    )


def _row(item: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        str(item["item"]),
        item["terminal"],
        str(item.get("staleness", "")),
        str(item.get("calls", "")),
        _scores(item),
        str(item.get("merged_into", "")),
        " ".join(_why(item).split()),
    )


def _scores(item: Mapping[str, Any]) -> str:
    if "after" not in item:
        return ""
    before, after = (sum(each for each in item.get(name, ()) if each is not None) for name in ("before", "after"))
    return f"{before:.4g} -> {after:.4g}"


def _why(item: Mapping[str, Any]) -> str:
    parts = [f"merge of {', '.join(map(str, item['members']))}"] if "members" in item else []
    entries = item.get("entries", ())
    if len(entries) > 1:
        parts.append(f"pool versions {entries[0]['version']} to {entries[-1]['version']}")
    elif entries:
        parts.append(_entered(entries[0]))
    return "; ".join([*parts, *([item["reason"]] if "reason" in item else [])])


def _entered(entry: Mapping[str, Any]) -> str:
    score = entry.get("score")
    return f"pool version {entry['version']}" + ("" if score is None else f", validation score {score:.4g}")


# -- one item -----------------------------------------------------------------------------------------------------


def _details(item: Mapping[str, Any], run: RecordedRun) -> Iterator[str]:
    yield f"Item {item['item']} of run {run.number} ({run.header.get('host')}, policy {run.header.get('policy')})"
    yield _fact("terminal", item["terminal"])
    for name in ("reason", "error"):
        if name in item:
            yield _fact(name, item[name])
    yield _fact("born at", f"pool version {item.get('version')}")
    yield _fact("staleness", f"{item.get('staleness')} when its validation began, or when it ended without one")
    yield _fact("spent", f"{item.get('calls')} metric calls, {item.get('started')} s to {item.get('ended')} s")
    yield _fact("moves", ", ".join(item.get("story", ())))
    for check in item.get("checks", ()):
        reason = f": {check['reason']}" if check.get("reason") else ""
        yield _fact("check", f"before {check['stage']}, stale by {check['staleness']}: {check['verdict']}{reason}")
    yield from _gate(item)
    yield from _relations(item, {each["item"]: each for each in run.items})
    yield from _changes(item)
    if "feedback" in item:
        yield from _block("feedback that led to it", item["feedback"])
    yield ""


def _gate(item: Mapping[str, Any]) -> Iterator[str]:
    if "parent" in item:
        yield _fact("parent", f"pool version {item['parent']}")
    if "after" in item:
        yield _fact("scores", f"{_scores(item)}, summed over the examples of its gate")
        for name, before, after in zip(item.get("examples", ()), item.get("before", ()), item["after"], strict=False):
            yield _fact("", f"example {name}: {before} -> {after}")
    if "stopped_scores" in item:
        yield _fact("stopped", f"with scores of {len(item['stopped_scores'])} examples")
        for name, score in zip(item.get("stopped_examples", ()), item["stopped_scores"], strict=False):
            yield _fact("", f"example {name}: {score}")


def _relations(item: Mapping[str, Any], others: Mapping[int, Mapping[str, Any]]) -> Iterator[str]:
    for number in item.get("members", ()):
        yield _fact("member", _ending(number, others))
    if "merged_into" in item:
        yield _fact("merged into", _ending(item["merged_into"], others))
    for entry in item.get("entries", ()):
        origin = f", from {', '.join(map(str, entry['parents']))}" if entry.get("parents") else ""
        yield _fact("entered", f"{_entered(entry)}{origin}")
        yield from _changes(entry)


def _ending(number: int, others: Mapping[int, Mapping[str, Any]]) -> str:
    """What became of another item."""
    if number not in others:
        return f"item {number}"
    other = others[number]
    if "merged_into" in other:
        return f"item {number}, merged into {other['merged_into']}"
    why = _why(other)
    return f"item {number}, {other['terminal']}" + (f": {why}" if why else "")


def _changes(changed: Mapping[str, Any]) -> Iterator[str]:
    for name, text in changed.get("changed", {}).items():
        yield from _block(f"new text of {name}", text)


def _fact(name: str, text: str) -> str:
    return f"  {name:<12}{' '.join(text.split())}".rstrip()


def _block(title: str, text: str) -> Iterator[str]:
    yield f"  {title}"
    yield from (textwrap.indent(line, "    ") for line in text.split("\n"))


def _print(lines: Iterable[str]) -> int:
    encoding = sys.stdout.encoding or "utf-8"
    try:
        for line in lines:
            shown = visible(line)  # texts of models are data, also for a terminal
            sys.stdout.write(shown.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # as before head; what is left to flush at exit goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
