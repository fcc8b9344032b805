"""Runs ACE on one task, and measures it; the same in virtual time and through a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flashevolve_plugins._errors import UsageError
from flashevolve_plugins.benchmarks.bench.ace_cells import AceRecord, Moment
from flashevolve_plugins.benchmarks.bench.ace_tasks import host_task
from flashevolve_plugins.benchmarks.bench.observer import shares
from flashevolve_plugins.benchmarks.bench.rivals import SEQUENTIAL, parse
from flashevolve_plugins.benchmarks.bench.versions import versions

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashevolve_plugins import Flash
    from flashevolve_plugins.benchmarks.bench.ace_cells import AceKey
    from flashevolve_plugins.benchmarks.bench.ace_tasks import Questions
    from flashevolve_plugins.benchmarks.playbook_landscape import PlaybookLandscape


def flash_options(key: AceKey) -> dict[str, Any] | None:
    """Options of ``Flash`` for a run, or ``None`` for the host's own.

    Raises:
        UsageError: a rival that ACE does not have.
        UnknownNameError: a rival that nobody has.
    """
    rival = parse(key.rival)
    if rival.flash is not None:
        return {"max_concurrency": key.cell.slots, **rival.flash}
    if key.rival != SEQUENTIAL:
        raise UsageError(f"--rivals {key.rival}: ACE has {SEQUENTIAL}, its own loop, and every policy of flash.")
    return None


class Watch:
    """One run of ``adapt_offline``, and what is noted of it.

    Args:
        key: which run.
        landscape: what a playbook is worth.
        asked: the questions.
        host: the ``ACE``.
        now: the clock, in seconds.
    """

    def __init__(
        self, key: AceKey, landscape: PlaybookLandscape, asked: Questions, host: Any, now: Callable[[], float]
    ) -> None:
        self._key, self._landscape, self._asked, self._host, self._now = key, landscape, asked, host, now
        self._start = now()
        self.curve = [Moment(0.0, 0, self._score())]

    def run(self) -> None:
        """Train."""
        self._start = self._now()
        self._host.adapt_offline(host_task("train", self._asked.train, self._landscape), callback=self._told)

    def _told(self, record: Any) -> None:
        del record
        self.curve.append(Moment(self._now() - self._start, len(self.curve), self._score()))

    def _texts(self) -> list[str]:
        return [bullet.content for bullet in self._host.playbook]

    def _score(self) -> float:
        return self._landscape.true_score(self._texts(), self._asked.val)

    def record(self, flash: Flash | None, *, seconds: float, calls: int, tokens: int, busy: float) -> AceRecord:
        """What the run did, and how its playbook does on the validation questions."""
        texts, last = self._texts(), None if flash is None else flash.last_run
        tokens_of_playbook = self._host.playbook.approx_tokens()
        workers = self._key.cell.slots if self._key.clock == "server" else 1
        validation = self._host.evaluate(host_task("val", self._asked.val, self._landscape), max_workers=workers)
        return AceRecord(
            key=self._key,
            seconds=seconds,
            calls=calls,
            tokens=tokens,
            busy=busy,
            window_busy=None if last is None else last.window_busy.get("task"),
            validation=validation.accuracy / 100,
            entries=len(texts),
            duplicates=self._landscape.duplicate_share(texts),
            distractors=sum(self._landscape.is_distractor(self._landscape.advice(text).code) for text in texts),
            playbook_tokens=tokens_of_playbook,
            curve=self.curve,
            staleness={} if last is None else dict(last.staleness),
            ended={} if last is None else dict(last.ended),
            stages={} if last is None else shares(last.sample_seconds),
            versions=versions("ace-playbook"),
        )
