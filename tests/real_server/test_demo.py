import json

import pytest

from flashevolve_plugins._cli import main

CALLS = 18


@pytest.mark.timeout(1200)  # one thread answers every request, and dspy's reflections are long
def test_the_demo_runs_on_a_real_model_and_a_question_file(api_base, question_file, tmp_path, capsys):
    figures = tmp_path / "figures.json"
    server = ["--api-base", api_base, "--model", "smollm2", "--data", question_file]
    size = ["--calls", str(CALLS), "--slots", "4", "--train", "4", "--val", "3", "--max-tokens", "48"]

    code = main(["demo", *server, *size, "--json", str(figures)])

    sequential, flash = json.loads(figures.read_text("utf-8"))
    assert code == 0
    assert sequential["metric_calls"] >= CALLS
    assert 3 < flash["metric_calls"] <= CALLS
    assert flash["requests"] > flash["metric_calls"]  # reflections are requests too
    assert flash["true_score"] is None
    assert "wall time" in capsys.readouterr().out
