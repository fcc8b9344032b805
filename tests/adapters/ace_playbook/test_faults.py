"""What goes wrong: failed samples, a dead server, an interrupt, another run's directory, an unknown ``ace``."""

import json
import socket
import subprocess
import sys
from collections import Counter

import pytest
from ace import ACE, Generator, OpenAILLM, Playbook
from ace_task import NumberModel, contents, dumped, make_ace, make_task

from flashevolve_plugins import BackendError, Flash, UnknownNameError, UsageError


def flash(**settings):
    return Flash(progress=False, **{"evaluate": "example", "max_concurrency": 4, **settings})


def test_failed_samples_are_counted_and_the_rest_is_learned(caplog):
    ace = make_ace(NumberModel(fails={3, 5}), executor=flash(clock="virtual"))
    result = ace.adapt_offline(make_task(20))
    assert sorted(record.sample_id for record in result.history) == sorted(
        f"s{n}" for n in range(20) if n not in {3, 5}
    )
    assert len(ace.playbook) == 18
    assert "2 of 20 samples failed and taught nothing; the first: LookupError: question 3 has no answer." in caplog.text


def test_a_model_that_always_fails_ends_the_run_with_one_sentence():
    settings = flash(clock="virtual")
    model = NumberModel(fails=range(5, 99))
    ace = make_ace(model, executor=settings)
    with pytest.raises(BackendError, match=r"10 samples in a row failed \(LookupError: question \d+ has no answer\)"):
        ace.adapt_offline(make_task(90))
    assert contents(ace) == [f"rule {n}" for n in range(5)]
    assert model.count("Generator") < 60
    assert settings.last_run.ended["failed"] >= 10


def test_a_server_that_is_not_there_costs_nothing():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
    ace = make_ace(OpenAILLM(base_url=url, api_key="none"), executor="flash")
    with pytest.raises(BackendError, match=rf"No server answers at {url}/? .*Nothing was spent"):
        ace.adapt_offline(make_task(3))


def test_a_model_of_ones_own_is_called_once_at_a_time_and_one_sentence_says_so(caplog):
    settings = Flash(progress=False)
    make_ace(NumberModel(), executor=settings).adapt_offline(make_task(6))
    assert settings.last_run.slots["task"] == 1
    assert caplog.text.count("pass Flash(evaluate='example') if several threads may call it") == 1


class Stop(BaseException):
    pass


@pytest.mark.parametrize("policy", ["full", "merge"])
def test_an_interrupted_run_keeps_its_playbook_and_goes_on_where_it_was(tmp_path, policy, same_ids):
    model, told = NumberModel(), []

    def stop_at_seven(record):
        told.append(record.sample_id)
        if len(told) == 7:
            raise Stop

    ace = make_ace(model, executor=flash(run_dir=str(tmp_path), staleness=policy, clock="virtual"), epochs=2)
    with pytest.raises(Stop):
        ace.adapt_offline(make_task(10), stop_at_seven)
    assert len(ace.playbook) >= 7
    before = model.count("Generator")

    playbook = Playbook()
    again = make_ace(model, executor=flash(run_dir=str(tmp_path), staleness=policy, clock="virtual"), epochs=2)
    again.playbook = playbook
    result = again.adapt_offline(make_task(10), lambda record: told.append(record.sample_id))
    assert again.playbook is playbook
    assert sorted(record.sample_id for record in result.history) == sorted(f"s{n}" for n in range(10) for _ in "ab")
    assert contents(again) == sorted(f"rule {n}" for n in range(10))
    assert model.count("Generator") - before <= 14
    assert not Counter(told) - Counter(record.sample_id for record in result.history)  # nobody is called back twice

    calls = model.num_calls
    third = make_ace(model, executor=flash(run_dir=str(tmp_path), staleness=policy, clock="virtual"), epochs=2)
    assert len(third.adapt_offline(make_task(10)).history) == 20
    assert model.num_calls == calls
    assert dumped(third) == dumped(again)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: None, "belongs to a run with other samples"),
        (lambda path: path.write_text("{"), "cannot be read as a run of ACE: move it away"),
        (lambda path: path.write_text('{"schema": 2}'), "has schema 2, and this version reads 1"),
    ],
)
def test_a_directory_that_does_not_fit_is_refused_before_anything_is_spent(tmp_path, change, message):
    make_ace(NumberModel(), executor=flash(run_dir=str(tmp_path))).adapt_offline(make_task(3))
    path = tmp_path / "flashevolve_ace.json"
    change(path)
    kept, model = path.read_text(), NumberModel()
    with pytest.raises(UsageError, match=message):
        make_ace(model, executor=flash(run_dir=str(tmp_path))).adapt_offline(make_task(3, first=5))
    assert (model.num_calls, path.read_text()) == (0, kept)


def test_the_items_are_recorded_with_what_they_added(tmp_path):
    make_ace(NumberModel(), executor=flash(run_dir=str(tmp_path), clock="virtual")).adapt_offline(make_task(6))
    lines = [json.loads(line) for line in (tmp_path / "flashevolve_items.jsonl").read_text().splitlines()]
    assert lines[0]["host"] == "ace-playbook, adapt_offline"
    added = [text for line in lines[1:] for entry in line.get("entries", ()) for text in entry["changed"].values()]
    assert sorted(added) == [f"rule {n}" for n in range(6)]


# -- who runs under flash ---------------------------------------------------------------------------------------------


def test_an_executor_that_is_none_is_refused_when_ace_is_made():
    with pytest.raises(UnknownNameError, match="Unknown executor 'flush': known are 'flash'"):
        make_ace(NumberModel(), executor="flush")


def test_a_with_block_reaches_an_ace_and_none_keeps_it_out():
    for given, under in ((..., True), (None, False)):
        settings = flash(clock="virtual")
        ace = make_ace(NumberModel(), executor=given)
        with settings:
            result = ace.adapt_offline(make_task(5))
        assert len(result.history) == 5
        assert (settings.last_run is not None) == under


def test_a_wrong_argument_gets_the_hosts_words():
    with pytest.raises(TypeError, match="missing a required argument: 'task'|missing 1 required positional"):
        make_ace(NumberModel(), executor=flash()).adapt_offline()


OLD = """
class ACE:
    def step(self): ...
class Playbook: ...
class DeltaContext: ...
def apply_delta(): ...
"""


@pytest.mark.parametrize("other", ["ACE = None", OLD])
def test_another_ace_gets_one_sentence_that_names_the_three(tmp_path, other):
    (tmp_path / "ace.py").write_text(other)
    code = "import warnings; warnings.simplefilter('error'); import flashevolve_plugins, ace"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "is none that flash knows" in done.stderr
    for name in ("ace-playbook 0.3", "ace-framework 0.7.0 to 0.7.1", "ace-agent/ace"):
        assert name in done.stderr


def test_a_class_with_steps_of_its_own_is_refused_and_its_roles_are_used():
    class Stepping(ACE):
        def step(self, *args, **kwargs):
            return super().step(*args, **kwargs)

    model = NumberModel()
    with pytest.raises(UsageError, match="Stepping.step is not the host's own, and flash would not call it"):
        Stepping(model, executor="flash").adapt_offline(make_task(3))
    assert model.num_calls == 0

    class Shouting(Generator):
        def generate(self, sample, playbook):
            generation = super().generate(sample, playbook)
            generation.answer += "!"
            return generation

    ace = make_ace(model, executor=flash())
    ace.generator = Shouting(model)
    assert {record.prediction[-1] for record in ace.adapt_offline(make_task(3)).history} == {"!"}
