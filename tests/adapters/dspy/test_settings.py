"""dspy's own settings, caches and usage tracking are in force in every slot as they are in the host's threads."""

import json
import threading
from collections import Counter
from contextvars import ContextVar
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from uuid import uuid4

import dspy
import pytest
from dspy_awaited import Awaited
from dspy_task import FIELD, fields

from flashevolve_plugins import Flash

TOKENS = 7


class Server:
    """An OpenAI-compatible server on a loopback port, which answers as a task's LMs do, and counts.

    Args:
        task: the task; its LMs are replaced by ones that call this server, with dspy's caches.
    """

    def __init__(self, task):
        self.requests, self._lock = Counter(), threading.Lock()
        server, answers = self, {"task": task._answer, "reflection": task._reflect}

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                name = asked["model"].split("-")[0]
                with server._lock:
                    server.requests[name] += 1
                messages = [str(each["content"]) for each in asked["messages"]]
                message = {"role": "assistant", "content": answers[name](messages[0], messages[-1])}
                usage = {"prompt_tokens": TOKENS, "completion_tokens": 0, "total_tokens": TOKENS}
                choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
                body = {"id": "x", "object": "chat.completion", "created": 1, "model": asked["model"]}
                sent = json.dumps({**body, "choices": choices, "usage": usage}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)

            def log_message(self, *_):
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self._url = f"http://127.0.0.1:{self._server.server_port}/v1"
        task.task_lm, task.reflection_lm = self.make_lm("task"), self.make_lm("reflection")

    def make_lm(self, name):
        """A model that no other test has filled a cache for."""
        return dspy.LM(f"openai/{name}-{uuid4().hex}", api_base=self._url, api_key="none", num_retries=0)

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server(task):
    made = Server(task)
    with dspy.context(lm=task.task_lm):
        yield made
    made.close()


@pytest.mark.parametrize("how", [{"lockstep": True}, {"max_items": 1}], ids=str)
def test_what_the_host_asked_is_in_dspys_caches(how, task, server, summary):
    host = summary(task.compile(None))
    asked = sum(server.requests.values())
    mine = summary(task.compile(Flash(progress=False, **how)))
    assert sum(server.requests.values()) == asked > 20
    assert mine["candidates"] == host["candidates"][: len(mine["candidates"])]


def test_what_an_async_program_asked_is_in_dspys_caches(task, server):
    """dspy keeps what was awaited apart from what was not."""
    flash = Flash(progress=False, max_items=1)
    first = task.compile(flash, student=Awaited())
    asked = sum(server.requests.values())
    second = task.compile(flash, student=Awaited())
    assert sum(server.requests.values()) == asked > 20
    found = [each.detailed_results.val_aggregate_scores for each in (first, second)]
    assert found[0] == found[1]


def test_what_many_items_at_once_asked_is_in_dspys_caches(task, server, consistent):
    consistent(task, task.compile(Flash(progress=False, staleness="full")), 100)
    assert 0 < server.requests["task"] < len(task.metric_calls)  # the rest was known
    asked = server.requests["task"]
    task.student()(question="case 100 rule 0")
    assert server.requests["task"] == asked


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("how", [{"lockstep": True}, {"max_items": 1}, {}], ids=str)
def test_usage_around_compile_counts_what_the_hosts_does(how, threads, task, server):
    """With several threads the host loses what its programs use; reflections, and metrics asked for feedback, count."""
    judge = server.make_lm("task")

    def ask(gold, pred, name):
        if name is not None:
            dspy.Predict("question -> answer")(question=f"{gold.question} again", lm=judge)

    task.on_metric, found = ask, []
    for executor in (None, Flash(progress=False, staleness="full", **how)):
        before = Counter(server.requests)
        task.task_lm, task.reflection_lm = server.make_lm("task"), server.make_lm("reflection")
        judge = server.make_lm("task")
        with dspy.context(lm=task.task_lm), dspy.track_usage() as usage:
            task.compile(executor, num_threads=threads, max_metric_calls=60)
        entries = [usage.usage_data.get(lm.model, []) for lm in (task.reflection_lm, judge, task.task_lm)]
        assert all(entry["prompt_tokens"] == TOKENS for each in entries for entry in each)
        reflections, judged, examples = map(len, entries)
        made = server.requests - before
        assert reflections == made["reflection"] > 0
        assert judged > 0
        assert examples == (made["task"] - judged if threads == 1 else 0)
        found.append((reflections, judged, examples))
    if "lockstep" in how:
        assert found[0] == found[1]


@pytest.mark.parametrize("student", [None, Awaited], ids=["a plain program", "an async program"])
@pytest.mark.parametrize("how", [{"lockstep": True}, {}], ids=str)
def test_usage_in_the_settings_is_each_predictions_own(how, student, task, server):
    if student is not None and how:
        pytest.skip("the host cannot call it")
    seen = []
    task.on_metric = lambda gold, pred, name: seen.append(pred.get_lm_usage())
    with dspy.context(track_usage=True):
        task.compile(Flash(progress=False, **how), student=student and student(), max_metric_calls=60)
    assert len(seen) > 20
    tokens = [usage[task.task_lm.model]["prompt_tokens"] for usage in seen if usage]
    assert tokens
    assert set(tokens) == {TOKENS}  # neither lost, nor counted for another example's prediction too


@pytest.mark.parametrize("student", [None, Awaited], ids=["a plain program", "an async program"])
def test_usage_around_compile_loses_an_async_programs_as_a_plain_ones(student, task, server):
    """As with the host's several threads: reflections count, examples do not."""
    with dspy.track_usage() as usage:
        task.compile(Flash(progress=False), student=student and student(), max_metric_calls=60)
    assert set(usage.usage_data) == {task.reflection_lm.model}
    assert len(usage.usage_data[task.reflection_lm.model]) == server.requests["reflection"] > 0


EXECUTORS = {
    "the host": None,
    "lockstep": Flash(progress=False, lockstep=True),
    "one item at a time": Flash(progress=False, max_items=1),
    "many items at once": Flash(progress=False),
}


@pytest.mark.parametrize("name", EXECUTORS)
@pytest.mark.parametrize("awaited", [False, True])
def test_each_predictor_uses_the_lm_and_the_adapter_that_it_was_given(awaited, name, task):
    """One has an LM of its own, one is called under an adapter, and all else is the caller's."""
    if awaited and name in {"the host", "lockstep"}:
        pytest.skip("the host cannot call it")
    asked = {model: [] for model in ("mine", "task")}

    def answers(model):
        def answer(system, user):
            chat = FIELD.search(user)
            field = chat[1] if chat else "answer"
            asked[model].append((field, "chat" if chat else "JSON"))
            right = task._right(field, user.split("rule ")[1][0], system)
            return fields(**{field: right}) if chat else json.dumps({field: right})

        return task.make_lm(model, answer)

    class Given(dspy.Module):
        def __init__(self):
            super().__init__()
            self.draft = dspy.Predict(dspy.Signature("question -> draft", "Answer."))
            self.final = dspy.Predict(dspy.Signature("question, draft -> answer", "Answer."))
            self.draft.lm = answers("mine")

    class Plain(Given):
        def forward(self, question):
            draft = self.draft(question=question).draft
            with dspy.context(adapter=dspy.JSONAdapter()):
                return dspy.Prediction(draft=draft, answer=self.final(question=question, draft=draft).answer)

    class AwaitedToo(Given):
        async def aforward(self, question):
            draft = (await self.draft.acall(question=question)).draft
            with dspy.context(adapter=dspy.JSONAdapter()):
                answer = (await self.final.acall(question=question, draft=draft)).answer
            return dspy.Prediction(draft=draft, answer=answer)

    with dspy.context(lm=answers("task"), adapter=dspy.ChatAdapter()):
        task.compile(EXECUTORS[name], student=AwaitedToo() if awaited else Plain(), max_metric_calls=60)
    assert set(asked["mine"]) == {("draft", "chat")}
    assert set(asked["task"]) == {("answer", "JSON")}
    assert len(asked["mine"]) == len(asked["task"]) > 20


SCRATCH = ContextVar("scratch", default=None)


@pytest.mark.parametrize("how", [{"lockstep": True}, {}], ids=str)
def test_a_setting_of_the_callers_is_seen_everywhere_and_one_of_a_program_nowhere_else(how, task):
    seen = {name: Counter() for name in ("program", "metric", "feedback", "reflection")}

    def note(where):
        seen[where][dspy.settings.get("mine"), dspy.settings.get("inner")] += 1

    class Program(dspy.Module):
        def __init__(self):
            super().__init__()
            self.answer = dspy.Predict(dspy.Signature("question -> answer", "Answer."))

        def forward(self, question):
            note("program")
            with dspy.context(inner=question, lm=inner_lm):
                return self.answer(question=question)

    inner_lm = task.make_lm("inner", task._answer)
    task.on_metric = lambda gold, pred, name: note("metric" if name is None else "feedback")
    task.on_reflect = lambda *_: note("reflection")
    with dspy.context(mine="a setting"):
        task.compile(Flash(progress=False, **how), student=Program())
    assert task.lms == {"task"}
    for where, found in seen.items():
        assert set(found) == {("a setting", None)}, where
    assert dspy.settings.get("inner") is None


def test_what_a_program_sets_in_its_context_is_gone_for_the_next_example(task):
    left = Counter()

    class Program(dspy.Module):
        def __init__(self):
            super().__init__()
            self.answer = dspy.Predict(dspy.Signature("question -> answer", "Answer."))

        def forward(self, question):
            left[SCRATCH.get()] += 1
            SCRATCH.set(question)
            return self.answer(question=question)

    task.compile(Flash(progress=False), student=Program(), num_threads=2)
    assert set(left) == {None}
    assert SCRATCH.get() is None
