"""The progress line: one line on standard error, redrawn on a terminal, and every 30 seconds without one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from rich.live import Live

    from flashevolve_plugins._snapshot import Snapshot

QUIET_SECONDS = 30.0  # between two lines where there is no terminal

_hookimpl = pluggy.HookimplMarker("flashevolve")


def describe(snapshot: Snapshot, *, left: bool = True) -> str:
    """A run in one line: calls of budget, best score and gain, busy slots, accepted, time left unless it has ended."""
    parts = [f"{snapshot.spent} calls" if snapshot.budget is None else f"{snapshot.spent}/{snapshot.budget} calls"]
    if snapshot.feedback_calls:
        parts[0] += f" (+{snapshot.feedback_calls} for feedback)"
    if snapshot.best_score is not None and snapshot.seed_score is not None:
        parts.append(f"best {snapshot.best_score:.3f} ({snapshot.best_score - snapshot.seed_score:+.3f})")
    parts.append(f"{snapshot.busy.get(snapshot.entry, 0)}/{snapshot.slots.get(snapshot.entry, 0)} slots busy")
    merged, discarded = (snapshot.ended.get(terminal, 0) for terminal in ("merged", "discarded"))
    told = [f"{merged} merged"] * bool(merged) + [f"+{discarded} discarded"] * bool(discarded)
    told += [f"{snapshot.queued} waiting"] * bool(snapshot.queued)
    more = f" ({', '.join(told)})" if told else ""
    parts.append(f"{snapshot.accepted} accepted of {snapshot.proposals}{more}")
    if workers := _workers(snapshot):
        parts.append(workers)
    if snapshot.abandoned:
        parts.append(f"{snapshot.abandoned} calls abandoned")
    if left and snapshot.outage:
        parts.append(f"server not answering for {_duration(snapshot.outage)}: {snapshot.outage_reason}")
    elif left and snapshot.budget is not None and 0 < snapshot.spent < snapshot.budget:
        seconds = snapshot.seconds * (snapshot.budget - snapshot.spent) / snapshot.spent
        parts.append(f"{_duration(seconds)} left")
    return "flash: " + " | ".join(parts)


def _workers(snapshot: Snapshot) -> str:
    """At work of how many, in the stages that have a cap and have had work."""
    told = [
        f"{stage} {snapshot.at_work.get(stage, 0)}/{most}"
        for stage, most in snapshot.workers.items()
        if most is not None and (snapshot.at_work.get(stage) or snapshot.finished.get(stage))
    ]
    return f"workers {', '.join(told)}" if told else ""


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"


class ProgressLine:
    """An observer like any third party's."""

    def __init__(self) -> None:
        self._live: Live | None = None
        self._next = QUIET_SECONDS

    @_hookimpl
    def flashevolve_stage_started(self) -> None:
        """Take the terminal before the first sample runs: a sample may put streams of its own in place of the two."""
        if self._live is None and self._on_terminal():
            self._draw("flash:")

    @_hookimpl
    def flashevolve_snapshot(self, snapshot: Snapshot) -> None:
        """Draw the line."""
        if self._on_terminal():
            self._draw(describe(snapshot))
        elif snapshot.seconds >= self._next:
            self._next = snapshot.seconds + QUIET_SECONDS
            print(describe(snapshot), file=sys.stderr, flush=True)

    @_hookimpl
    def flashevolve_run_finished(self, snapshot: Snapshot) -> None:
        """Leave the last line standing."""
        line = f"{describe(snapshot, left=False)} | ended after {_duration(snapshot.seconds)}"
        if self._on_terminal():
            self._draw(line, whole=True)
        else:
            print(line, file=sys.stderr, flush=True)
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _on_terminal(self) -> bool:
        """Whether lines are drawn; once they are, rich may have put something of its own in place of the stream."""
        return self._live is not None or sys.stderr.isatty()

    def _draw(self, line: str, *, whole: bool = False) -> None:
        from rich.console import Console  # noqa: PLC0415 - only where there is a terminal
        from rich.live import Live  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        if self._live is None:
            self._live = Live(console=Console(stderr=True), auto_refresh=False)
            self._live.start()
        text = Text(line) if whole else Text(line, no_wrap=True, overflow="ellipsis")
        self._live.update(text, refresh=True)
