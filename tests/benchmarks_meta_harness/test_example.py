"""The example program runs as it stands, and so do the programs of the page that tells how."""

import re
import subprocess
import sys


def test_the_example_finds_a_better_harness(source_root, tmp_path):
    program = source_root / "examples" / "meta_harness.py"
    done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    before, after, names = re.search(r"score (\d\.\d+) -> (\d\.\d+), (\d+) candidates", done.stdout).groups()
    assert float(after) > float(before)
    assert names == "12"


def test_the_programs_of_the_how_to_run(source_root, tmp_path):
    text = (source_root / "docs" / "how-to" / "use-meta-harness.md").read_text("utf-8")
    programs = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(programs) == 2
    for number, program in enumerate(programs):
        folder = tmp_path / str(number)
        (folder / "harness").mkdir(parents=True)
        (folder / "harness" / "prompt.txt").write_text("answer")
        (folder / "program.py").write_text(program)
        command = [sys.executable, "program.py"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("c00")
