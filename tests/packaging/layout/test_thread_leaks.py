"""The fixture that finds leaked threads finds them, and nothing else."""

import subprocess
import sys

LEAKS = """
import threading

forever = threading.Event()

def start(name, daemon):
    threading.Thread(target=forever.wait, name=name, daemon=daemon).start()

def test_ours_leaks():
    start("flashevolve-worker-0", daemon=True)

def test_one_that_keeps_the_process_alive_leaks():
    start("other", daemon=False)

def test_anothers_daemon_may_stay():
    start("other-daemon", daemon=True)

def test_one_that_ends_soon_is_waited_for():
    threading.Thread(target=lambda: forever.wait(0.2), name="flashevolve-brief").start()

def test_a_thread_from_before_is_not_blamed_again():
    names = [thread.name for thread in threading.enumerate()]
    assert "flashevolve-worker-0" in names

def test_release():
    forever.set()
"""


def test_a_leaked_thread_fails_its_own_test_and_no_other(source_root, tmp_path):
    conftest = (source_root / "tests" / "conftest.py").read_text(encoding="utf-8")
    quick = conftest.replace("JOIN_SECONDS = 30.0", "JOIN_SECONDS = 5.0")
    assert quick != conftest
    (tmp_path / "conftest.py").write_text(quick, encoding="utf-8")
    (tmp_path / "test_leaks.py").write_text(LEAKS, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", tmp_path, "-q", tmp_path],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert "6 passed, 2 errors" in done.stdout, done.stdout
    assert "1 thread(s) running: flashevolve-worker-0." in done.stdout
    assert "1 thread(s) running: other." in done.stdout
