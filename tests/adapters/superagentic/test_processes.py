"""What a proposer starts ends with it, whatever it is and however the proposal ends."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest
from harness_task import Evaluator, Proposer, manifests, run
from processes_told import PATIENCE, gone, pids_in, until

from flashevolve_plugins import Flash
from flashevolve_plugins.adapters.meta_harness.processes import Family, Scope, interrupts_later, scoped_processes

# a child, one in a session of its own, and one whose parent is gone; all three tell their number
FORKS = (
    "sleep 300 & echo $! > child.pid; "
    "setsid sh -c 'echo $$ > session.pid; exec sleep 300' & "
    "(sh -c 'echo $$ > orphan.pid; exec sleep 300' &); "
    "while [ ! -s session.pid ] || [ ! -s orphan.pid ]; do sleep 0.01; done; "
)
CHILDREN = 3


def flash(**options):
    options = {"max_concurrency": 2, "reflection_concurrency": 2, "staleness": "full", "progress": False, **options}
    return Flash(**options)


@pytest.mark.parametrize(("end", "outcome"), [("true", "keep"), ("false", "keep"), ("sleep 300", "timeout")])
def test_no_grandchild_survives_its_proposal(tmp_path, end, outcome, tell):
    # what the children hold open is not the pipe that the proposer's caller reads
    command = f"({FORKS}) >/dev/null 2>&1; {end}"
    proposer = Proposer(
        steps=lambda n: 1,
        command=command,
        timeout=0.1 if outcome == "timeout" else PATIENCE,
        started=lambda workspace: until(lambda: len(pids_in(workspace)) == CHILDREN),
    )
    _, folder = run(tmp_path, flash(), budget=1, proposer=proposer)
    gone(folder, least=CHILDREN)
    assert manifests(folder)["c0001"]["outcome"] == outcome
    told = "all of them end with it, those in another session or without a parent too"
    tell(
        "processes that a proposer leaves, one that hangs included",
        tries=3,
        outcome=told,
        lost=2 - len(manifests(folder)),
    )


def test_no_grandchild_survives_its_evaluation(tmp_path, tell):
    def evaluated(workspace):
        subprocess.run(["/bin/sh", "-c", f"({FORKS}) >/dev/null 2>&1"], cwd=workspace, check=True)

    _, folder = run(tmp_path, flash(), budget=1, proposer=Proposer(steps=lambda n: 1), evaluator=Evaluator(evaluated))
    gone(folder, least=CHILDREN)
    tell(
        "processes that an evaluation leaves",
        tries=1,
        outcome="all of them end with it",
        lost=2 - len(manifests(folder)),
    )


def test_no_grandchild_survives_ctrl_c_and_the_directory_can_be_read(tmp_path, source_root, tell):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        import sys
        from pathlib import Path
        sys.path.insert(0, {str(source_root / "tests/helpers")!r})
        import flashevolve_plugins
        from flashevolve_plugins import Flash
        from harness_task import Proposer, run

        command = "({FORKS}) >/dev/null 2>&1; sleep 300"
        run(Path({str(tmp_path)!r}), Flash(max_concurrency=2, reflection_concurrency=2, progress=False),
            proposer=Proposer(command=command))
        """)
    )
    with subprocess.Popen([sys.executable, script], stderr=subprocess.PIPE, text=True) as process:
        until(
            lambda: len(pids_in(tmp_path)) == 2 * CHILDREN,
            lambda: process.poll() is not None and process.stderr.read(),
        )
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors  # it gives back the best so far
    assert "Stopping (Ctrl-C)" in errors
    assert len(gone(tmp_path)) == 2 * CHILDREN
    told = manifests(tmp_path / "run")
    assert {each["outcome"] for name, each in told.items() if name != "c0000"} == {"unknown"}
    from metaharness.reporting import summarize_run

    assert summarize_run(tmp_path / "run")["best_candidate_id"] == "c0000"
    outcome = "every process ends; returns the best so far, and the host reads the directory"
    tell("Ctrl-C while proposers hang", tries=1, outcome=outcome, lost=3 - len(told))


def test_a_prefix_goes_before_the_commands_of_proposers_and_evaluations(tmp_path):
    def evaluated(workspace):
        if workspace.parent.name != "c0000":
            done = subprocess.run(
                ["/bin/sh", "-c", "echo $WRAPPED"],
                cwd=workspace,
                check=True,
                stdout=subprocess.PIPE,
                text=True,
                env={"PATH": os.environ["PATH"]},
            )
            seen.append(done.stdout.strip())

    seen = []
    proposer = Proposer(steps=lambda n: 1, command="echo $WRAPPED > wrapped")
    settings = flash(command_prefix=["env", "WRAPPED=yes"])
    _, folder = run(tmp_path, settings, budget=1, proposer=proposer, evaluator=Evaluator(evaluated))
    assert (folder / "candidates/c0001/workspace/wrapped").read_text() == "yes\n"
    assert seen == ["yes"]


def test_a_prefix_that_is_one_string_is_refused():
    with pytest.raises(ValueError, match="must be a list of words"):
        Flash(command_prefix="env A=b")


def test_other_processes_of_the_program_are_left_alone():
    before = subprocess.Popen
    with subprocess.Popen(["/bin/sleep", "300"]) as old, scoped_processes() as family:
        assert os.getpgid(old.pid) == os.getpgid(0)
        with subprocess.Popen(["/bin/sleep", "300"]) as outside:
            assert os.getpgid(outside.pid) == os.getpgid(0)
            with Scope((), family):
                inside = subprocess.Popen(["/bin/sleep", "300"])
                assert os.getpgid(inside.pid) == inside.pid
            assert inside.wait(PATIENCE) == -signal.SIGKILL
            assert (outside.poll(), old.poll()) == (None, None)
            outside.kill()
        old.kill()
    assert subprocess.Popen is before


def test_what_starts_after_the_end_of_a_run_ends_at_once():
    with scoped_processes() as family:
        scope = Scope((), family)
        with scope:
            family.kill()
            late = subprocess.Popen(["/bin/sleep", "300"])
            assert late.wait(PATIENCE) == -signal.SIGKILL
    late_scope = Scope((), family)
    with late_scope, scoped_processes() as other:
        assert isinstance(other, Family)
        assert subprocess.Popen(["/bin/sleep", "300"]).wait(PATIENCE) == -signal.SIGKILL


def test_an_interrupt_waits_for_what_is_written_together():
    def write():
        with interrupts_later():
            signal.raise_signal(signal.SIGINT)
            written.append("the frontier")

    written = []
    with pytest.raises(KeyboardInterrupt):
        write()
    assert written == ["the frontier"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
