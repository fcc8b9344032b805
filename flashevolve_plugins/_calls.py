"""The samples under way, each over all of its tries: when one starts, is tried again, is abandoned, is given up."""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from flashevolve_plugins._errors import BackendError
from flashevolve_plugins._failures import KEPT, TIMEOUT, Failure, infrastructure, message_of
from flashevolve_plugins._governor import LEAST_FAILURES, Governor
from flashevolve_plugins._timers import Timers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from flashevolve_plugins._model import Patience, Sample, Stage

MOST_TRIES = 8  # of a sample that fails while others of its resource succeed
LEAST_STRIKES = 4  # of its tries failed after a success of another; what failed in an outage tells nothing of it
MOST_TIMEOUTS = 3  # of a sample that passes its deadline
SHOWN_AFTER = 1.0  # seconds; a shorter outage is not worth a word


#: Key, index, result, what it raised, seconds it took. The key is its call's.
End: TypeAlias = "tuple[int, int, Any, BaseException | None, float]"


class Call:
    """One sample under way."""

    __slots__ = (
        "began",
        "error",
        "failed",
        "index",
        "item",
        "key",
        "runs",
        "sample",
        "stage",
        "strikes",
        "timeouts",
        "tries",
    )

    def __init__(self, item: int, index: int, stage: Stage, sample: Sample, key: int | None = None) -> None:
        self.item, self.index, self.stage, self.sample = item, index, stage, sample
        #: What the driver knows it by, with its index. It stays when the call's item changes, as for a tail.
        self.key = item if key is None else key
        self.tries = self.timeouts = self.strikes = 0
        self.runs = False
        self.began = 0.0
        #: When it failed last, and what it raised then.
        self.failed: float | None = None
        self.error: BaseException | None = None


@dataclass(frozen=True)
class Carrier:
    """What a driver does for its calls.

    Args:
        now: the driver's clock.
        begin: let a try of a sample run: item, index, sample.
        abandon: wait no more for the try of this item and index. When it returns, :meth:`Calls.came_back` is told.
        slots_left: abandoned calls leave a resource so many slots.
        wanted: whether anything would come of a further try.
        ending: whether nothing waits for a slot, and nothing more will be offered.
        over: a sample is over: with its result, what it raised, the seconds of its last try; and, if it never got an
            answer, why.
    """

    now: Callable[[], float]
    begin: Callable[[int, int, Sample], None]
    abandon: Callable[[int, int], None]
    slots_left: Callable[[str, int], None]
    wanted: Callable[[Call], bool]
    ending: Callable[[], bool]
    over: Callable[[Call, Any, BaseException | None, float, Failure | None], None]


class Calls:
    """The samples under way of one run.

    Args:
        carrier: the driver.
        slots: resource name to its number of slots.
        patience: how long to wait for servers; ``None`` where nothing is ever tried again.
    """

    def __init__(self, carrier: Carrier, slots: Mapping[str, int], patience: Patience | None) -> None:
        self._carrier, self._patience = carrier, patience
        self._deadline = None if patience is None else patience.sample_timeout
        self._calls: dict[tuple[int, int], Call] = {}  # by key and index
        self.slots = dict(slots)
        self._running = dict.fromkeys(slots, 0)
        self._under_way = dict.fromkeys(slots, 0)
        #: Resource name to calls that were abandoned and have not returned.
        self.lost: Counter[str] = Counter()
        self._ready: dict[str, deque[Call]] = {}  # waits for a slot that no abandoned call holds
        self._governors: dict[str, Governor] = {}
        self._answered: set[str] = set()
        self._random = random.Random(0)
        self.timers = Timers()
        self.retries = 0
        self.failures: Counter[str] = Counter()

    # -- a sample's way ---------------------------------------------------------------------------------------------

    def begin(self, call: Call) -> None:
        """A sample has its slot."""
        self._calls[call.key, call.index] = call
        self._under_way[call.sample.resource] += 1
        self._start(call)

    def _start(self, call: Call) -> None:
        """Let a try begin, as soon as the resource's server and its slots permit."""
        resource = call.sample.resource
        governor = self._governors.get(resource)
        if governor is not None and (hold := governor.hold(self._carrier.now())) > 0:
            self._later(hold, call)
        elif self.lost and self._running[resource] + self.lost[resource] >= self.slots[resource]:
            self._ready.setdefault(resource, deque()).append(call)
        else:
            self._run(call)

    def _run(self, call: Call) -> None:
        self._running[call.sample.resource] += 1
        call.tries += 1
        call.runs = True
        call.began = self._carrier.now()
        if self._deadline is not None:
            self.timers.add(call.began + self._deadline, partial(self._passed, call, call.tries))
        self._carrier.begin(call.key, call.index, call.sample)

    def _later(self, seconds: float, call: Call) -> None:
        self.timers.add(self._carrier.now() + seconds, partial(self._again, call))

    def _again(self, call: Call) -> None:
        if self._calls.get((call.key, call.index)) is not call:
            return  # cancelled meanwhile
        if call.error is None or self._carrier.wanted(call):
            self._start(call)
        else:
            self._over(call, None, call.error, 0.0, Failure("", message_of(call.error)))

    def ended(self, key: int, index: int, result: Any, error: BaseException | None, seconds: float) -> None:
        """A try has ended: the sample is over, or will be tried again."""
        call = self._calls[key, index]
        resource = call.sample.resource
        call.runs = False
        self._running[resource] -= 1
        failure = None if error is None or self._patience is None else infrastructure(error)
        if failure is None or error is None:
            if error is None:
                self._succeeded(resource)
            self._over(call, result, error, seconds, None)
        else:
            self._failed(call, error, failure, seconds)
        if self.lost:
            self._fill(resource)

    def hand_over(self, key: int, indices: Iterable[int], item: int) -> None:
        """These samples, as far as they have not ended, belong to another item from now on."""
        for index in indices:
            if self.has(key, index):
                self._calls[key, index].item = item

    def has(self, key: int, index: int) -> bool:
        """Whether a sample is under way."""
        return (key, index) in self._calls

    def cancel(self, key: int, index: int) -> Call | None:
        """End a sample that waits for its next try; ``None`` if it runs."""
        call = self._calls[key, index]
        if call.runs:
            return None
        self._forget(call)
        return call

    def _over(self, call: Call, result: Any, error: BaseException | None, seconds: float, gone: Failure | None) -> None:
        self._forget(call)
        self._carrier.over(call, result, error, seconds, gone)

    def _forget(self, call: Call) -> None:
        del self._calls[call.key, call.index]
        self._under_way[call.sample.resource] -= 1

    # -- failures ---------------------------------------------------------------------------------------------------

    def _succeeded(self, resource: str) -> None:
        governor = self._governors.get(resource)
        if governor is None:
            self._answered.add(resource)
        else:
            governor.success(self._carrier.now())

    def _failed(self, call: Call, error: BaseException, failure: Failure, seconds: float) -> None:
        now, governor = self._carrier.now(), self._governor(call.sample.resource)
        self.failures[failure.kind] += 1
        if governor.began is None:
            self.timers.add(now + governor.max_outage, partial(self._check, governor))
        governor.failed(now, (call.key, call.index), failure)
        call.strikes += call.failed is not None and governor.succeeded >= call.failed
        call.error, call.failed = error, now
        self._check(governor)
        if (call.key, call.index) not in self._calls:
            return
        enough = call.tries >= MOST_TRIES and call.strikes >= LEAST_STRIKES
        if enough or call.timeouts >= MOST_TIMEOUTS or not self._carrier.wanted(call):
            self._over(call, None, error, seconds, failure)
            return
        self.retries += 1
        self._later(governor.delay(now, call.tries), call)

    def _governor(self, resource: str) -> Governor:
        governor = self._governors.get(resource)
        if governor is None:
            assert self._patience is not None  # noqa: S101 - else no failure comes here
            governor = Governor(resource, self._patience.max_outage, self._random, resource in self._answered)
            self._governors[resource] = governor
        return governor

    def _check(self, governor: Governor) -> None:
        """End the run if a resource's server is not to be expected back."""
        now, resource = self._carrier.now(), governor.resource
        runs = self._running[resource] > 0
        room = self._running[resource] + self.lost[resource] < self.slots[resource]
        if not governor.hopeless(now, under_way=self._under_way[resource], runs=runs, room=room):
            return
        assert governor.last is not None  # noqa: S101 - it has failed
        if governor.answered and len(governor.samples) < LEAST_FAILURES and self._carrier.ending():
            self._give_up(resource, governor.last)
            return
        raise BackendError(
            f"{governor.failures} {resource} calls failed in {governor.outage(now):.0f} s and none succeeded, the last "
            f"one with {governor.last.message}: see to the server, or wait longer for it with "
            f"Flash(max_outage=...); {KEPT}."
        )

    def _give_up(self, resource: str, failure: Failure) -> None:
        """Nothing is left but a sample or two that fail: the run ends without them, as it would have ended."""
        waiting = [each for each in self._calls.values() if each.sample.resource == resource and not each.runs]
        for call in waiting:
            self._over(call, None, call.error, 0.0, failure)

    # -- deadlines --------------------------------------------------------------------------------------------------

    def _passed(self, call: Call, tries: int) -> None:
        """A try's deadline."""
        if not call.runs or call.tries != tries or self._calls.get((call.key, call.index)) is not call:
            return
        resource, sample = call.sample.resource, (call.key, call.index)
        call.timeouts += 1
        call.runs = False
        self.lost[resource] += 1
        self._running[resource] -= 1
        self._carrier.abandon(*sample)
        self._carrier.slots_left(resource, self.slots[resource] - self.lost[resource])
        error = TimeoutError(f"no answer within {self._deadline:g} s, as Flash(sample_timeout=...) says")
        self._failed(call, error, Failure(TIMEOUT, str(error)), self._deadline or 0.0)

    def came_back(self, resource: str) -> None:
        """An abandoned call has returned: its slot is free again."""
        self.lost[resource] -= 1
        self.lost += Counter()  # without zeros
        self._carrier.slots_left(resource, self.slots[resource] - self.lost[resource])
        self._fill(resource)

    def _fill(self, resource: str) -> None:
        """Start what waits for a slot that an abandoned call held."""
        ready = self._ready.get(resource)
        while ready and self._running[resource] + self.lost[resource] < self.slots[resource]:
            self._again(ready.popleft())

    def change_slots(self, resource: str, slots: int) -> int:
        """A resource has a new number of slots; how many of them abandoned calls leave."""
        self.slots[resource] = slots
        return slots - self.lost[resource]

    # -- for views --------------------------------------------------------------------------------------------------

    def trouble(self, now: float) -> tuple[float, str]:
        """Seconds of the longest outage there is now, and the last error of its server; 0 and nothing without one."""
        worst = max(self._governors.values(), key=lambda each: each.outage(now), default=None)
        if worst is None or worst.last is None or worst.outage(now) < SHOWN_AFTER:
            return 0.0, ""
        return worst.outage(now), worst.last.message

    def outage_seconds(self, now: float) -> float:
        """Seconds of outages so far, of all resources."""
        return sum(each.over + each.outage(now) for each in self._governors.values())

    def running(self) -> tuple[int, float]:
        """How many calls run, and when the oldest of them began."""
        running = [call.began for call in self._calls.values() if call.runs]
        return len(running), min(running, default=0.0)
