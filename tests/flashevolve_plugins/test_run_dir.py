"""A run's directory: one run at a time, and nothing is loaded that others could have written."""

import json
import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flashevolve_plugins import UsageError
from flashevolve_plugins._run_dir import LOCK, Lock, require_trusted, require_writable

HOLD = """
import sys
from flashevolve_plugins._run_dir import Lock
lock = Lock(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the directory; killed at the end."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_directory_in_use_is_refused_and_the_holder_is_named(tmp_path, holder):
    with pytest.raises(UsageError, match=f"in use by process {holder.pid} on {socket.gethostname()}"):
        Lock(str(tmp_path))


def test_a_killed_holder_is_taken_over(tmp_path, holder):
    holder.kill()
    holder.wait()
    with Lock(str(tmp_path)):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
    assert list(tmp_path.iterdir()) == []


def test_two_runs_of_one_process_do_not_share_a_directory(tmp_path):
    with Lock(str(tmp_path)), pytest.raises(UsageError, match="in use"):
        Lock(str(tmp_path))
    Lock(str(tmp_path)).release()


@pytest.mark.parametrize(("seconds", "lives"), [(10, True), (120, False)])
def test_another_machine_s_lock_lives_while_it_is_touched(tmp_path, seconds, lives):
    (tmp_path / LOCK).write_text(json.dumps({"host": "elsewhere", "pid": 1}))
    touched = time.time() - seconds
    os.utime(tmp_path / LOCK, (touched, touched))
    if lives:
        with pytest.raises(UsageError, match="process 1 on elsewhere"):
            Lock(str(tmp_path))
    else:
        Lock(str(tmp_path)).release()


@pytest.mark.skipif(not Path("/proc/self/ns/pid").exists(), reason="process numbers count in spaces on Linux")
@pytest.mark.parametrize(("seconds", "lives"), [(10, True), (120, False)])
def test_a_container_of_the_same_host_name_lives_while_its_lock_is_touched(tmp_path, seconds, lives):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    own = {"host": socket.gethostname(), "space": "pid:[1]", "pid": gone.pid, "began": "1"}
    (tmp_path / LOCK).write_text(json.dumps(own))
    touched = time.time() - seconds
    os.utime(tmp_path / LOCK, (touched, touched))
    if lives:
        with pytest.raises(UsageError, match=f"process {gone.pid} on {socket.gethostname()}"):
            Lock(str(tmp_path))
    else:
        Lock(str(tmp_path)).release()


def test_a_number_that_was_given_to_another_process_is_no_holder(tmp_path):
    own = {"host": socket.gethostname(), "pid": os.getpid(), "began": "not this one"}
    (tmp_path / LOCK).write_text(json.dumps(own))
    Lock(str(tmp_path)).release()


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"host": 1}'])
def test_a_lock_that_says_nothing_is_taken_over(tmp_path, content):
    (tmp_path / LOCK).write_text(content)
    touched = time.time() - 120
    os.utime(tmp_path / LOCK, (touched, touched))
    Lock(str(tmp_path)).release()


def test_a_lock_is_touched_while_it_is_held(tmp_path, monkeypatch):
    monkeypatch.setattr("flashevolve_plugins._run_dir.BEAT_EVERY", 0.01)
    with Lock(str(tmp_path)):
        os.utime(tmp_path / LOCK, (0, 0))
        deadline = time.monotonic() + 60
        while (tmp_path / LOCK).stat().st_mtime < 1:
            assert time.monotonic() < deadline


def test_a_directory_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="run_dir=.* cannot be written"):
        require_writable(str(tmp_path / "file" / "run"))
    require_writable(str(tmp_path / "new" / "run"))
    assert list((tmp_path / "new" / "run").iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
@pytest.mark.parametrize("mode", [stat.S_IWOTH, stat.S_IWGRP], ids=["everybody", "a group"])
@pytest.mark.parametrize("which", ["directory", "file"])
def test_what_others_may_write_is_not_loaded(tmp_path, monkeypatch, mode, which):
    state = tmp_path / "state"
    require_trusted(str(tmp_path), ["state"])
    path = tmp_path if which == "directory" else state
    path.chmod(path.stat().st_mode | mode) if path.exists() else None
    require_trusted(str(tmp_path), ["state"])  # nothing is there to be loaded
    state.write_bytes(b"")
    path.chmod(path.stat().st_mode | mode)
    group = path.stat().st_gid
    monkeypatch.setattr("flashevolve_plugins._run_dir._members", lambda found: ["eve"] if found == group else [])
    with pytest.raises(UsageError, match=r"run their code.*trust_run_dir"):
        require_trusted(str(tmp_path), ["state"])


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_a_group_of_one_s_own_is_trusted(tmp_path, monkeypatch):
    (tmp_path / "state").write_bytes(b"")
    tmp_path.chmod(0o770)
    monkeypatch.setattr("flashevolve_plugins._run_dir._members", lambda _: [])
    require_trusted(str(tmp_path), ["state"])
