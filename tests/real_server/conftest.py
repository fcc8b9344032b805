import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SLOTS = 4
CONTEXT = 8192  # tokens per slot: a reflection of dspy is long

QUESTIONS = [
    (f"Tom has {a} apples and gets {b} more. How many apples has he?", a + b)
    for a, b in zip(range(2, 26), range(3, 27), strict=True)
]


@pytest.fixture(scope="session")
def api_base():
    """Base URL of a llama.cpp server with a real model of 135 million parameters, on loopback."""
    command = [sys.executable, str(Path(__file__).with_name("serve.py")), str(SLOTS), str(CONTEXT)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            yield server.stdout.readline().strip() + "/v1"
        finally:
            server.terminate()


@pytest.fixture(params=["gsm8k", "formula"])
def question_file(request, tmp_path):
    """A file in the format of one benchmark: the real one where FLASHEVOLVE_DATA names its folder, else our own."""
    folder = os.environ.get("FLASHEVOLVE_DATA")
    if folder:
        return str(Path(folder) / f"{request.param}_test.jsonl")
    path = tmp_path / f"{request.param}.jsonl"
    if request.param == "gsm8k":
        rows = [{"question": text, "answer": f"We add.\n#### {number}"} for text, number in QUESTIONS]
    else:
        rows = [{"context": text, "target": str(number)} for text, number in QUESTIONS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return str(path)
