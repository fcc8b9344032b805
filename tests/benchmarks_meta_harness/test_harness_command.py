"""``flashevolve bench meta-harness``: from options to its table."""

import json
from argparse import Namespace

import pytest

from flashevolve_plugins._cli import main
from flashevolve_plugins.benchmarks.bench.harness_command import FAULTY, TABLES, run_harness
from flashevolve_plugins.benchmarks.bench.harness_fakes import (
    EVALUATE,
    FAULTS,
    FILE,
    PROPOSE,
    STEP,
    FakeProposer,
    Landscape,
    code_of,
)

SMALL = Namespace(candidates=12, proposers=4, evaluators=4, places=12, seeds=1)


def test_the_table_tells_of_every_rival_and_of_the_faults(capsys):
    assert main(["bench", "meta-harness", "--seeds", "1", "--candidates", "6"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("6 candidates, 4 proposers, 4 evaluators, 1 seeds")
    assert [line.split("`")[1] for line in out.splitlines() if line.startswith("| `")] == [
        "sequential",
        "full",
        "merge",
        "guarded",
        "reflective",
    ]
    assert "0 lost." in out


def test_what_cannot_work_is_one_sentence(capsys):
    assert main(["bench", "meta-harness", "--seeds", "0"]) == 2
    assert "--seeds=0 must be at least 1" in capsys.readouterr().err


def test_both_loops_evaluate_the_same_candidates_in_times_that_follow_from_the_seed():
    own, flash = run_harness("sequential", 3, SMALL), run_harness("full", 3, SMALL)
    assert len(own.evaluated) == len(flash.evaluated) == 12
    names = [f"c{number:04d}" for number in range(13)]
    landscape = Landscape(3)
    spent = sum(landscape.seconds("evaluate", name, EVALUATE) for name in names)
    spent += sum(landscape.seconds("propose", name, PROPOSE) for name in names[1:])
    assert own.seconds == pytest.approx(spent)
    assert run_harness("full", 3, SMALL) == flash
    assert max(moment for moment, _ in flash.evaluated) == pytest.approx(flash.seconds)
    assert own.rate < flash.rate


def test_durations_are_in_the_papers_proportions():
    landscape = Landscape(0)
    names = [str(number) for number in range(4000)]
    proposing = sum(landscape.seconds("propose", name, PROPOSE) for name in names) / len(names)
    evaluating = sum(landscape.seconds("evaluate", name, EVALUATE) for name in names) / len(names)
    assert proposing + evaluating == pytest.approx(STEP, rel=0.05)
    assert proposing / (proposing + evaluating) == pytest.approx(0.74, abs=0.02)


def test_with_faults_nothing_is_lost_and_the_run_goes_on():
    options = Namespace(candidates=30, proposers=4, evaluators=4, places=12)
    landscape = Landscape(4, FAULTY)
    seen = {landscape.fault(f"c{number:04d}") for number in range(1, 31)}
    assert seen == {None, *FAULTS}
    run = run_harness("full", 4, options, FAULTY)
    assert run.manifests == 31
    assert sum(run.ended.values()) == 30


@pytest.mark.parametrize("table", ["sessions", "stops"])
def test_the_other_tables_have_a_line_for_every_row(capsys, table):
    assert main(["bench", "meta-harness", table, "--seeds", "1", "--candidates", "4"]) == 0
    rows = [line.split("`")[1] for line in capsys.readouterr().out.splitlines() if line.startswith("| `")]
    assert rows == [*TABLES[table]]


def test_jobs_come_to_the_same_score_in_the_same_time_all_in_all():
    whole, split = Landscape(5), Landscape(5, jobs=4)
    changes = [3, 50, 71]
    jobs = [split.score_of_job(changes, job) for job in range(4)]
    assert sum(jobs) / 4 == pytest.approx(whole.score(changes))
    assert len(set(jobs)) == 4
    spent = sum(split.seconds_of_job("c0001", job) for job in range(4))
    assert spent == pytest.approx(whole.seconds("evaluate", "c0001", EVALUATE))


@pytest.mark.parametrize("at", ["sessions", "proposed"])
def test_an_idea_that_another_session_has_is_not_taken_if_it_is_heeded(tmp_path, at):
    def idea(number, heeds, others):
        folder = tmp_path / str(number)
        (folder / ".metaharness" / "candidates").mkdir(parents=True)
        (folder / FILE).write_text(code_of(()))
        if others is not None:
            shown = {"sessions": [], "proposed": [], "evaluated_since": [], at: [{"idea": others}]}
            (folder / ".metaharness" / "under_way.json").write_text(json.dumps(shown))
        request = Namespace(candidate_id="c0007", workspace_dir=folder, experience_dir=folder / ".metaharness")
        FakeProposer(Landscape(1), heeds=heeds).flashevolve_seconds(request)
        return (folder / ".metaharness" / "idea.md").read_text()

    first = idea(0, 1.0, None)
    assert idea(1, 1.0, first) != first
    assert idea(2, 0.0, first) == first
