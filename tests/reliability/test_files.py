"""A run directory belongs to one run: who takes it up has the same data, program, metric and models, or is refused."""

import json
import logging
import os
import pickle
import random
import sqlite3
import threading
from contextlib import closing

import pytest
from gepa.core.state import GEPAState
from gepa_task import Reflection, Words, score

from flashevolve_plugins import BackendError, Flash, UsageError
from flashevolve_plugins._best_file import FILE as BEST
from flashevolve_plugins._run_dir import LOCK
from flashevolve_plugins._store import FILE, Store

TRAINSET, VALSET = list(range(30)), list(range(30, 40))


@pytest.fixture
def optimize(tmp_path):
    def run(*, calls=100, flash=None, adapter=None, **options):
        import gepa

        given = {
            "seed_candidate": {"a": "start"}, "trainset": TRAINSET, "valset": VALSET, "reflection_lm": Reflection(),
            "run_dir": str(tmp_path), "display_progress_bar": False,
        }  # fmt: skip
        executor = flash or Flash(max_concurrency=6, progress=False)
        return gepa.optimize(
            adapter=adapter or Words(), max_metric_calls=calls, executor=executor, **{**given, **options}
        )

    return run


class Further(Words):
    pass


OTHERS = {
    "the validation set": {"valset": list(range(31, 41))},
    "the order of the validation set": {"valset": VALSET[::-1]},
    "the training set": {"trainset": TRAINSET[1:]},
    "the program": {"seed_candidate": {"a": "begin"}},
    "another adapter": {"adapter": Further()},
}


@pytest.mark.parametrize("what", OTHERS)
def test_another_run_s_directory_is_refused_before_anything_is_spent_and_says_what_differs(
    optimize, tmp_path, what, tell
):
    before = optimize()
    kept = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file() and path.name != "run_log.txt"}
    options = {"adapter": Words(), **OTHERS[what]}
    named = what if what.startswith("the ") else "the program"
    with pytest.raises(UsageError, match=rf"another run \({named} differs from"):
        optimize(calls=200, **options)
    assert options["adapter"].calls == 0
    assert {path: path.read_bytes() for path in kept} == kept
    assert not (tmp_path / LOCK).exists()
    after = optimize(calls=200, flash=Flash(max_concurrency=6, progress=False, resume="any"), **options)
    assert after.candidates[: len(before.candidates)] == before.candidates
    tell(
        "a run directory of other data, in another order, or of another program",
        tries=5,
        outcome="refused before a call, says what differs",
        lost=0,
    )


def test_a_training_set_in_another_order_is_the_same(optimize):
    optimize()
    shuffled = random.Random(0).sample(TRAINSET, len(TRAINSET))
    assert optimize(calls=200, trainset=shuffled).total_metric_calls > 100


def test_a_state_of_the_host_s_own_loop_with_another_seed_is_refused(optimize, tmp_path):
    import gepa

    gepa.optimize(
        seed_candidate={"a": "start"}, trainset=TRAINSET, valset=VALSET, adapter=Words(), reflection_lm=Reflection(),
        max_metric_calls=60, run_dir=str(tmp_path), display_progress_bar=False,
    )  # fmt: skip
    with pytest.raises(UsageError, match="the program differs"):
        optimize(calls=200, seed_candidate={"a": "begin"})
    assert optimize(calls=200).total_metric_calls > 100


def test_taking_a_run_up_is_said_and_so_are_other_versions(optimize, tmp_path, caplog, monkeypatch):
    optimize()
    with caplog.at_level(logging.WARNING, "flashevolve_plugins"):
        optimize(calls=150)
    assert "Taking up the run" in caplog.text
    assert "versions" not in caplog.text
    monkeypatch.setattr("flashevolve_plugins.adapters.gepa.run_dir.version", lambda name: f"{name} 99")
    with caplog.at_level(logging.WARNING, "flashevolve_plugins"):
        optimize(calls=200)
    assert "other versions: gepa 0.1.4 then, gepa 99 now" in caplog.text


def newer_state(path):
    path.write_bytes(pickle.dumps({**pickle.loads(path.read_bytes()), "validation_schema_version": 99}))


def newer_store(path):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version=99")


def garbage(path):
    path.write_bytes(b"neither a pickle nor a database" * 40)


SPOILT = {
    "a foreign state": ("gepa_state.bin", garbage, "cannot be read as a state of gepa"),
    "an empty state": ("gepa_state.bin", lambda path: path.write_bytes(b""), "cannot be read as a state of gepa"),
    "a newer state": ("gepa_state.bin", newer_state, "has schema 99, and this gepa reads up to"),
    "a foreign store": (FILE, garbage, "cannot be used"),
    "a newer store": (FILE, newer_store, "has schema 99, and this version reads"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_file_that_is_not_ours_is_told_and_left_as_it_is(optimize, tmp_path, what, tell):
    name, spoil, sentence = SPOILT[what]
    optimize()
    spoil(tmp_path / name)
    before, adapter = {each: (tmp_path / each).read_bytes() for each in ("gepa_state.bin", FILE)}, Words()
    with pytest.raises(UsageError, match=f"{name}.*{sentence}"):
        optimize(calls=200, adapter=adapter)
    assert adapter.calls == 0
    tell(
        "a state file that is damaged, foreign or of a newer version",
        tries=len(SPOILT),
        outcome="one sentence; left as it is",
        lost=sum((tmp_path / each).read_bytes() != content for each, content in before.items()),
    )


def test_a_store_that_nothing_was_written_to_is_as_good_as_none(optimize, tmp_path):
    """As SQLite leaves it."""
    (tmp_path / FILE).write_bytes(b"")
    assert optimize().total_metric_calls


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_a_state_that_others_may_write_is_loaded_only_if_the_user_says_so(optimize, tmp_path, tell):
    optimize()
    tmp_path.chmod(0o777)
    with pytest.raises(UsageError, match="every user"):
        optimize(calls=200)
    trusting = Flash(max_concurrency=6, progress=False, trust_run_dir=True)
    assert optimize(calls=200, flash=trusting).total_metric_calls > 100
    tell("a run directory that other users may write", tries=1, outcome="refused, unless `trust_run_dir=True`", lost=0)


def test_a_directory_that_cannot_be_made_is_told_before_anything_is_spent(optimize, tmp_path, tell):
    (tmp_path / "file").write_text("")
    adapter = Words()
    with pytest.raises(UsageError, match=r"run_dir=.* cannot be written"):
        optimize(adapter=adapter, run_dir=str(tmp_path / "file" / "run"))
    assert adapter.calls == 0
    tell("a run directory that cannot be written", tries=1, outcome="refused before a call", lost=0)


def test_the_best_candidate_is_always_on_disk(optimize, tmp_path):
    seen, one_at_a_time = [], threading.Lock()

    class Looking(Words):
        def evaluate(self, batch, candidate, capture_traces=False):
            with one_at_a_time:
                if (tmp_path / BEST).exists():
                    best = json.loads((tmp_path / BEST).read_text())
                    seen.append((best["score"], best["metric_calls"]))
            return super().evaluate(batch, candidate, capture_traces)

    result = optimize(calls=300, adapter=Looking())
    best = json.loads((tmp_path / BEST).read_text())
    assert best["candidate"] == result.best_candidate
    assert best["score"] == max(result.val_aggregate_scores)
    assert [score for _, score in best["scores"]] == list(result.val_subscores[result.best_idx].values())
    assert sorted(set(seen)) == list(dict.fromkeys(seen))
    assert len({score for score, _ in seen}) > 1


def test_the_best_stays_on_disk_while_a_run_is_taken_up(optimize, tmp_path):
    optimize(calls=200)
    before, written, looking = (tmp_path / BEST).read_bytes(), [], Words()
    looking.working = lambda *_: written.append((tmp_path / BEST).read_bytes())
    optimize(calls=200)
    assert (tmp_path / BEST).read_bytes() == before, "it says how many calls it took to find"
    optimize(calls=300, adapter=looking)
    assert written[0] == before
    (tmp_path / BEST).write_text("damaged")
    result = optimize(calls=300)
    assert json.loads((tmp_path / BEST).read_text())["candidate"] == result.best_candidate


def test_a_run_that_ended_leaves_nothing_under_way(optimize, tmp_path):
    optimize(calls=300)
    store = Store(tmp_path)
    store.close()
    assert (store.items, store.results) == ([], [])
    assert not (tmp_path / LOCK).exists()


def test_a_full_disk_ends_the_run_in_one_sentence_and_leaves_the_last_state(optimize, tmp_path, monkeypatch, tell):
    optimize(calls=60)
    before = (tmp_path / "gepa_state.bin").read_bytes()
    replace = os.replace

    def full(source, target):
        if str(target).endswith("gepa_state.bin"):
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(BackendError, match=r"state cannot be written.*No space left on device.*best\.json"):
        optimize(calls=200)
    assert (tmp_path / "gepa_state.bin").read_bytes() == before
    monkeypatch.setattr(os, "replace", replace)
    assert GEPAState.load(str(tmp_path)).is_consistent()
    assert optimize(calls=200).total_metric_calls > 100
    tell(
        "a disk that is full when the state is written",
        tries=1,
        outcome="one sentence; the last state stays, a resume goes on",
        lost=0,
    )


def test_two_runs_at_once_do_not_share_a_directory(optimize, tell):
    refused, first = [], iter([None])

    class Nested(Words):
        def evaluate(self, batch, candidate, capture_traces=False):
            for _ in first:
                with pytest.raises(UsageError, match="in use"):
                    optimize()
                refused.append("refused")
            return super().evaluate(batch, candidate, capture_traces)

    optimize(adapter=Nested())
    assert refused == ["refused"]
    tell("two runs on one run directory", tries=1, outcome="the second is refused, and told who holds it", lost=0)


def test_results_are_found_by_content_in_a_shuffled_training_set(optimize, tmp_path, tell):
    """What is begun again has the scores of its own examples, under the ids that they have now."""

    interrupted = Words()

    def working(*_):
        if interrupted.calls >= 60:
            raise KeyboardInterrupt

    interrupted.working = working
    with pytest.raises(KeyboardInterrupt):
        optimize(calls=300, adapter=interrupted)
    shuffled, adapter = random.Random(1).sample(TRAINSET, len(TRAINSET)), Words()
    result = optimize(calls=300, trainset=shuffled, adapter=adapter)
    for candidate, scores in zip(result.candidates, result.val_subscores, strict=True):
        assert scores == {place: score(example, candidate) for place, example in enumerate(VALSET)}
    assert interrupted.calls + adapter.calls <= 300 + 6  # what was in flight alone is paid for again
    again = 0
    for entry in GEPAState.load(str(tmp_path)).full_program_trace:
        if "subsample_scores" in entry and "selected_program_candidate" in entry:
            parent = result.candidates[entry["selected_program_candidate"]]
            own = [score(shuffled[each], parent) for each in entry["subsample_ids"]]
            before = [score(TRAINSET[each], parent) for each in entry["subsample_ids"]]
            assert entry["subsample_scores"] in (own, before)
            again += entry["subsample_scores"] == own
    assert again
    tell("a training set that is shuffled before a resume", tries=1, outcome="every example has its own score", lost=0)


class Made:
    """Neither pickle nor cloudpickle takes it."""

    def __init__(self, what):
        self.what = what

    def __reduce__(self):
        raise TypeError("not this one")

    def __repr__(self):
        return f"made of {self.what}"


@pytest.mark.parametrize("kind", ["lambda", "nothing takes it"])
def test_outputs_that_cannot_be_pickled_do_not_end_the_run(optimize, tmp_path, caplog, kind, tell):
    class Odd(Words):
        def evaluate(self, batch, candidate, capture_traces=False):
            evaluation = super().evaluate(batch, candidate, capture_traces)
            make = (lambda each: lambda: each) if kind == "lambda" else Made
            evaluation.outputs = [make(each) for each in batch]
            return evaluation

    with caplog.at_level(logging.WARNING, "flashevolve_plugins"):
        result = optimize(calls=150, adapter=Odd(), track_best_outputs=True)
    kept = GEPAState.load(str(tmp_path))
    assert kept.program_candidates == result.candidates
    found = [output for outputs in kept.best_outputs_valset.values() for _, output in outputs]
    returned = [output for outputs in result.best_outputs_valset.values() for _, output in outputs]
    if kind == "lambda":
        assert all(callable(output) for output in found)
        assert "texts in their place" not in caplog.text
    else:
        assert all(output.startswith("made of ") for output in found)
        assert all(isinstance(output, Made) for output in returned)
        assert caplog.text.count("texts in their place") == 1
    assert caplog.text.count("A result cannot be kept") == (kind != "lambda")
    tell(
        "outputs that pickle, or nothing, can write",
        tries=2,
        outcome="the run goes on; the state has texts in their place",
        lost=0,
    )


def test_a_directory_that_flash_names_keeps_the_run_where_the_host_names_none(optimize, tmp_path):
    flash = Flash(max_concurrency=6, progress=False, run_dir=str(tmp_path / "kept"))
    before = optimize(run_dir=None, flash=flash)
    adapter = Words()
    after = optimize(run_dir=None, flash=flash, adapter=adapter, calls=200)
    assert after.candidates[: len(before.candidates)] == before.candidates
    assert adapter.calls == after.total_metric_calls - before.total_metric_calls


@pytest.mark.parametrize("record", ["scores", False])
def test_without_full_records_no_text_of_an_example_is_kept(optimize, tmp_path, record):
    class Telling(Words):
        def evaluate(self, batch, candidate, capture_traces=False):
            if self.calls > 60:
                raise KeyboardInterrupt
            evaluation = super().evaluate(batch, candidate, capture_traces)
            evaluation.outputs = [f"personal data of {each}" for each in batch]
            for trace in evaluation.trajectories or ():
                trace["x"] = "personal data"
            return evaluation

    with pytest.raises(KeyboardInterrupt):
        optimize(calls=200, adapter=Telling(), flash=Flash(max_concurrency=6, progress=False, record=record))
    store = Store(tmp_path)
    store.close()
    assert store.items
    assert store.results == []
    ours = list(tmp_path.glob("flashevolve*"))  # the others are the host's
    assert not [path.name for path in ours if b"personal data" in path.read_bytes()]
    anyhow = Flash(max_concurrency=6, progress=False, resume="any")
    assert optimize(calls=200, flash=anyhow).total_metric_calls > 100


def test_a_directory_that_flash_names_beside_the_host_s_own_is_told_to_be_unused(optimize, tmp_path, caplog):
    flash = Flash(max_concurrency=6, progress=False, run_dir=str(tmp_path / "unused"))
    with caplog.at_level(logging.WARNING, "flashevolve_plugins"):
        optimize(flash=flash)
    assert caplog.text.count("is not used: the host keeps this run in") == 1
    assert not (tmp_path / "unused").exists()
