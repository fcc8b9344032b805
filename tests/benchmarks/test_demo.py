"""What ``flashevolve demo`` refuses, before anything is spent, in one sentence."""

import pytest

from flashevolve_plugins._cli import main

BAD = {
    "no slots": (["--slots", "0"], "--slots=0 must be at least 1"),
    "no training example": (["--train", "0"], "--train=0 must be at least 1"),
    "no folder": (["--json", "nowhere/figures.json"], "there is no such folder"),
    "half of a server": (["--api-base", "http://127.0.0.1:9/v1"], "--api-base, --model and --data go together"),
    "unknown policy": (["--staleness", "young"], "Unknown staleness policy 'young'"),
}
FILES = {
    "no JSON": ("question: 1\n", "is no JSON-lines file"),
    "no object": ("[1]\n", "has a line that is no JSON object"),
    "other fields": ('{"q": 1}\n', "has a line with the fields ['q']"),
    "too short": ('{"question": "1 + 1?", "answer": "#### 2"}\n', "has 1 examples, fewer than"),
}


@pytest.mark.parametrize(("arguments", "sentence"), BAD.values(), ids=BAD)
def test_a_bad_option_is_told_in_one_sentence(arguments, sentence, capsys):
    assert main(["demo", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert sentence in err


@pytest.mark.parametrize(("text", "sentence"), FILES.values(), ids=FILES)
def test_a_bad_file_is_told_in_one_sentence(text, sentence, server, tmp_path, capsys):
    path = tmp_path / "questions.jsonl"
    path.write_text(text, "utf-8")
    assert main(["demo", "--api-base", server.base_url, "--model", "simulated", "--data", str(path)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert sentence in err


def test_a_server_that_is_not_there_is_told_before_anything_is_spent(tmp_path, capsys):
    path = tmp_path / "questions.jsonl"
    path.write_text(FILES["too short"][0], "utf-8")
    assert main(["demo", "--api-base", "http://127.0.0.1:9/v1", "--model", "any", "--data", str(path)]) == 2
    assert "No server answers at http://127.0.0.1:9/v1" in capsys.readouterr().err
