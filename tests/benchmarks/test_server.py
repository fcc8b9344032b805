"""The server over HTTP, and its application driven by hand where order matters."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from flashevolve_plugins.benchmarks import Landscape
from flashevolve_plugins.benchmarks.server import LatencyModel, ServerSettings, ServerStartError, SimulatedServer
from flashevolve_plugins.benchmarks.server import app as app_module
from flashevolve_plugins.benchmarks.server.command import main
from flashevolve_plugins.benchmarks.server.faults import KINDS, Faults

if TYPE_CHECKING:
    from collections.abc import Iterator

http = httpx.Client()  # one client for all tests
SLOW = LatencyModel(base_token_time=1e6, max_num_seqs=1)


@pytest.fixture(scope="module", autouse=True)
def closed_client() -> Iterator[None]:
    """Close the shared client after the last test."""
    yield
    http.close()


def ask(question: str, instruction: str = "Reply.", **more: object) -> dict[str, Any]:
    """Return a request body."""
    messages = [{"role": "system", "content": instruction}, {"role": "user", "content": question}]
    return {"model": "simulated", "messages": messages, **more}


def questions(count: int) -> list[str]:
    """Return questions of a landscape."""
    return [example.question for example in Landscape(seed=3).examples("train", count)]


def post(server: SimulatedServer, body: dict[str, Any]) -> Any:
    """Post a request and return its response."""
    return http.post(f"{server.base_url}/chat/completions", json=body, timeout=60)


def events(page: str) -> list[dict[str, Any]]:
    """Return the JSON of every event of a finished stream."""
    lines = [line.removeprefix("data: ") for line in page.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_an_answer_has_the_shape_and_usage_of_openai(server: SimulatedServer) -> None:
    body = post(server, ask(questions(1)[0])).json()
    assert body["object"] == "chat.completion"
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"].startswith("The reply keeps")
    usage = body["usage"]
    assert usage["prompt_tokens"] == 2 + -(-len(questions(1)[0]) // 4)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_a_stream_carries_the_same_text_and_usage(eager: Landscape) -> None:
    settings = ServerSettings(landscape=eager, latency=LatencyModel(time_scale=0.0001))
    with SimulatedServer(settings) as one, SimulatedServer(settings) as other:
        for question in questions(5):
            whole = post(one, ask(question)).json()
            page = post(other, ask(question, stream=True, stream_options={"include_usage": True})).text
            *chunks, last = events(page)
            text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
            assert text == whole["choices"][0]["message"]["content"]
            assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
            assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
            assert last["choices"] == []
            assert last["usage"] == whole["usage"]


def test_a_stream_tells_its_usage_only_when_asked(server: SimulatedServer) -> None:
    chunks = events(post(server, ask(questions(1)[0], stream=True)).text)
    assert all("usage" not in chunk for chunk in chunks)


def test_several_answers_are_those_of_several_requests(eager: Landscape) -> None:
    settings = ServerSettings(landscape=eager, latency=LatencyModel(time_scale=0))
    question = questions(1)[0]
    with SimulatedServer(settings) as one, SimulatedServer(settings) as other:
        many = post(one, ask(question, n=3)).json()
        single = [post(other, ask(question)).json() for _ in range(3)]
        assert [c["message"]["content"] for c in many["choices"]] == [
            s["choices"][0]["message"]["content"] for s in single
        ]
        assert many["usage"]["completion_tokens"] == sum(s["usage"]["completion_tokens"] for s in single)
        streamed = events(post(one, ask(question, n=2, stream=True)).text)
        assert Counter(c["choices"][0]["finish_reason"] for c in streamed)["stop"] == 2
        assert one.metrics()["vllm:prompt_tokens_total"] == 2 * many["usage"]["prompt_tokens"]


def test_max_tokens_bounds_the_usage_and_then_the_text(server: SimulatedServer) -> None:
    brief = post(server, ask(questions(1)[0], max_tokens=40)).json()
    assert brief["usage"]["completion_tokens"] <= 40
    assert brief["choices"][0]["finish_reason"] == "stop"
    cut = post(server, ask(questions(1)[0], max_tokens=2)).json()
    assert cut["choices"][0]["finish_reason"] == "length"
    assert cut["choices"][0]["message"]["content"] == "The repl"


def test_concurrency_changes_no_answer(eager: Landscape) -> None:
    settings = ServerSettings(landscape=eager, latency=LatencyModel(time_scale=0.0003, max_num_seqs=5))
    bodies = [ask(question) for question in questions(10)] * 3

    def read(server: SimulatedServer, body: dict[str, Any]) -> tuple[str, str, int]:
        answer = post(server, body).json()
        content = answer["choices"][0]["message"]["content"]
        return body["messages"][1]["content"], content, answer["usage"]["completion_tokens"]

    with SimulatedServer(settings) as one, SimulatedServer(settings) as other:
        alone = Counter(read(one, body) for body in bodies)
        with ThreadPoolExecutor(12) as pool:
            together = Counter(pool.map(lambda body: read(other, body), reversed(bodies)))
    assert alone == together
    assert len(alone) > 20  # lengths differ between repetitions


def test_the_seed_of_the_server_changes_lengths(eager: Landscape) -> None:
    latency = LatencyModel(time_scale=0)
    used = []
    for seed in (1, 1, 2):
        with SimulatedServer(ServerSettings(landscape=eager, latency=latency, seed=seed)) as server:
            used.append([post(server, ask(q)).json()["usage"]["completion_tokens"] for q in questions(5)])
    assert used[0] == used[1] != used[2]


def test_bad_requests_get_an_openai_error(server: SimulatedServer) -> None:
    refused = post(server, ask("hi", n=0))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")
    assert post(server, {"model": "other", "messages": []}).status_code == 404
    assert http.get(f"{server.base_url}/chat/completions").status_code == 405


def test_models_health_and_metrics_answer(server: SimulatedServer) -> None:
    root = server.base_url.removesuffix("/v1")
    assert [model["id"] for model in http.get(f"{server.base_url}/models").json()["data"]] == ["simulated"]
    assert http.get(f"{root}/health").status_code == 200
    before = server.metrics()
    usage = post(server, ask(questions(1)[0])).json()["usage"]
    after = server.metrics()
    grown = {name: after[name] - before[name] for name in after}
    assert grown["vllm:prompt_tokens_total"] == usage["prompt_tokens"]
    assert grown["vllm:generation_tokens_total"] == usage["completion_tokens"]
    assert grown['vllm:request_success_total{finished_reason="stop",model_name="simulated"}'] == 1
    assert after["vllm:num_requests_running"] == after["vllm:num_requests_waiting"] == 0


class Client:
    """One request to an application, on the test's own loop."""

    def __init__(self, app: Any, body: dict[str, Any]) -> None:
        """Send the request."""
        self.sent: list[dict[str, Any]] = []
        self.listening = asyncio.Event()
        self.gone = asyncio.Event()
        self._body: bytes | None = json.dumps(body).encode()
        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": [], "query_string": b""}
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        self.listening.set()
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)

    async def leave(self) -> None:
        """Disconnect and wait until the application has noticed."""
        self.gone.set()
        await self.task


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_slot_at_once(*, stream: bool) -> None:
    async def scenario() -> None:
        app = app_module.build_app(ServerSettings(latency=SLOW))
        first, second, third = (Client(app, ask(q, stream=stream)) for q in questions(3))
        for client in (first, second, third):
            await client.listening.wait()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as watcher:

            async def load() -> tuple[str, str]:
                lines = (await watcher.get("/metrics")).text.splitlines()
                running = next(line for line in lines if line.startswith("vllm:num_requests_running{"))
                waiting = next(line for line in lines if line.startswith("vllm:num_requests_waiting{"))
                return running.split()[-1], waiting.split()[-1]

            assert await load() == ("1", "2")
            await third.leave()
            assert await load() == ("1", "1")
            await first.leave()
            assert await load() == ("1", "0")
            await second.leave()
            assert await load() == ("0", "0")
            assert 'finished_reason="abort",model_name="simulated"} 3' in (await watcher.get("/metrics")).text
        assert all(message["type"] == "http.response.start" for message in [*first.sent, *second.sent, *third.sent])

    asyncio.run(scenario())


def test_a_request_beyond_the_cap_is_refused_with_a_time_to_come_back() -> None:
    async def scenario() -> None:
        latency = LatencyModel(base_token_time=1e6, time_scale=0.05)
        app = app_module.build_app(ServerSettings(latency=latency, max_requests=2, retry_after=30.0))
        first, second = (Client(app, ask("hi", stream=stream)) for stream in (False, True))
        for client in (first, second):
            await client.listening.wait()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as other:
            refused = await asyncio.wait_for(other.post("/v1/chat/completions", json=ask("hi")), 60)
            assert refused.status_code == 429
            assert refused.json()["error"]["code"] == "rate_limit_exceeded"
            assert (refused.headers["Retry-After"], refused.headers["Retry-After-Ms"]) == ("2", "1500")
            await first.leave()
            third = Client(app, ask("hi"))
            await third.listening.wait()
            assert not third.sent
            assert 'requests_refused_total{model_name="simulated"} 1\n' in (await other.get("/metrics")).text
        for client in (second, third):
            await client.leave()

    asyncio.run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_a_closed_connection_frees_its_slot(*, stream: bool) -> None:
    def wait_for(server: SimulatedServer, running: int) -> bool:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if server.metrics()["vllm:num_requests_running"] == running:
                return True
        return False

    body = json.dumps(ask("hi", stream=stream)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\nContent-Length: {len(body)}\r\n\r\n"
    with SimulatedServer(ServerSettings(latency=SLOW)) as server:
        port = int(server.base_url.removesuffix("/v1").rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(head.encode() + body)
            assert wait_for(server, 1)
        assert wait_for(server, 0)


def test_leaving_the_context_ends_the_process_even_with_requests_under_way() -> None:
    with SimulatedServer(ServerSettings(latency=SLOW)) as server:
        with pytest.raises(httpx.ReadTimeout):
            http.post(f"{server.base_url}/chat/completions", json=ask("hi"), timeout=httpx.Timeout(60, read=0.2))
        url = server.base_url
        assert server.pid
    assert server.pid is None
    with pytest.raises(httpx.ConnectError):
        http.get(f"{url}/models")


def test_a_server_that_cannot_start_says_why(server: SimulatedServer) -> None:
    port = int(server.base_url.removesuffix("/v1").rpartition(":")[2])
    with pytest.raises(ServerStartError, match=f"port {port} on 127.0.0.1 can't be used"), SimulatedServer(port=port):
        pass


# -- faults ----------------------------------------------------------------------------------------------------------


WRONG = {"reset": httpx.ReadError, "half-closed": httpx.RemoteProtocolError, "truncated": httpx.RemoteProtocolError}


def test_a_server_fails_at_the_requests_that_it_was_told_and_at_no_other() -> None:
    body, faults = ask(questions(1)[0]), Faults(share=0.5, requests=(2,), seed=1, seconds=0.05)
    kinds = [faults.draw(number) for number in range(1, 61)]
    assert set(kinds) == {None, *KINDS}
    assert kinds[1] is not None
    with SimulatedServer(ServerSettings(latency=LatencyModel(time_scale=0), faults=faults)) as server:
        for kind in kinds:
            _assert_answer(kind, server, body)


def _assert_answer(kind: str | None, server: SimulatedServer, body: dict[str, Any]) -> None:
    if kind in WRONG:
        with pytest.raises(WRONG[kind]):
            post(server, body)
    elif kind == "hang":
        with pytest.raises(httpx.ReadTimeout):
            http.post(f"{server.base_url}/chat/completions", json=body, timeout=httpx.Timeout(60, read=0.3))
    elif kind in {"429", "503"}:
        answer = post(server, body)
        waits = "1" if kind == "429" else None
        assert (str(answer.status_code), answer.headers.get("retry-after")) == (kind, waits)
    elif kind == "malformed":
        with pytest.raises(json.JSONDecodeError):
            post(server, body).json()
    else:
        assert bool(post(server, body).json()["choices"]) is (kind != "empty")


def test_faults_by_chance_follow_their_seed_and_share() -> None:
    drawn = [Faults(share=0.25, seed=seed, first=11, last=1010) for seed in (0, 0, 1)]
    kinds = [[each.draw(number) for number in range(1, 1100)] for each in drawn]
    assert kinds[0] == kinds[1] != kinds[2]
    hit = [kind for kind in kinds[0] if kind is not None]
    assert 200 < len(hit) < 300
    assert set(hit) == set(KINDS)
    assert not any(kinds[0][:10] + kinds[0][1010:])


@pytest.mark.parametrize(
    ("faults", "complaint"),
    [
        ('{"kinds": ["fire"]}', "kinds of faults must be some of reset, "),
        ('{"kinds": []}', "not none"),
        ('{"share": 2}', "the share of faults must lie within 0 and 1, not 2"),
        ('{"chance": 1}', "--faults knows no chance, it knows kinds"),
        ("7", "--faults must be a JSON object, not 7"),
    ],
)
def test_faults_that_cannot_be_are_refused_in_one_line(faults: str, complaint: str, capsys: Any) -> None:
    assert main(["--faults", faults]) == 2
    assert complaint in capsys.readouterr().err


def test_a_server_that_was_killed_serves_again_at_the_same_address() -> None:
    with SimulatedServer(ServerSettings(latency=LatencyModel(time_scale=0))) as server:
        url, first = server.base_url, server.pid
        server.kill()
        assert server.pid is None
        with pytest.raises(httpx.ConnectError):
            post(server, ask(questions(1)[0]))
        server.restart()
        assert (server.base_url, server.pid != first) == (url, True)
        assert post(server, ask(questions(1)[0])).status_code == 200
