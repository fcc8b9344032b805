"""The bodies of items: a turn from its sample to the playbook, a curation of several lessons, and what runs beside."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._model import Discarded, Evidence, Outcome, Patch, Sample, Stage, Terminal
from flashevolve_plugins.adapters.ace.host import APPLY, CURATE, EMBED, HOLD, LOCAL, Delta

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from flashevolve_plugins._bodies import Body
    from flashevolve_plugins.adapters.ace.host import Call, Calls, Extra, Lesson, PlaybookHost, Turn, View
    from flashevolve_plugins.adapters.ace.session import Session


def turn_body(session: Session, number: int, turn: Turn) -> Body:
    """Take one turn: generate, reflect, wait with other lessons if there is a merge queue, curate, apply."""
    lesson: Lesson = (yield from _calls(session, session.host.learn(turn)))[0]
    if session.holds and lesson.curated:
        session.hold(number, lesson)
        yield Stage(HOLD, (), holds=True, evidence=Evidence(None, session.view.version, feedback=lesson.insight))
    return (yield from _curated(session, number, [lesson], alone=True))


def merge_body(session: Session, number: int, lessons: Sequence[Lesson]) -> Body:
    """Curate several lessons in one call."""
    return (yield from _curated(session, number, lessons, alone=False))


def extra_body(extra: Extra) -> Body:
    """Run calls that change nothing, all at once."""
    samples = tuple(
        Sample(partial(each.function, None), each.resource, cost=each.cost, seconds=each.seconds, catches=True)
        for each in extra.calls
    )
    results = yield Stage(extra.calls[0].stage, samples, judged=False)
    extra.finish(results)
    return Outcome(Terminal.SKIPPED, extra.name)


class _Reading:
    """A call of a role, which is given the playbook as it is when the call begins.

    Args:
        session: the run.
        call: the call.
    """

    def __init__(self, session: Session, call: Call) -> None:
        self._session, self._call = session, call
        self._view: View | None = None

    def sample(self) -> Sample:
        """The call as a sample."""
        seconds = None if self._call.seconds is None else self._seconds
        return Sample(self._run, self._call.resource, cost=self._call.cost, seconds=seconds)

    def _seconds(self) -> float:
        """How long it takes in virtual time, where this is asked as the call begins, and the rest done as it ends."""
        assert self._call.seconds is not None  # noqa: S101 - else nobody asks
        self._view = self._session.view
        return self._call.seconds()

    def _run(self) -> tuple[View, Any]:
        view = self._view or self._session.view
        return view, self._call.function(view.playbook)


def _calls(session: Session, calls: Calls) -> Generator[Stage, list[Any], tuple[Any, View]]:
    """Make a host's calls one after the other. Gives what they came to, and the playbook that was read last."""
    given: Any = None
    view = session.view
    while True:
        try:
            call = calls.send(given)
        except StopIteration as end:
            return end.value, view
        settles = call.stage in {CURATE, EMBED}  # what it takes from here is soon in the playbook
        ((seen, given),) = yield Stage(call.stage, (_Reading(session, call).sample(),), judged=False, settles=settles)
        view = seen if call.reads else view


def _curated(
    session: Session, number: int, lessons: Sequence[Lesson], *, alone: bool
) -> Generator[Stage, list[Any], Outcome]:
    """Curate, and apply what the curator says; the policy judges what would change what has changed since it looked."""
    host = session.host
    delta, view = yield from _calls(session, host.curate(lessons))
    seen = {target: view.entries.get(target) for each in delta.operations if (target := host.target(each)) is not None}
    while alone and (stale := _stale(host, delta, seen)):  # a policy with a merge queue judges nothing stale
        now = host.entries()
        try:
            yield _question(session, lessons, stale, view)
        except Patch as patch:
            rest = [each for each in delta.operations if each not in stale]
            delta = Delta([*rest, *_patched(host, stale, patch.artifact, now)], delta.counters)
        except Discarded:
            late = _stale(host, delta, seen)  # with what has changed during the judgement
            session.apply(number, lessons, Delta([op for op in delta.operations if op not in late], delta.counters))
            raise
        seen.update((target, now.get(target)) for each in stale if (target := host.target(each)) is not None)
    changed = session.apply(number, lessons, delta)
    return Outcome(Terminal.COMMITTED) if changed or not alone else Outcome(Terminal.SKIPPED, "nothing to learn")


def _stale(host: PlaybookHost, delta: Delta, seen: Mapping[str, str | None]) -> list[Any]:
    """The operations on entries that no longer say what they said when they were seen."""
    now = host.entries()
    return [
        each
        for each in delta.operations
        if (target := host.target(each)) is not None and now.get(target) != seen.get(target)
    ]


def _patched(
    host: PlaybookHost, stale: Sequence[Any], artifact: Mapping[str, str], now: Mapping[str, str]
) -> list[Any]:
    """What gives the entries of stale operations the texts of a patch."""
    targets = dict.fromkeys(filter(None, map(host.target, stale)))
    return [host.changing(each, artifact.get(each, "")) for each in targets if artifact.get(each) != now.get(each)]


def _question(session: Session, lessons: Sequence[Lesson], stale: Sequence[Any], view: View) -> Stage:
    """The stage before which the policy judges operations on entries that have changed since they were read."""
    host = session.host
    texts = {target: host.text(each) for each in stale if (target := host.target(each)) is not None}
    artifact = {**view.entries, **texts}
    feedback = "\n".join(each.insight for each in lessons)
    evidence = Evidence(artifact, view.version, feedback=feedback)
    return Stage(APPLY, (Sample(lambda: None, LOCAL),), evidence=evidence, version=view.version)
