"""The web application: chat completions, models, metrics, health."""

from __future__ import annotations

import asyncio
import json
import math
import time
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from flashevolve_plugins.benchmarks.server.chat import BadRequestError, ChatRequest, error_body, parse_chat
from flashevolve_plugins.benchmarks.server.engine import Engine
from flashevolve_plugins.benchmarks.server.metrics import Counters
from flashevolve_plugins.benchmarks.server.misbehave import misbehave
from flashevolve_plugins.benchmarks.server.simulator import Choice, Simulator, count_tokens

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from flashevolve_plugins.benchmarks.server.latency import Progress
    from flashevolve_plugins.benchmarks.server.settings import ServerSettings

__all__ = ["build_app"]

_PIECES = 8  # most parts in which a stream sends its text


def build_app(settings: ServerSettings) -> Starlette:
    """Return the application; its engine starts with the first request, on the loop that serves it."""
    service = _Service(settings)
    return Starlette(
        routes=[
            Route("/v1/chat/completions", service, methods=["POST"]),
            Route("/v1/models", service.models),
            Route("/metrics", service.metrics),
            Route("/health", service.health),
        ]
    )


class _Service:
    """State shared by all requests of one application."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._simulator = Simulator(settings)
        self._counters = Counters()
        self._started: Engine | None = None
        self._under_way = 0
        self._requests = 0

    @property
    def _engine(self) -> Engine:
        """The engine, on the running loop."""
        if self._started is None:
            self._started = Engine(self._settings.latency, asyncio.get_running_loop())
        return self._started

    async def models(self, _: Request) -> Response:
        """Answer ``GET /v1/models``."""
        names = self._settings.models
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "simulated"} for name in names]
        return JSONResponse({"object": "list", "data": data})

    async def metrics(self, _: Request) -> Response:
        """Answer ``GET /metrics``."""
        most = self._settings.latency.max_num_seqs
        return PlainTextResponse(self._counters.render(self._engine, self._settings.models[0], most))

    async def health(self, _: Request) -> Response:
        """Answer ``GET /health``."""
        return Response()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer ``POST /v1/chat/completions``."""
        try:
            chat = parse_chat(await Request(scope, receive).body(), self._settings.models)
        except ClientDisconnect:
            return
        except BadRequestError as error:
            await JSONResponse(error_body(error), error.status)(scope, receive, send)
            return
        self._requests += 1
        faults = self._settings.faults
        kind = None if faults is None else faults.draw(self._requests)
        if faults is not None and kind is not None:
            await misbehave(kind, faults, _an_answer(chat), receive, send)
            return
        if self._under_way == self._settings.max_requests:
            await self._refuse()(scope, receive, send)
            return
        run = _Run(chat, self._simulator.choices(chat), self._engine, self._counters)
        self._under_way += 1
        try:
            if chat.stream:
                await run.stream(receive, send)
            elif (body := await run.whole(receive)) is not None:
                await JSONResponse(body)(scope, receive, send)
        finally:
            self._under_way -= 1

    def _refuse(self) -> Response:
        """Say that too many requests are under way, as OpenAI does."""
        self._counters.refused += 1
        wait = self._settings.retry_after * self._settings.latency.time_scale
        message = f"Rate limit reached: {self._settings.max_requests} requests are under way. Please try again later."
        return JSONResponse(
            {"error": {"message": message, "type": "requests", "param": None, "code": "rate_limit_exceeded"}},
            429,
            {"Retry-After": f"{math.ceil(wait)}", "Retry-After-Ms": f"{1000 * wait:.0f}"},
        )


def _an_answer(chat: ChatRequest) -> dict[str, Any]:
    """What a request would be answered, to be spoilt."""
    message = {"role": "assistant", "content": "An answer that nobody gets whole."}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": chat.model,
        "choices": [choice],
        "usage": usage,
    }


class _Run:
    """One request with its answers under way."""

    def __init__(self, chat: ChatRequest, choices: list[Choice], engine: Engine, counters: Counters) -> None:
        self._chat = chat
        self._choices = choices
        self._engine = engine
        self._counters = counters
        self._prompt_tokens = sum(count_tokens(message.text) for message in chat.messages)
        self._events: asyncio.Queue[tuple[int, Progress] | None] = asyncio.Queue()
        self._open: set[int] = set()
        self._watcher: asyncio.Task[None] | None = None
        self._head = {"created": int(time.time()), "model": chat.model}

    async def whole(self, receive: Receive) -> dict[str, Any] | None:
        """Return the body of the response, or None if the client has gone."""
        keys = self._submit(marks=1)
        try:
            for _ in self._choices:
                if await self._next(receive) is None:
                    return None
        finally:
            self._end(keys)
        answers = [
            {
                "index": index,
                "message": {"role": "assistant", "content": choice.text},
                "logprobs": None,
                "finish_reason": choice.finish_reason,
            }
            for index, choice in enumerate(self._choices)
        ]
        return {
            "id": f"chatcmpl-{keys[0]:x}",
            "object": "chat.completion",
            **self._head,
            "choices": answers,
            "usage": self._usage(),
        }

    async def stream(self, receive: Receive, send: Send) -> None:
        """Send the answers as server-sent events."""
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        keys = self._submit(marks=_PIECES)
        name = f"chatcmpl-{keys[0]:x}"
        left = len(self._choices)
        try:
            while left:
                event = await self._next(receive)
                if event is None:
                    return
                index, progress = event
                left -= progress.finished
                await self._send_chunk(send, name, [self._delta(index, progress)])
            if self._chat.include_usage:
                await self._send_chunk(send, name, [], self._usage())
            await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
        finally:
            self._end(keys)

    def _submit(self, marks: int) -> list[int]:
        """Hand all answers to the engine and return their keys."""
        arrived = time.monotonic()
        keys = []
        for index, choice in enumerate(self._choices):
            self._open.add(index)

            def report(progress: Progress, index: int = index) -> None:
                if progress.finished:
                    self._count(index, time.monotonic() - arrived)
                self._events.put_nowait((index, progress))

            keys.append(self._engine.submit(self._prompt_tokens, choice.tokens, marks, report, choice.slowness))
        return keys

    def _count(self, index: int, seconds: float) -> None:
        """Record that an answer is complete."""
        self._open.discard(index)
        self._counters.prompt_tokens += 0 if index else self._prompt_tokens
        self._counters.generation_tokens += self._choices[index].tokens
        self._counters.finished[self._choices[index].finish_reason] += 1
        self._counters.latencies += seconds

    async def _next(self, receive: Receive) -> tuple[int, Progress] | None:
        """Return the next progress, or None if the client has gone."""
        if self._events.empty() and self._watcher is None:
            self._watcher = asyncio.get_running_loop().create_task(self._watch(receive))
        return await self._events.get()

    async def _watch(self, receive: Receive) -> None:
        """Wait until the client has gone."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._events.put_nowait(None)

    def _end(self, keys: list[int]) -> None:
        """Free what is still held."""
        if self._watcher is not None:
            self._watcher.cancel()
        for index in sorted(self._open):
            if self._engine.abort(keys[index]):
                self._counters.finished["abort"] += 1

    def _delta(self, index: int, progress: Progress) -> dict[str, Any]:
        """Return the part of a chunk that carries the text up to a mark."""
        choice = self._choices[index]
        size = len(choice.text)
        part = choice.text[size * (progress.mark - 1) // _PIECES : size * progress.mark // _PIECES]
        delta = {"role": "assistant", "content": part} if progress.mark == 1 else {"content": part}
        reason = choice.finish_reason if progress.finished else None
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}

    async def _send_chunk(
        self, send: Send, name: str, deltas: list[dict[str, Any]], usage: dict[str, int] | None = None
    ) -> None:
        """Send one event of the stream."""
        chunk: dict[str, Any] = {"id": name, "object": "chat.completion.chunk", **self._head, "choices": deltas}
        if self._chat.include_usage:
            chunk["usage"] = usage
        body = b"data: " + json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
        await send({"type": "http.response.body", "body": body, "more_body": True})

    def _usage(self) -> dict[str, int]:
        """Return the tokens of the whole request."""
        generated = sum(choice.tokens for choice in self._choices)
        total = self._prompt_tokens + generated
        return {"prompt_tokens": self._prompt_tokens, "completion_tokens": generated, "total_tokens": total}
