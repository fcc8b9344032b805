"""What goes wrong: failed samples, a dead server, an executor too many, another version of ``ace``."""

import importlib.metadata
import inspect
import logging
import re
import socket
from contextlib import nullcontext

import ace as package
import pytest
from ace import Agent, LiteLLMClient, Reflector, SkillManager
from framework_task import NumberModel, add_all, book_of, contents, counters, make_ace, make_samples, run

from flashevolve_plugins import BackendError, Flash, HostError, UsageError
from flashevolve_plugins.adapters.ace.install import install


def flash(**settings):
    return Flash(progress=False, **{"evaluate": "example", "max_concurrency": 4, "staleness": "full", **settings})


def test_failed_samples_are_logged_and_counted(caplog):
    caplog.set_level(logging.INFO, "ace")
    ace = make_ace(NumberModel(fails={3, 5}), executor=flash())
    results = run(ace, make_samples(20))
    assert sorted(each.step - 1 for each in results) == [n for n in range(20) if n not in {3, 5}]
    assert len(contents(ace)) == 18
    assert "Sample 4 of epoch 1 failed: LookupError: question 3 has no answer" in caplog.text
    assert "2 of 20 samples failed." in caplog.text
    assert "2 of 20 samples failed and taught nothing; the first: LookupError: question 3 has" in caplog.text


@pytest.mark.parametrize("lockstep", [True, False])
def test_what_was_reflected_counts_though_the_curation_fails(lockstep):
    def operations(learned, prompt):
        raise LookupError("no answer")

    settings = Flash(lockstep=True, progress=False) if lockstep else flash()
    ace = make_ace(NumberModel(operations), executor=settings, skillbook=book_of("rule 3"))
    assert run(ace, make_samples(1, first=3) * 4) == []
    assert counters(ace) == {"rule 3": (4, 0, 0)}
    assert [each.count('"number": 3') for each in ace._recent_reflections] == [1, 1, 1]


def test_an_operation_that_the_host_cannot_apply_fails_its_sample_and_costs_no_other(caplog):
    def operations(learned, prompt):
        wrong = {"type": "ADD", "section": " ", "content": "of no section"}
        return [wrong] * ("rule 2" in learned) + add_all(learned, prompt)

    ace = make_ace(NumberModel(operations), executor=flash())
    assert sorted(each.step for each in run(ace, make_samples(5))) == [1, 2, 4, 5]
    assert contents(ace) == [f"rule {n}" for n in range(5)]
    assert "Sample 3 of epoch 1 failed: IndexError" in caplog.text


def test_a_model_that_always_fails_ends_the_run_with_one_sentence():
    settings, model = flash(clock="virtual"), NumberModel(fails=range(5, 99))
    ace = make_ace(model, executor=settings)
    with pytest.raises(BackendError, match=r"10 samples in a row failed \(LookupError: question \d+ has no"):
        run(ace, make_samples(90))
    assert contents(ace) == [f"rule {n}" for n in range(5)]
    assert model.count("agent") < 60


def litellm_ace(port, **given):
    client = LiteLLMClient(model="openai/none", api_key="none", api_base=f"http://127.0.0.1:{port}/v1")
    roles = {"agent": Agent(client), "reflector": Reflector(client), "skill_manager": SkillManager(client)}
    return package.OfflineACE(**roles, **given)


def test_a_server_that_is_not_there_costs_nothing():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    ace = litellm_ace(port, executor="flash")
    with pytest.raises(BackendError, match=rf"No server answers at http://127.0.0.1:{port}/v1 .*Nothing was spent"):
        run(ace, make_samples(3))


def test_the_hosts_own_client_is_called_at_once_and_another_once_at_a_time(caplog):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        settings = Flash(progress=False, max_concurrency=7)
        ace = litellm_ace(server.getsockname()[1], executor=settings)
        assert run(ace, []) == []
        assert settings.last_run.slots["task"] == 7
        ace.agent = package.ReplayAgent()
        assert run(ace, []) == []
        assert (settings.last_run.slots["task"], settings.last_run.slots["reflection"]) == (7, 7)
    assert "once at a time" not in caplog.text
    settings = Flash(progress=False)
    run(make_ace(NumberModel(), executor=settings), make_samples(6))
    assert settings.last_run.slots["task"] == 1
    assert caplog.text.count("pass Flash(evaluate='example') if several threads may call it") == 1


def test_a_model_for_reflecting_has_slots_of_its_own():
    settings = flash(max_concurrency=2, reflection_concurrency=3)
    agent, other = NumberModel(), NumberModel()
    run(make_ace(agent, reflects_with=other, executor=settings), make_samples(6))
    assert settings.last_run.slots["reflection"] == 3
    assert (agent.count("agent"), other.count("reflector"), other.count("manager")) == (6, 6, 6)


@pytest.mark.parametrize("block", [True, False])
def test_two_asynchronous_executors_are_refused_before_anything_is_spent(block):
    model = NumberModel()
    ace = make_ace(model, async_learning=True, **({} if block else {"executor": "flash"}))
    sentence = "^async_learning=True and flash are two asynchronous executors: leave out"
    with Flash(progress=False) if block else nullcontext(), pytest.raises(UsageError, match=sentence):
        run(ace, make_samples(3))
    assert model.calls == []
    assert ace._async_pipeline is None


def test_arguments_get_the_hosts_own_words():
    model = NumberModel()
    ace = make_ace(model, executor=flash())
    with pytest.raises(ValueError, match="checkpoint_dir"):
        run(ace, make_samples(3), checkpoint_interval=2)
    with pytest.raises(TypeError, match="epoch"):
        run(ace, make_samples(3), epoch=2)
    assert model.calls == []


def test_arguments_by_position(tmp_path):
    ace = make_ace(NumberModel(), executor=flash())
    results = ace.run(make_samples(2), package.SimpleEnvironment(), 2, 4, str(tmp_path), False)
    assert len(results) == 4
    assert (tmp_path / "ace_checkpoint_4.json").exists()


def test_a_later_version_gets_one_sentence(monkeypatch):
    monkeypatch.setattr("flashevolve_plugins.adapters.ace.install.version", lambda name: "0.13.0")
    sentence = "none that flash knows: ace-playbook 0.3, ace-framework 0.7.0 to 0.7.1, or a checkout of ace-agent/ace."
    with pytest.raises(HostError, match=re.escape(sentence)):
        install()


def test_the_versions_that_are_known():
    assert importlib.metadata.version("ace-framework") in {"0.7.0", "0.7.1"}
    before = package.OfflineACE.run, package.OfflineACE.__init__, package.OnlineACE.__init__
    install()
    assert (package.OfflineACE.run, package.OfflineACE.__init__, package.OnlineACE.__init__) == before


def test_the_hosts_signature_names_the_option_and_online_has_none():
    assert inspect.signature(package.OfflineACE).parameters["executor"].kind is inspect.Parameter.KEYWORD_ONLY
    assert "executor" not in inspect.signature(package.OnlineACE).parameters
    with pytest.raises(UsageError, match="executor"):
        make_ace(NumberModel(), executor="flask")


def test_a_class_with_steps_of_its_own_is_refused_before_anything_is_spent():
    model = NumberModel()
    ace = make_ace(model, executor=flash())
    ace.__class__ = type("Stepping", (type(ace),), {"_process_sample": lambda self, *args, **kwargs: None})
    with pytest.raises(UsageError, match="Stepping._process_sample is not the host's own, and flash would not call it"):
        run(ace, make_samples(3))
    assert model.calls == []
