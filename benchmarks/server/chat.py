"""The body of a chat-completions request, checked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["BadRequestError", "ChatRequest", "Message", "error_body", "parse_chat"]

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_FORMATS = frozenset({"text", "json_object", "json_schema"})
_MOST_CHOICES = 128
_HOTTEST = 2.0


class BadRequestError(Exception):
    """A request that the server refuses.

    Args:
        message: one sentence for the client.
        param: the field of the body that is wrong, if it is one.
        status: the HTTP status.
    """

    def __init__(self, message: str, param: str | None = None, status: int = 400) -> None:
        """Keep what the error body says."""
        super().__init__(message)
        self.param = param
        self.status = status


@dataclass(frozen=True)
class Message:
    """One message; parts that are not text are kept as JSON."""

    role: str
    text: str


@dataclass(frozen=True)
class ChatRequest:
    """A request that can be answered.

    Args:
        model: one of the server's names.
        messages: one or more.
        n: answers wanted.
        stream: whether to answer in server-sent events.
        include_usage: whether the stream ends with the usage.
        max_tokens: longest output in tokens, or None.
        response_format: the OpenAI field, or an empty dict.
    """

    model: str
    messages: tuple[Message, ...]
    n: int
    stream: bool
    include_usage: bool
    max_tokens: int | None
    response_format: dict[str, Any]


def error_body(error: BadRequestError) -> dict[str, Any]:
    """Return the error in OpenAI's form."""
    kind = "model_not_found" if error.param == "model" else None
    fields = {"message": str(error), "type": "invalid_request_error", "param": error.param, "code": kind}
    return {"error": fields}


def parse_chat(body: bytes, models: Collection[str]) -> ChatRequest:
    """Read and check a request body.

    Args:
        body: JSON text.
        models: the names that are served.

    Raises:
        BadRequestError: the body is not a request that can be answered; status 404 for an unknown model.
    """
    try:
        data = json.loads(body)
    except ValueError as error:
        msg = f"The body is not JSON: {error}."
        raise BadRequestError(msg) from None
    if not isinstance(data, dict):
        msg = "The body must be a JSON object."
        raise BadRequestError(msg)
    stream = _flag(data, "stream")
    limit = _count(data, "max_completion_tokens") or _count(data, "max_tokens")
    _check_temperature(data.get("temperature"))
    return ChatRequest(
        model=_model(data.get("model"), models),
        messages=_messages(data.get("messages")),
        n=_count(data, "n", most=_MOST_CHOICES) or 1,
        stream=stream,
        include_usage=_include_usage(data, stream=stream),
        max_tokens=limit,
        response_format=_response_format(data.get("response_format")),
    )


def _model(value: object, models: Collection[str]) -> str:
    """Return the model's name if it is served."""
    if not isinstance(value, str):
        msg = "model must be a string."
        raise BadRequestError(msg, "model")
    if value not in models:
        msg = f"The model `{value}` does not exist; this server has {', '.join(sorted(models))}."
        raise BadRequestError(msg, "model", 404)
    return value


def _messages(value: object) -> tuple[Message, ...]:
    """Return the messages."""
    if not isinstance(value, list) or not value:
        msg = "messages must be a list of one or more messages."
        raise BadRequestError(msg, "messages")
    return tuple(_message(index, entry) for index, entry in enumerate(value))


def _message(index: int, entry: object) -> Message:
    """Return one message with its text parts joined."""
    where = f"messages[{index}]"
    role = entry.get("role") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(role, str) or role not in _ROLES:
        msg = f"{where} must be an object with a role among {', '.join(sorted(_ROLES))}."
        raise BadRequestError(msg, where)
    content = entry.get("content")
    if isinstance(content, str):
        return Message(role, content)
    if content is None and role == "assistant":
        return Message(role, json.dumps(entry.get("tool_calls"), sort_keys=True))
    if isinstance(content, list) and content and all(isinstance(part, dict) for part in content):
        return Message(role, "\n".join(_part(part) for part in content))
    msg = f"{where}.content must be a string or a list of parts."
    raise BadRequestError(msg, f"{where}.content")


def _part(part: dict[str, Any]) -> str:
    """Return the text of a part, or its JSON when it has none."""
    text = part.get("text")
    return text if isinstance(text, str) else json.dumps(part, sort_keys=True)


def _count(data: dict[str, Any], name: str, most: float = float("inf")) -> int | None:
    """Return a positive number, or None if the field is absent."""
    value = data.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        msg = f"{name} must be a whole number from 1{'' if most == float('inf') else f' to {most}'}."
        raise BadRequestError(msg, name)
    return value


def _flag(data: dict[str, Any], name: str) -> bool:
    """Return a true-or-false field; absent counts as false."""
    value = data.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        msg = f"{name} must be true or false."
        raise BadRequestError(msg, name)
    return value


def _include_usage(data: dict[str, Any], *, stream: bool) -> bool:
    """Return whether a stream shall end with its usage."""
    options = data.get("stream_options")
    if options is None:
        return False
    if not stream or not isinstance(options, dict):
        msg = "stream_options must be an object, and needs stream to be true."
        raise BadRequestError(msg, "stream_options")
    return _flag(options, "include_usage")


def _check_temperature(value: object) -> None:
    """Accept what OpenAI accepts; the simulated answers don't depend on it."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _HOTTEST:
        msg = "temperature must be a number from 0 to 2."
        raise BadRequestError(msg, "temperature")


def _response_format(value: object) -> dict[str, Any]:
    """Return the response format, empty if absent."""
    if value is None:
        return {}
    if not isinstance(value, dict) or value.get("type") not in _FORMATS:
        msg = f"response_format must be an object whose type is among {', '.join(sorted(_FORMATS))}."
        raise BadRequestError(msg, "response_format")
    return value
