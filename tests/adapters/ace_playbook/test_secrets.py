"""Secrets in the errors of ACE's models stay out of what flash writes."""

import logging

import pytest
from ace_task import NumberModel, make_ace, make_task

from flashevolve_plugins import BackendError, Flash
from flashevolve_plugins._redact import HIDDEN, redact

KEY = "sk-proj-0123456789abcdefghijKLMNOP"


def failing(every):
    """A model whose generation raises with a key in its message."""

    def reached(role, user):
        if role == "Generator" and any(f"question {number}\n" in user for number in every):
            raise RuntimeError(f"Incorrect API key provided: {KEY}")

    return NumberModel(reached=reached)


def written(run_dir, caplog):
    files = [file.read_text("utf-8") for file in run_dir.iterdir() if file.name.startswith("flashevolve")]
    lines = [logging.Formatter().format(each) for each in caplog.records if each.name == "flashevolve_plugins"]
    return [*files, *lines]


@pytest.mark.parametrize("always", [False, True])
def test_a_key_in_an_error_is_in_no_file_line_or_sentence(always, tmp_path, caplog):
    model = failing(range(40) if always else {3, 7})
    flash = Flash(progress=False, run_dir=str(tmp_path), evaluate="example", check_connection=False)
    ace = make_ace(model, executor=flash)
    found = []
    try:
        ace.adapt_offline(make_task(40 if always else 12))
    except BackendError as error:
        found.append(str(error))
    assert always is bool(found)
    found += written(tmp_path, caplog)
    assert any(HIDDEN in text for text in found)
    assert not any(KEY[:24] in text for text in found)


def test_the_key_of_a_role_s_model_is_hidden_from_then_on(tmp_path):
    model = NumberModel()
    model.api_key = "plain-words-of-ace"
    make_ace(model, executor=Flash(progress=False, run_dir=str(tmp_path), evaluate="example")).adapt_offline(
        make_task(3)
    )
    assert redact("plain-words-of-ace") == HIDDEN


@pytest.mark.parametrize(("name", "value"), [("rollouts", 2), ("speculate", True), ("remember_rejected", True)])
def test_options_of_other_hosts_are_refused_before_anything_is_spent(name, value):
    model = NumberModel()
    with pytest.raises(ValueError, match=f"{name}={value} is for gepa and dspy"):
        make_ace(model, executor=Flash(progress=False, evaluate="example", **{name: value})).adapt_offline(make_task(3))
    assert model.num_calls == 0
