"""The example programs run as they stand."""

import subprocess
import sys


def test_the_dspy_example_improves_its_program_within_its_budget(source_root, tmp_path):
    program = source_root / "examples" / "dspy_gepa.py"
    done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    candidates, calls = done.stdout.splitlines()
    seed, best = (float(word) for word in candidates.split() if word.startswith("0."))
    assert best > seed
    assert int(calls.split()[0]) <= 400
