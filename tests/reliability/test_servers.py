"""Servers that fail, for real: what each does to a run of dspy.GEPA and of gepa.optimize."""

from __future__ import annotations

import logging
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from served_runs import BUDGET, HOSTS, THREADS, Served, flash, serving

from flashevolve_plugins import BackendError, Flash, _governor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flashevolve_plugins.benchmarks.server import SimulatedServer

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),  # litellm's way with pydantic
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # clients of libraries, when a server dies
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

WRONG = (3, 4, 5, 12, 19)  # requests: some of the seed's validation, some later
MAX_OUTAGE, FIRST_OUTAGE = 4.0, 1.0
SAMPLE_TIMEOUT = 5.0  # far longer than a call takes that is answered, on a busy machine too
FOR_EVER = 1e6  # seconds; what waits for so long does not end within pytest's own limit


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The same law on a smaller scale, and quiet libraries."""
    monkeypatch.setattr(_governor, "FIRST_DELAY", 0.02)
    monkeypatch.setattr(_governor, "LONGEST_DELAY", 0.2)
    monkeypatch.setattr(_governor, "FIRST_OUTAGE", FIRST_OUTAGE)
    names = ("dspy", "LiteLLM", "httpx", "gepa", "dspy.utils.parallelizer", "dspy.teleprompt.gepa.gepa")
    loggers = [logging.getLogger(name) for name in names]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.CRITICAL)
    yield
    for each, level in zip(loggers, levels, strict=True):
        each.setLevel(level)


def both(run_one: Callable[[Any], Served]) -> list[Served]:
    return [run_one(run) for run in HOSTS.values()]


RETRIED = {
    "connection reset": ("reset", "connection"),
    "half-closed connection (headers, then nothing)": ("half-closed", "connection"),
    "truncated body": ("truncated", "connection"),
    "malformed JSON": ("malformed", "malformed answer"),
    "status 503": ("503", "server error"),
}


@pytest.mark.parametrize("fault", RETRIED)
def test_a_fault_of_single_answers_is_tried_again(fault: str, tell: Callable[..., None]) -> None:
    kind, told = RETRIED[fault]

    def one(run: Any) -> Served:
        with serving(*WRONG, kinds=(kind,)) as server:
            return run(server.base_url, flash())

    found = both(one)
    for each in found:
        assert each.error is None
        assert each.last.retries == len(WRONG) == sum(each.last.failures.values())
        assert each.scored <= BUDGET
        assert set(each.last.failures) <= {told, "server error"}  # litellm calls whatever goes wrong a server's error
    outcome = "tried again, the run ends as without it"
    tell(fault, tries=2 * len(WRONG), outcome=outcome, lost=sum(each.lost for each in found))


def test_a_storm_of_429_holds_the_run_back_as_long_as_the_server_asks(tell: Callable[..., None]) -> None:
    storm, wait = range(10, 16), 1.0  # a whole second is the least that the header can say

    def one(run: Any) -> Served:
        with serving(*storm, kinds=("429",), retry_after=wait) as server:
            return run(server.base_url, flash())

    found = both(one)
    for each in found:
        assert each.error is None
        assert each.last.failures == {"rate limit": len(storm)}
        assert each.last.seconds >= wait * len(storm) / THREADS
    outcome = "Retry-After is kept, the run ends as without it"
    tell("429 storm with Retry-After", tries=12, outcome=outcome, lost=sum(each.lost for each in found))


@pytest.mark.parametrize(("fault", "kind"), [("an answer that never comes", "hang"), ("slow drip", "drip")])
def test_a_call_that_takes_too_long_is_tried_again(fault: str, kind: str, tell: Callable[..., None]) -> None:
    def one(run: Any) -> Served:
        with serving(3, 12, kinds=(kind,), seconds=600.0) as server:
            return run(server.base_url, flash(sample_timeout=SAMPLE_TIMEOUT))

    found = both(one)
    for each in found:
        assert each.error is None
        assert each.last.failures == {"timeout": 2}
        assert each.last.retries == 2
    outcome = "tried again after `sample_timeout`, the run ends as without it"
    tell(fault, tries=4, outcome=outcome, lost=sum(each.lost for each in found))


def _hopeless(found: Served, outage: float) -> None:
    """The run has waited so long for its server, and not as long as by default."""
    assert isinstance(found.error, BackendError)
    assert outage <= found.last.outage_seconds < Flash.max_outage
    assert "with a run_dir (dspy: log_dir) the state is kept: run again with the same one." in str(found.error)
    assert "\n" not in str(found.error)


def test_a_server_that_hangs_for_ever_ends_the_run(tell: Callable[..., None]) -> None:
    def one(run: Any) -> Served:
        with serving(kinds=("hang",), share=1.0, first=10) as server:
            return run(server.base_url, flash(sample_timeout=SAMPLE_TIMEOUT, max_outage=MAX_OUTAGE))

    found = both(one)
    for each in found:
        _hopeless(each, MAX_OUTAGE)
        assert "no answer within 5 s" in str(each.error)
    outcome = "ends within `max_outage` in one sentence, calls abandoned and counted"
    tell("every answer stops for ever", tries=2, outcome=outcome, lost=sum(each.lost for each in found))


def test_empty_choices_and_answers_cut_short_are_the_example_s_failure_as_in_the_host(
    tell: Callable[..., None],
) -> None:
    """dspy takes either for a text that it cannot read, asks once more for JSON, and scores 0, as by itself."""
    run = HOSTS["dspy.GEPA"]
    with serving(2, 3, kinds=("empty",)) as server:
        found = run(server.base_url, flash(max_concurrency=1))
    assert (found.error, found.last.retries) == (None, 0)
    assert found.scores[:8].count(0) == found.scores.count(0) == 1
    assert found.charged - found.scored == 1
    tell("empty choices (dspy)", tries=1, outcome="the example's failure, as in dspy", lost=found.lost - 2)
    with serving() as server:
        found = run(server.base_url, flash(), max_tokens=2)
    assert (found.error, found.last.retries, found.scored) == (None, 0, 0)
    assert set(found.scores) == {0}
    outcome = "the example's failure, as in dspy"
    tell("every answer cut at `max_tokens` (dspy)", tries=1, outcome=outcome, lost=len(found.scores) % 8)


def test_nobody_there_at_the_start_is_told_at_once(tell: Callable[..., None]) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/v1"
        found = both(lambda run: run(url, flash(check_connection=False, max_outage=FOR_EVER)))
    for each in found:
        _hopeless(each, FIRST_OUTAGE)
        assert each.charged == each.scored == 0
        assert set(each.last.failures) == {"refused"}
    outcome = "ends in one sentence, nothing spent"
    tell("server down at the start", tries=2, outcome=outcome, lost=sum(each.lost for each in found))


class _Killer:
    """Kills a server at a metric call, and starts it again a while after a call has failed if that is asked for."""

    def __init__(self, server: SimulatedServer, at: int, back_after: float | None = None) -> None:
        self._server, self._at, self._back_after = server, at, back_after
        self._thread = threading.Thread(target=self._back)
        self.failed = threading.Event()

    def __call__(self, count: int) -> None:
        if count == self._at:
            self._server.kill()
            if self._back_after is not None:
                self._thread.start()

    def _back(self) -> None:
        assert self.failed.wait(60)
        time.sleep(self._back_after or 0.0)  # the outage itself, not a synchronisation
        self._server.restart()

    def join(self) -> None:
        self._thread.join()


@pytest.mark.parametrize("at", [3, 15])
def test_a_server_that_dies_and_comes_back_costs_time_alone(
    at: int, tell: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long a busy machine needs to start it again."""
    monkeypatch.setattr(_governor, "FIRST_OUTAGE", FOR_EVER)
    fail, outage = _governor.Governor.failed, 0.3

    def one(run: Any) -> Served:
        with serving() as server:
            killer = _Killer(server, at, back_after=outage)

            def failed(*arguments: Any) -> None:
                fail(*arguments)
                killer.failed.set()

            monkeypatch.setattr(_governor.Governor, "failed", failed)
            found = run(server.base_url, flash(max_outage=FOR_EVER), watch=killer)
            killer.join()
            return found

    found = both(one)
    for each in found:
        assert each.error is None
        assert each.last.retries >= 1
        assert each.last.outage_seconds >= outage
    where = "the seed's validation" if at == 3 else "the run"
    outcome = "waited for, the run ends as without it"
    tell(f"server killed in {where} and back", tries=2, outcome=outcome, lost=sum(each.lost for each in found))


def test_a_server_that_dies_for_good_ends_the_run_and_a_new_one_goes_on(
    tmp_path: Any, tell: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it has answered a reflection before it dies or not."""
    monkeypatch.setattr(_governor, "FIRST_OUTAGE", MAX_OUTAGE)
    lost = 0
    for name, run in HOSTS.items():
        with serving() as server:
            folder = str(tmp_path / name)
            options = {"log_dir" if name.startswith("dspy") else "run_dir": folder}
            dead = run(server.base_url, flash(max_outage=MAX_OUTAGE), watch=_Killer(server, 16), **options)
            _hopeless(dead, MAX_OUTAGE)
            server.restart()
            again = run(server.base_url, flash(), **options)
        assert again.error is None
        assert again.last.spent <= BUDGET + 8  # a resumed run validates the seed once more, uncounted
        lost += sum(score == 0 for score in again.scores) + abs(dead.charged - dead.scored)
    outcome = "ends within `max_outage` in one sentence; resumed afterwards"
    tell("server killed for good", tries=2, outcome=outcome, lost=lost)
