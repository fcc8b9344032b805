"""Ctrl-C, SIGTERM, stop files and deadlines, in real processes: what is paid for is kept, and every process ends."""

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter

import pytest
from gepa.core.state import GEPAState

PATIENCE = 60.0  # seconds until a process that hangs is killed, and its test fails
BOTH = [signal.SIGINT, signal.SIGTERM]


class Child:
    """A run in a process of its own.

    Args:
        program: the path of the program.
        asked: what it is to do.
    """

    def __init__(self, program, **asked):
        command = [sys.executable, "-u", str(program), json.dumps({"flash": {}, **asked})]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=program.parent,
        )
        self.lines = []

    def until(self, beginning, times=1):
        """Read what it says up to so many lines that begin like this."""
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            times -= line.startswith(beginning)
            if times == 0:
                return
        pytest.fail(f"It ended before it said {beginning!r}:\n" + "\n".join(self.lines))

    def send(self, number):
        self.process.send_signal(number)

    def go_on(self):
        """Let go on what it holds."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self):
        """Wait for its end: what it said of each run."""
        self.lines += [line.rstrip("\n") for line in self.process.stdout]
        self.process.wait(PATIENCE)
        return [json.loads(line.removeprefix("end ")) for line in self.lines if line.startswith("end ")]

    def count(self, beginning):
        return sum(line.startswith(beginning) for line in self.lines)

    @property
    def text(self):
        return "\n".join(self.lines)


@pytest.fixture
def child(source_root):
    """Starts such processes; what of them is left is killed."""
    children = []

    def start(program="interrupted_child", **asked):
        children.append(Child(source_root / "tests" / "helpers" / f"{program}.py", **asked))
        return children[-1]

    yield start
    for each in children:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()
        each.process.stdout.close()
        each.process.stdin.close()


def lost(child, run_dir):
    """Finished metric calls that the state file does not count, and accepted candidates that are not in it."""
    state = GEPAState.load(str(run_dir))
    assert state.is_consistent()
    calls = abs(child.count("done") - state.total_num_evals)
    return calls + abs(1 + child.count("accepted") - len(state.program_candidates))


def lost_of_result(child, result, run_dir):
    """The same, and of the result."""
    assert result["score"] == max(result["scores"])
    calls = abs(child.count("done") - result["calls"])
    return lost(child, run_dir) + calls + abs(1 + child.count("accepted") - result["candidates"])


@pytest.mark.parametrize(("number", "tries"), [(signal.SIGINT, 8), (signal.SIGTERM, 4)], ids=["Ctrl-C", "SIGTERM"])
def test_once_settles_and_returns_the_best(child, tell, tmp_path, number, tries):
    missing = 0
    for seed in range(tries):
        run_dir = tmp_path / str(seed)
        process = child(optimize={"run_dir": str(run_dir)})
        process.until("done", random.Random(f"{number}{seed}").randint(11, 300))
        process.send(number)
        (result,) = process.end()
        assert result["how"] == "returned"
        assert process.lines[-1] == "over", "the program goes on"
        assert process.process.returncode == 0
        assert process.count("Stopping (") == 1
        missing += lost_of_result(process, result, run_dir)
    name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    tell(f"{name} once", tries=tries, outcome="settles, saves, returns the best so far", lost=missing)


@pytest.mark.parametrize("number", BOTH, ids=["Ctrl-C", "SIGTERM"])
@pytest.mark.parametrize("hang", ["sleep", "lock"])
def test_a_metric_that_blocks_for_ever_is_waited_for_no_longer_than_the_grace_period(
    child, tell, tmp_path, hang, number
):
    process = child(flash={"grace": 0.5}, optimize={"run_dir": str(tmp_path)}, hang=hang, hang_from=40)
    process.until("hanging", 4)  # in every slot
    process.send(number)
    (result,) = process.end()
    assert result["how"] == "returned"
    assert process.process.returncode == 0
    tell(
        f"{'Ctrl-C' if number == signal.SIGINT else 'SIGTERM'} while every metric is blocked in a {hang}",
        tries=1,
        outcome="returns the best after the grace period; the process ends by itself",
        lost=lost_of_result(process, result, tmp_path),
    )


@pytest.mark.parametrize("number", BOTH, ids=["Ctrl-C", "SIGTERM"])
def test_twice_ends_it_at_once(child, tell, tmp_path, number):
    missing = 0
    for seed in range(2):
        run_dir, at = tmp_path / str(seed), random.Random(seed).randint(20, 80)
        process = child(flash={"grace": 1e6}, optimize={"run_dir": str(run_dir)}, hang="sleep", hang_from=at)
        process.until("hanging", 4)
        process.send(number)
        process.until("Stopping (")
        process.send(number)
        assert process.end() == []
        assert process.process.returncode == (-number if number == signal.SIGINT else 128 + number)
        missing += lost(process, run_dir)
    name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    tell(f"{name} twice", tries=2, outcome="ends at once, with what was paid for saved", lost=missing)


@pytest.mark.parametrize("number", BOTH, ids=["Ctrl-C", "SIGTERM"])
def test_before_the_seed_is_validated_there_is_no_result(child, tell, tmp_path, number):
    process = child(flash={"grace": 0.2}, optimize={"run_dir": str(tmp_path)}, hang="sleep", hang_from=3)
    process.until("hanging", 4)
    process.send(number)
    assert process.end() == []
    assert process.process.returncode == (-number if number == signal.SIGINT else 128 + number)
    name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    outcome = "ends after the grace period, as without flash"
    tell(f"{name} before the seed is validated", tries=1, outcome=outcome, lost=int(process.process.poll() is None))


def test_a_stop_file_is_found_while_nothing_ends(child, tell, tmp_path):
    missing = 0
    for seed, name in enumerate(("flashevolve.stop", "enough")):
        run_dir = tmp_path / str(seed)
        stop_file = run_dir / name
        settings = {"grace": 0.2, "stop_file": str(run_dir / "enough")}
        at = random.Random(seed).randint(20, 80)
        process = child(flash=settings, optimize={"run_dir": str(run_dir)}, hang="sleep", hang_from=at)
        process.until("hanging", 4)
        stop_file.touch()
        (result,) = process.end()
        assert result["how"] == "returned"
        assert not stop_file.exists()
        missing += lost_of_result(process, result, run_dir)
    tell(
        "a stop file while every metric hangs",
        tries=2,
        outcome="returns the best so far, and the file is gone",
        lost=missing,
    )


def test_a_deadline_passes_while_nothing_ends(child, tell, tmp_path):
    missing = 0
    for seed in range(2):
        run_dir, at = tmp_path / str(seed), random.Random(seed).randint(20, 80)
        settings = {"grace": 0.2, "max_seconds": 0.5, "on_stop": "raise"}
        hangs = {"hang": "lock", "hang_from": at, "clock_from": ["hanging", 4]}
        process = child(flash=settings, optimize={"run_dir": str(run_dir)}, **hangs)
        (result,) = process.end()
        assert process.process.returncode == 0
        assert result["how"] == "RunStopped"
        assert (result["run_dir"], result["reason"]) == (str(run_dir), "max_seconds=0.5 are over")
        state = GEPAState.load(str(run_dir))
        assert result["best"] in state.program_candidates
        missing += lost(process, run_dir)
    outcome = 'saves, and raises `RunStopped` with the best (`on_stop="raise"`)'
    tell("the deadline passes while every metric hangs", tries=2, outcome=outcome, lost=missing)


def test_a_stopped_run_is_taken_up_where_it_was(child, tell, tmp_path):
    asked = {"optimize": {"run_dir": str(tmp_path), "max_metric_calls": 300}}
    process = child(**asked, hold_from=random.Random(7).randint(60, 150))
    process.until("holding", 4)  # in every slot
    process.send(signal.SIGINT)
    process.until("Stopping (")
    process.go_on()
    (first,) = process.end()
    assert first["calls"] < 300
    (second,) = (again := child(**asked)).end()
    assert second["how"] == "returned"
    assert second["score"] >= first["score"]
    missing = abs(process.count("done") + again.count("done") - second["calls"])
    missing += abs(first["candidates"] + again.count("accepted") - second["candidates"])
    tell(
        "Ctrl-C once, then the same call again", tries=1, outcome="goes on with every candidate and call", lost=missing
    )


def test_in_a_running_event_loop(child, tell, tmp_path):
    process = child(place="asyncio", optimize={"run_dir": str(tmp_path)})
    process.until("done", random.Random(3).randint(20, 100))
    process.send(signal.SIGINT)
    (result,) = process.end()
    assert "the loop goes on" in process.lines
    assert process.process.returncode == 0
    missing = lost_of_result(process, result, tmp_path)
    tell(
        "Ctrl-C once, inside `asyncio.run`", tries=1, outcome="returns the best so far; the loop goes on", lost=missing
    )


def test_runs_on_threads_leave_ctrl_c_to_the_main_thread(child, tell):
    process = child(place="threads", runs=3)
    process.until("done", random.Random(4).randint(60, 120))
    process.send(signal.SIGINT)
    assert process.end() == []
    assert process.process.returncode == -signal.SIGINT
    tell(
        "Ctrl-C with runs on other threads",
        tries=1,
        outcome="the process ends",
        lost=int(process.process.poll() is None),
    )


def test_several_runs_at_once_stop_at_their_own_deadlines(child, tell, tmp_path):
    options = {"flash": {"max_seconds": 0.5}, "optimize": {"run_dir": str(tmp_path)}}
    process = child(place="threads", runs=3, clock_from=["done", 30], **options)
    results = process.end()
    assert Counter(each["run"] for each in results) == {0: 1, 1: 1, 2: 1}
    missing = sum(abs(process.count(f"done {each['run']}") - each["calls"]) for each in results)
    tell("deadlines of three runs at once", tries=3, outcome="each returns its best so far", lost=missing)


def test_a_run_after_a_stopped_one_is_not_stopped(child, tell, tmp_path):
    options = {"run_dir": str(tmp_path), "max_metric_calls": 200}
    process = child(runs=2, hold_from=random.Random(5).randint(20, 80), optimize=options)
    process.until("holding", 4)  # in every slot
    process.send(signal.SIGINT)
    process.until("Stopping (")
    process.go_on()
    first, second = process.end()
    assert first["calls"] < 150 < second["calls"]
    missing = sum(abs(process.count(f"done {each['run']}") - each["calls"]) for each in (first, second))
    tell("Ctrl-C once in the first of two runs", tries=1, outcome="the second runs to its end", lost=missing)


def test_a_run_inside_a_metric_does_not_outlive_it(child, tell, tmp_path):
    process = child(flash={"grace": 0.5}, nested=60, optimize={"run_dir": str(tmp_path)})
    process.until("done nested", 20)
    process.send(signal.SIGINT)
    (result,) = process.end()
    assert result["how"] == "returned"
    assert process.process.returncode == 0
    assert process.count("nested") == 1, "it has returned, though nobody waits for it"
    missing = process.count("done 0") - result["calls"] not in {0, 1}  # the call that it was in may end too late
    outcome = "both stop, the outer one returns its best so far"
    tell("Ctrl-C once, with a run inside a metric", tries=1, outcome=outcome, lost=int(missing))


@pytest.mark.parametrize(("metric", "slots"), [("plain", 4), ("async", 1)])  # one that blocks is alone in its loop
def test_dspy_returns_the_best_program(child, tell, tmp_path, metric, slots):
    process = child("interrupted_dspy_child", flash={"grace": 0.5}, log_dir=str(tmp_path), hang_from=60, metric=metric)
    process.until("hanging", slots)
    process.send(signal.SIGINT)
    (result,) = process.end()
    assert process.lines[-1] == "over"
    assert process.process.returncode == 0
    assert GEPAState.load(str(tmp_path)).total_num_evals == result["calls"]
    tell(
        f"dspy.GEPA, Ctrl-C once while {'an async' if metric == 'async' else 'every'} metric hangs",
        tries=1,
        outcome="compile returns the best program; the process ends by itself",
        lost=abs(process.count("done") - result["calls"]),
    )


XDIST = """
import threading

import gepa
import pytest
from gepa_task import ONE, Reflection, Words

from flashevolve_plugins import Flash


@pytest.mark.parametrize("number", range(4))
def test_a_run(number):
    assert threading.current_thread() is threading.main_thread()
    adapter = Words()
    result = gepa.optimize(
        seed_candidate=ONE, trainset=list(range(12)), valset=list(range(100, 110)), adapter=adapter,
        reflection_lm=Reflection(), max_metric_calls=150, executor=Flash(progress=False, max_concurrency=4),
    )
    assert 10 < result.total_metric_calls == adapter.calls <= 150
"""


def test_workers_of_pytest_xdist(tell, tmp_path, source_root):
    (tmp_path / "test_runs.py").write_text(XDIST)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "test_runs.py"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    env["PYTHONPATH"] = str(source_root / "tests" / "helpers")
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=150)
    assert done.returncode == 0, done.stdout
    passed = int(done.stdout.split(" passed")[0].split()[-1])
    tell("runs in workers of pytest-xdist", tries=4, outcome="each runs to its end", lost=4 - passed)
