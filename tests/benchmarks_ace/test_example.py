"""The example program runs as it stands."""

import re
import subprocess
import sys


def test_the_example_writes_a_playbook_that_helps(source_root, tmp_path):
    program = source_root / "examples" / "ace_playbook.py"
    done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    size, score = done.stdout.splitlines()
    assert size.startswith("60 samples, ")
    before, after = map(float, re.findall(r"0\.\d+", score))
    assert after > before
