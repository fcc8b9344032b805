"""The bench of the executor's own cost: what it measures, and that its numbers mean what their names say."""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from gepa.core.state import GEPAState

from flashevolve_plugins import Flash
from flashevolve_plugins.adapters.gepa import bookkeeping
from flashevolve_plugins.benchmarks import (
    cost,
    cost_dspy,
    cost_flight,
    cost_memory,
    cost_pool,
    cost_stub,
    cost_virtual,
)
from flashevolve_plugins.benchmarks.cost_figures import Figure, table

if TYPE_CHECKING:
    from pathlib import Path


# -- the table ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "met"),
    [
        ({}, None),
        ({"at_most": 2.0}, True),
        ({"at_most": 1.9}, False),
        ({"at_least": 2}, True),
        ({"at_least": 3}, False),
    ],
)
def test_a_figure_knows_whether_its_target_is_met(target: dict[str, float], met: bool | None) -> None:
    assert Figure("it", 2.0, **target).met is met


def test_the_table_has_a_line_for_each_figure() -> None:
    figures = [Figure("time", 0.01234, "ms", at_most=1.0), Figure("share", 0.8, at_least=0.9), Figure("samples", 12345)]
    assert table(figures).splitlines()[2:] == [
        "| time | 0.0123 ms | at most 1 | met |",
        "| share | 0.8 | at least 0.9 | missed |",
        "| samples | 12,345 |  |  |",
    ]


@pytest.mark.parametrize(("value", "code"), [(1.0, 0), (3.0, 1)])
def test_the_command_prints_and_saves_the_parts_asked_for(
    value: float, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    part: Any = ModuleType("flashevolve_plugins.benchmarks.cost_fake")
    part.measure = lambda: [Figure("it", value, "s", at_most=2.0)]
    monkeypatch.setitem(sys.modules, part.__name__, part)
    monkeypatch.setattr(cost, "PARTS", {"fake": "nothing", "virtual": "not asked for"})
    file = tmp_path / "cost.json"
    assert cost.main(["fake", "--json", str(file)]) == code
    said = capsys.readouterr()
    assert said.out == table(part.measure()) + "\n"
    assert said.err == "measuring: fake\n"
    kept = {"name": "it", "value": value, "unit": "s", "at_most": 2.0, "at_least": None, "met": code == 0}
    assert json.loads(file.read_text()) == {"fake": [kept]}


def test_a_part_that_does_not_exist_is_refused_before_anything_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        cost.main(["virtual", "speed"])
    assert refused.value.code == 2
    said = capsys.readouterr().err
    assert "there is no part 'speed': known are virtual, pool, memory, dspy, flight" in said
    assert "measuring" not in said


def test_every_part_is_a_module_that_measures() -> None:
    for part in cost.PARTS:
        assert callable(sys.modules[f"flashevolve_plugins.benchmarks.cost_{part}"].measure)


# -- virtual time ---------------------------------------------------------------------------------------------------


def test_a_run_in_virtual_time_counts_every_sample() -> None:
    made = cost_virtual.run(40, 16, validation=10)
    accepted, rest = divmod(made.samples - 40 * 7, 10)
    assert rest == 0
    assert 0 < accepted < 40
    assert made.seconds > 0
    assert cost_virtual.run(40, 16, validation=10).samples == made.samples


def test_a_run_in_virtual_time_ends_at_its_time() -> None:
    short = cost_virtual.run(float("inf"), 16, validation=10, until=120)
    assert 120 <= short.seconds < 600
    assert cost_virtual.run(float("inf"), 16, validation=10, until=360).samples > 2 * short.samples


def test_the_function_calls_per_sample_do_not_grow_with_the_items() -> None:
    figures = cost_virtual.measure(sizes=(20, 40, 160, 200), slots=40, minutes=0.2)
    few, many = [figure for figure in figures if figure.name.endswith("function calls per sample")]
    assert few.value > 20
    assert many.met
    assert len({figure.name for figure in figures}) == len(figures) == 7


# -- the pool -------------------------------------------------------------------------------------------------------


def test_the_saved_state_is_one_that_the_host_goes_on_from(tmp_path: Path) -> None:
    cost_pool.save_state(str(tmp_path), 30)
    state = GEPAState.load(str(tmp_path))
    assert state.is_consistent()
    assert len(state.program_candidates) == 30
    last = cost_pool.optimize(
        cost_pool.Adapter(1.0, 30), slots=8, run_dir=str(tmp_path), stop_callbacks=[cost_flight.Offers(5)]
    )
    assert last.accepted == 5
    assert last.version == 35


def test_our_own_work_for_a_commit_does_not_grow_with_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bookkeeping.Share, "free", True)  # as often as may be, whatever the machine has time for
    small, large = cost_pool.commits(40, 10, slots=8), cost_pool.commits(400, 10, slots=8)
    assert small["our calls"] > 100
    assert large["our calls"] < 1.1 * small["our calls"]


def test_what_a_library_takes_belongs_to_who_called_it() -> None:
    ours, host = cost_pool.optimize.__code__, GEPAState.load.__code__
    driver = cost_virtual.VirtualDriver.close.__code__
    library, inner = json.dumps.__code__, json.loads.__code__
    callers = {library: {driver: 1.0, host: 3.0}, inner: {library: 2.0}, "<built-in method time>": {ours: 1.0}}
    assert cost_pool._owners(driver, callers) == {"ours": 1.0}
    assert cost_pool._owners(host, callers) == {"host": 1.0}
    assert cost_pool._owners(library, callers) == {"ours": 0.25, "host": 0.75}
    assert cost_pool._owners(inner, callers) == {"ours": 0.25, "host": 0.75}
    assert cost_pool._owners("<built-in method time>", callers) == {"benchmark": 1.0}
    assert cost_pool._owners("<nobody called it>", callers) == {"other": 1.0}


def test_a_library_that_calls_itself_in_every_way_is_told_in_time() -> None:
    driver = cost_virtual.VirtualDriver.close.__code__
    inside: dict[Any, dict[Any, float]] = {
        f"<{number}>": {f"<{other}>": 1.0 for other in range(60)} for number in range(60)
    }
    inside["<0>"][driver] = 60.0
    shares = cost_pool._owners("<1>", inside)
    assert set(shares) == {"ours", "other"}
    assert sum(shares.values()) == pytest.approx(1.0)


# -- memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("clock", "items", "accepted"), [("virtual", (60, 260), 0.05), ("local", (60, 1060), 0.0)])
def test_ended_items_leave_nothing_behind_but_the_host_s_state(
    clock: Any, items: tuple[int, int], accepted: float
) -> None:
    """On threads what is under way when it is counted differs: so there are many items, and none is validated."""
    growth, left = cost_memory.grow(clock, items, accepted)
    assert left == 0
    assert growth.per_item(growth.objects) < 0.5
    assert growth.per_item(growth.payloads) < 0.5


def test_what_is_left_behind_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    evaluate = cost_memory.Watched.evaluate

    def keeping(adapter: Any, *batch: Any, **options: Any) -> Any:
        kept.append(evaluate(adapter, *batch, **options))
        return kept[-1]

    monkeypatch.setattr(cost_memory.Watched, "evaluate", keeping)
    growth, left = cost_memory.grow("virtual", (20, 60))
    assert growth.per_item(growth.payloads) > 6
    assert left > 60 * 6


# -- the server and the flight --------------------------------------------------------------------------------------


def test_the_stub_answers_and_integrates_what_is_in_flight() -> None:
    with cost_stub.Stub(0.4, "an answer") as stub, ThreadPoolExecutor(6) as clients:
        start = time.monotonic()
        answers = list(clients.map(lambda _: stub.request(), range(6)))
        end = time.monotonic()
        mean = stub.in_flight(start, end)
    assert [answer["choices"][0]["message"]["content"] for answer in answers] == ["an answer"] * 6
    assert 0 < mean <= 6
    assert stub._process.returncode is not None


def test_requests_fly_on_threads_and_as_coroutines() -> None:
    figures = cost_flight.measure(slots=24, latency=0.2, requests=240)
    by_unit = {figure.name: figure.value for figure in figures}
    assert len(by_unit) == 8
    shares = [value for name, value in by_unit.items() if "busy share" in name]
    assert all(0 < share <= 1.05 for share in shares)
    (threads,) = [value for name, value in by_unit.items() if name.endswith("threads") and "coroutines" not in name]
    (few,) = [value for name, value in by_unit.items() if name.endswith("threads") and "coroutines" in name]
    assert threads > few


# -- dspy -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", [None, Flash(progress=False, staleness="full")], ids=["host", "flash"])
def test_the_program_s_own_time_is_told_apart(executor: Flash | None, monkeypatch: pytest.MonkeyPatch) -> None:
    spent = {"thread": 0.0, "process": 0.0}
    monkeypatch.setattr(
        cost_dspy,
        "time",
        type("Clock", (), {"thread_time": lambda: spent["thread"], "process_time": lambda: spent["process"]}),
    )

    class Dear(cost_dspy.Model):
        def __call__(self, *_args: Any, **_kwargs: Any) -> list[str]:
            spent["thread"] += 1.0
            return super().__call__()

    monkeypatch.setattr(cost_dspy, "Model", Dear)
    monkeypatch.setattr(cost_dspy, "THREADS", 1)
    made = cost_dspy.run(executor, 120)
    assert made.program == pytest.approx(1000.0)
    assert made.on_top == pytest.approx(-1000.0)


def test_a_request_over_http_is_measured() -> None:
    assert cost_dspy.over_http(3) > 0
    assert cost_dspy.one_by_one(3) > 0
