"""Calls the command ``claude``, and keeps what it printed.

Its timeout begins when a session says that it hangs: a machine that is slow lets no other session run into it.
"""

import os
import subprocess
import time
from pathlib import Path


class Session:
    def __init__(self, exit_code, stderr):
        self.exit_code, self.stderr = exit_code, stderr

    def show(self):
        pass


def communicate(process, seconds):
    """Return what a session printed; raise TimeoutExpired so many seconds after it began to hang."""
    hangs = Path(os.environ["FAKE_LOG"], f"hangs-{process.pid}")
    while True:
        hung = hangs.exists()
        try:
            return process.communicate(timeout=seconds if hung else 0.05)
        except subprocess.TimeoutExpired:
            if hung:
                process.kill()
                raise


def run(prompt, log_dir, name, cwd, timeout_seconds, **_):
    command = ["claude", "-p", prompt]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=cwd, env=dict(os.environ), stdout=pipe, stderr=pipe, text=True) as process:
        try:
            printed, said = communicate(process, timeout_seconds)
            code = process.returncode
        except subprocess.TimeoutExpired:
            code, printed, said = 124, "", "timed out"
    folder = Path(log_dir) / f"{time.strftime('%Y%m%d_%H%M%S')}_{name}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "events.jsonl").write_text(printed)
    (folder / "meta.json").write_text(said)
    return Session(code, said)
