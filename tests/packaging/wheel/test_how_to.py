"""A reader who follows "Write a policy in ten minutes" to the letter, from an empty directory, gets what it shows."""

import os
import re
import subprocess

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARK = "=== the output of command"


def steps(text):
    """The blocks of a page in their order, as shell code that writes files and runs commands, and the outputs."""
    script, outputs = ["set -euo pipefail"], []
    for language, body in BLOCK.findall(text):
        if language != "console":
            name = re.match(r"# ([\w.]+)\n", body).group(1)
            script.append(f"cat >> {name} <<'END OF {name}'\n{body}\nEND OF {name}")
            continue
        for command in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
            line, _, output = command.partition("\n")
            script += [f"echo '{MARK}'", line]
            outputs.append(output)
    return "\n".join(script), outputs


def without_numbers(text):
    return " ".join(re.sub(r"\d+(\.\d+)?", "N", text).split())


def test_a_reader_gets_a_policy_to_run_from_an_empty_directory(source_root, checkout, tmp_path):
    script, outputs = steps((source_root / "docs" / "how-to" / "write-a-policy.md").read_text("utf-8"))
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        ["bash", "-c", script],  # noqa: S607 - whichever the reader has
        cwd=tmp_path,
        env={**clean, "CHECKOUT": str(checkout), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    printed = done.stdout.split(f"{MARK}\n")[1:]
    assert len(printed) == len(outputs)
    shown = [(printed, output) for printed, output in zip(printed, outputs, strict=True) if output]
    assert len(shown) == 5
    for real, told in shown:
        assert without_numbers(real) == without_numbers(told)
    (listed,) = (each for each in printed if "Flash(staleness=" in each)
    assert 'Flash(staleness="second-opinion")' in listed
    assert "my-policy 0.1.0" in listed
