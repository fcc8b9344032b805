"""When the host's state file, its logs and its candidate tree are written."""

import json
import pickle
import queue
from types import SimpleNamespace

import pytest
from gepa.core.state import GEPAState

from flashevolve_plugins.adapters.gepa import bookkeeping
from flashevolve_plugins.adapters.gepa.bookkeeping import Bookkeeping, Share


class Clock:
    """Stands in for the module ``time``."""

    def __init__(self):
        self.now = self.cpu = 0.0

    def monotonic(self):
        return self.now

    def thread_time(self):
        return self.cpu


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(bookkeeping, "time", clock)
    return clock


@pytest.fixture
def never_free(monkeypatch):
    """Nothing has any share: all is written at the end alone."""
    monkeypatch.setattr(bookkeeping, "FREE_SECONDS", -1e9)


@pytest.fixture
def writes(monkeypatch):
    """The names of the files that the host writes, the state file's included."""
    written = []
    save, write = GEPAState.save, GEPAState._atomic_write_json

    def counting_save(state, run_dir, **options):
        written.append("gepa_state.bin")
        save(state, run_dir, **options)

    def counting_write(state, run_dir, name, data):
        written.append(name)
        write(state, run_dir, name, data)

    monkeypatch.setattr(GEPAState, "save", counting_save)
    monkeypatch.setattr(GEPAState, "_atomic_write_json", counting_write)
    return written


def spend(share, clock, seconds):
    with share.taken():
        clock.cpu += seconds


def test_a_share_is_free_until_more_is_used_than_it_gives(clock):
    share = Share(0.1)
    assert share.free
    spend(share, clock, 1.0)
    assert share.free
    spend(share, clock, 0.5)
    assert not share.free
    clock.now += 4.9
    assert not share.free
    clock.now += 0.2
    assert share.free


def test_what_raises_has_used_its_share_too(clock):
    def write():
        clock.cpu += 2.0
        raise OSError("disk full")

    share = Share(0.1)
    with pytest.raises(OSError, match="disk full"), share.taken():
        write()
    assert not share.free


def test_the_state_is_written_once_after_every_item(kit, tmp_path, writes):
    run = kit.run(kit.flash(max_concurrency=20, staleness="full"), run_dir=str(tmp_path))
    items = run.callbacks.names.count("on_iteration_end")
    assert items > 5
    assert writes.count("gepa_state.bin") == 1 + items + 1  # before the first, after each, and the host's at the end
    assert writes.count("candidates.json") == 1 + items + 1
    assert run.callbacks.names.count("on_state_saved") == items


def test_without_a_run_directory_nothing_is_written(kit, writes):
    kit.run(kit.flash(max_concurrency=20))
    assert set(writes) <= {"gepa_state.bin"}  # asked for by the host, at the end


def test_what_had_no_time_to_be_written_is_written_at_the_end(kit, tmp_path, writes, never_free):
    run = kit.run(kit.flash(max_concurrency=20, staleness="full"), run_dir=str(tmp_path))
    assert writes == ["gepa_state.bin", "run_log.json", "candidates.json"]
    saved = GEPAState.load(str(tmp_path))
    assert saved.program_candidates == run.result.candidates
    assert saved.total_num_evals == run.result.total_metric_calls
    assert json.loads((tmp_path / "candidates.json").read_text()) == run.result.candidates
    assert len(json.loads((tmp_path / "run_log.json").read_text())) == len(run.trace)
    trees = [call for call in run.tracked if call[0] == "log_html"]
    assert len(trees) == 1
    assert (tmp_path / "candidate_tree.html").read_text() == trees[0][1][0]
    assert len(run.result.candidates) > 3


def test_a_run_that_raises_writes_what_had_no_time(kit, tmp_path, never_free):
    adapter = kit.Words()
    adapter.errors = {"evaluate": lambda number: number == 90}
    run = kit.run(
        kit.flash(max_concurrency=6, staleness="full"), adapter=adapter, run_dir=str(tmp_path), calls=300, catch=True
    )
    assert type(run.error) is RuntimeError
    accepted = run.callbacks.names.count("on_candidate_accepted")
    assert len(GEPAState.load(str(tmp_path)).program_candidates) == 1 + accepted > 1


def test_a_state_that_cannot_be_written_is_an_error_of_the_host_s_own_iteration(kit, tmp_path, monkeypatch):
    def full(state, run_dir, **options):
        raise OSError("disk full")

    monkeypatch.setattr(GEPAState, "save", full)
    run = kit.run(kit.flash(max_concurrency=6), run_dir=str(tmp_path), catch=True)
    assert type(run.error) is OSError
    assert [str(event["exception"][1]) for event in run.callbacks.named("on_error")] == ["disk full"]
    assert "Iteration 0: Exception during optimization: disk full" in run.lines


def test_the_candidate_tree_is_drawn_at_every_candidate_as_long_as_there_is_time(kit, tmp_path):
    run = kit.run(kit.flash(max_concurrency=20, staleness="full"), run_dir=str(tmp_path))
    trees = [call[1][0] for call in run.tracked if call[0] == "log_html"]
    assert len(trees) == len(run.result.candidates) - 1 > 2
    assert (tmp_path / "candidate_tree.html").read_text() == trees[-1]


def test_no_text_of_a_candidate_ends_the_script_of_its_page(kit, tmp_path):
    reflection, evil = kit.Reflection(), "</script><script>alert(1)</script><!--"
    answer = reflection.answer
    reflection.answer = lambda prompt: answer(prompt).removesuffix("```") + evil + "\n```"
    run = kit.run(kit.flash(staleness="full"), run_dir=str(tmp_path), reflection=reflection)
    assert any(evil in candidate["a"] for candidate in run.result.candidates)
    page = (tmp_path / "candidate_tree.html").read_text()
    assert page.count("<script") == page.count("</script>") == 1
    nodes = page.partition("const NODES = ")[2].partition("\nconst DOT")[0].removesuffix(";")
    assert [node["components"] for node in json.loads(nodes)] == run.result.candidates
    assert page == [call for call in run.tracked if call[0] == "log_html"][-1][1][0]


def test_a_user_s_own_copy_of_the_state_is_written_at_once(kit, tmp_path, never_free):
    copies, recorder = tmp_path / "copies", kit.Callbacks()
    copies.mkdir()
    seen = []

    def copy(name, event):
        if name == "on_iteration_end":
            event["state"].save(str(copies))
            seen.append((GEPAState.load(str(copies)).i, len(json.loads((copies / "run_log.json").read_text())) - 1))

    recorder.watchers.append(copy)
    run = kit.run(kit.flash(max_concurrency=20), run_dir=str(tmp_path), recorder=recorder)
    assert seen == [(number, number) for number in range(len(run.trace))]


def test_callbacks_see_a_state_of_the_host_s_class_and_the_host_gets_it_back(kit, tmp_path):
    recorder, kinds = kit.Callbacks(), set()

    def look(name, event):
        if "state" in event:
            state = event["state"]
            kinds.add(
                (type(state).__name__, type(state).__module__, isinstance(state, GEPAState), "save" in vars(state))
            )

    recorder.watchers.append(look)
    run = kit.run(kit.flash(max_concurrency=20), run_dir=str(tmp_path), recorder=recorder)
    assert kinds == {("GEPAState", "gepa.core.state", True, False)}
    assert type(run.state) is GEPAState
    assert set(pickle.loads((tmp_path / "gepa_state.bin").read_bytes())) <= set(vars(run.state))


class Waiting:
    """Bookkeeping over an engine and a state of which only the files matter."""

    def __init__(self, tmp_path):
        self.saved, self.state = [], GEPAStateLike()
        self.state.saved = self.saved
        engine = SimpleNamespace(
            run_dir=str(tmp_path), use_cloudpickle=False, _sync_adapter_state_to_state=lambda _state: None
        )
        self.bookkeeping = Bookkeeping(engine)
        self.bookkeeping.begin(self.state)


class GEPAStateLike:
    seconds = 0.0

    def save(self, run_dir, *, use_cloudpickle):
        bookkeeping.time.cpu += self.seconds
        self.saved.append("state")
        self._atomic_write_json(run_dir, "run_log.json", None)

    def _atomic_write_json(self, run_dir, name, data):
        bookkeeping.time.cpu += 10 * self.seconds
        self.saved.append("log")


def test_a_change_that_had_no_time_is_written_by_the_next_tick_that_has(tmp_path, clock):
    waiting = Waiting(tmp_path)
    waiting.state.seconds = 0.12  # and ten times that for the log
    waiting.bookkeeping.changed()
    assert waiting.saved == ["state", "log"]
    for _ in range(20):
        waiting.bookkeeping.changed()
    assert waiting.saved.count("state") == 9
    clock.now += 0.7
    waiting.bookkeeping.save()
    assert waiting.saved.count("state") == 9
    clock.now += 0.2
    waiting.bookkeeping.tick()
    waiting.bookkeeping.tick()
    assert waiting.saved.count("state") == 10
    assert waiting.saved.count("log") == 1
    clock.now += 20
    waiting.bookkeeping.save()
    assert waiting.saved.count("state") == 10
    assert waiting.saved.count("log") == 2


def test_the_state_is_written_while_the_run_waits(kit, tmp_path, monkeypatch):
    """What had no time when an item ended is on disk before the next one ends."""
    monkeypatch.setattr(bookkeeping, "FREE_SECONDS", -1e9)
    ticks = queue.SimpleQueue()
    seen = []

    class Slow(kit.Words):
        def evaluate(self, batch, candidate, *, capture_traces=False):
            if ticks.qsize() and not seen:
                monkeypatch.setattr(Share, "free", True)
                saved.get(timeout=60)
                seen.append(GEPAState.load(str(tmp_path)).i)
            return super().evaluate(batch, candidate, capture_traces=capture_traces)

    saved = queue.SimpleQueue()
    save = GEPAState.save

    def telling(state, run_dir, **options):
        save(state, run_dir, **options)
        saved.put(True)

    monkeypatch.setattr(GEPAState, "save", telling)
    recorder = kit.Callbacks()
    recorder.watchers.append(lambda name, _: ticks.put(name) if name == "on_iteration_end" else None)
    flash = kit.flash(clock="local", max_concurrency=1, reflection_concurrency=1)
    kit.run(flash, adapter=Slow(), recorder=recorder, run_dir=str(tmp_path), calls=60)
    assert len(seen) == 1
    assert seen[0] >= 0
