"""gepa's ``LangChainAdapter``, with chat models of langchain's own kind."""

import pytest
from gepa.adapters.langchain_adapter import LangChainAdapter, last_message_text, make_reflection_lm
from gepa_adapters import Echo, data, grade, run_all
from gepa_task import ONE, Reflection
from langchain_core.language_models.chat_models import SimpleChatModel
from langchain_core.messages import HumanMessage, SystemMessage

from flashevolve_plugins import Flash, UsageError, _governor
from flashevolve_plugins.adapters.gepa.evaluation import evaluator_for
from flashevolve_plugins.adapters.gepa.shipped import declare_shipped


class Chat(SimpleChatModel):
    """A chat model around a function from messages to text."""

    answer: object

    def _call(self, messages, stop=None, run_manager=None, **_):
        return self.answer([{"role": each.type, "content": each.content} for each in messages])

    @property
    def _llm_type(self):
        return "fake"


def adapter(model, **options):
    chat = Chat(answer=model)

    def roll_out(candidate, row):
        messages = [SystemMessage(candidate["a"]), HumanMessage(row["input"])]
        answer = chat.invoke(messages)
        answer.id = None  # by chance, else
        return {"messages": [*messages, answer]}

    def evaluate(row, state):
        value = grade(int(row["input"].split()[1]), last_message_text(state))
        return value, f"{value:.2f}"

    return LangChainAdapter(roll_out, evaluate, num_threads=4, **options)


def test_it_works_example_by_example_in_as_many_slots_as_it_has_threads(kit, caplog, capsys):
    caplog.set_level("WARNING")
    run = run_all(kit, adapter, meet=(1, 2))
    assert 2 <= run.most_at_once <= run.last.slots["task"] == 4
    assert caplog.messages == []


def test_a_chat_model_reflects(kit):
    reflection = Reflection()
    chat = make_reflection_lm(Chat(answer=lambda messages: reflection(messages[0]["content"])))
    flash = Flash(progress=False, reflection_concurrency=4)
    run = kit.run(
        flash, adapter=adapter(Echo()), trainset=data(range(12)), valset=data(range(8)), reflection=chat,
        seed_candidate=ONE,
    )  # fmt: skip
    assert reflection.calls > 1
    assert len(run.result.candidates) > 1


@pytest.mark.parametrize("shows", [True, False])
def test_its_bar_per_batch_is_not_shown_for_every_example(kit, shows, capsys):
    declare_shipped()
    made = adapter(Echo(), show_progress=shows)
    assert evaluator_for(made, None).adapter.show_progress is False
    for executor in (None, Flash(progress=False, reflection_concurrency=4)):
        kit.run(executor, adapter=made, trainset=data(range(12)), valset=data(range(8)))
        assert ("evaluate" in capsys.readouterr().err) is (shows and executor is None)
    assert made.show_progress is shows


def test_what_the_rollout_raises_is_the_example_s_failure_as_in_the_host(kit):
    class Failing(Echo):
        def answer(self, messages):
            if messages[1]["content"] == "case 105":
                raise LookupError("no answer")
            return super().answer(messages)

    task = {"trainset": data(range(12)), "valset": data(range(100, 110))}
    seen = []
    for executor in (None, Flash(progress=False, reflection_concurrency=4)):
        run = kit.run(executor, adapter=adapter(Failing(), show_progress=False), **task)
        seen.append(run.result.val_subscores[0][5])
    assert seen == [0.25, 0.25]


def test_a_rollout_whose_server_fails_is_tried_again_and_not_scored(kit, monkeypatch):
    monkeypatch.setattr(_governor, "FIRST_DELAY", 0.01)
    raised = []

    class Failing(Echo):
        def answer(self, messages):
            if messages[1]["content"] == "case 105" and len(raised) < 3:
                raised.append(1)
                raise ConnectionResetError("reset")
            return super().answer(messages)

    task = {"trainset": data(range(12)), "valset": data(range(100, 110))}
    flash = Flash(progress=False, reflection_concurrency=4)
    run = kit.run(flash, adapter=adapter(Failing(), show_progress=False), **task)
    undisturbed = kit.run(Flash(progress=False), adapter=adapter(Echo(), show_progress=False), **task)
    assert run.result.val_subscores[0] == undisturbed.result.val_subscores[0]
    assert flash.last_run.retries == 3


def test_whole_batches_are_refused():
    declare_shipped()
    with pytest.raises(UsageError, match="does not go with LangChainAdapter, which evaluates example by example"):
        evaluator_for(adapter(Echo()), "batch")
