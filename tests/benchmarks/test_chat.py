"""Request bodies and answer forms."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flashevolve_plugins.benchmarks.server.chat import BadRequestError, error_body, parse_chat
from flashevolve_plugins.benchmarks.server.forms import Field, find_form

GOOD: dict[str, Any] = {"model": "simulated", "messages": [{"role": "user", "content": "hi"}]}


def parse(**changes: object) -> Any:
    """Parse a good body with changes."""
    return parse_chat(json.dumps(GOOD | changes).encode(), ["simulated"])


def test_a_body_is_read_with_its_options() -> None:
    content = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "x"}}]
    chat = parse(
        messages=[{"role": "user", "content": content}],
        n=2,
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=7,
        temperature=1,
    )
    assert (chat.n, chat.stream, chat.include_usage, chat.max_tokens) == (2, True, True, 7)
    assert chat.messages[0].text.startswith("look\n{")
    assert parse(max_tokens=7, max_completion_tokens=5).max_tokens == 5
    assert parse(messages=[{"role": "assistant", "content": None, "tool_calls": []}]).messages[0].text == "[]"


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"model": None}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "pirate", "content": "hi"}]}, "messages[0]"),
        ({"messages": [{"role": ["user"], "content": "hi"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "include_usage"),
        ({"temperature": 3}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"response_format": {"type": "poem"}}, "response_format"),
        ({"response_format": "json"}, "response_format"),
    ],
)
def test_a_bad_field_is_named(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        parse(**changes)
    assert caught.value.status == 400
    error = error_body(caught.value)["error"]
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert error["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"3"])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequestError):
        parse_chat(body, ["simulated"])


def test_an_unknown_model_is_not_found() -> None:
    with pytest.raises(BadRequestError, match=r"`other` does not exist; this server has simulated") as caught:
        parse(model="other")
    assert caught.value.status == 404


def test_fields_of_several_types_are_filled() -> None:
    form = find_form(
        "Respond with the corresponding output fields, starting with the field `[[ ## reasoning ## ]]`, then "
        "`[[ ## count ## ]]` (must be formatted as a valid Python int), then `[[ ## tags ## ]]` (must be formatted as "
        "a valid Python list[str]), then `[[ ## mood ## ]]` (must be formatted as a valid Python Literal['glad', "
        "'sad']), and then ending with the marker for `[[ ## completed ## ]]`.",
        {},
    )
    assert form.kind == "markers"
    assert [field.name for field in form.fields] == ["reasoning", "count", "tags", "mood"]
    text = form.fill(lambda name: f"the {name}")
    assert text == (
        "[[ ## reasoning ## ]]\nthe reasoning\n\n[[ ## count ## ]]\n1\n\n"
        '[[ ## tags ## ]]\n["the tags"]\n\n[[ ## mood ## ]]\nglad\n\n[[ ## completed ## ]]'
    )


def test_a_response_format_is_followed() -> None:
    schema = {"properties": {"answer": {"type": "string"}, "sure": {"type": "boolean"}}}
    form = find_form("hi", {"type": "json_schema", "json_schema": {"schema": schema}})
    assert json.loads(form.fill(lambda name: name)) == {"answer": "answer", "sure": True}
    assert json.loads(find_form("hi", {"type": "json_object"}).fill(lambda _: "x")) == {"answer": "x"}
    assert find_form("hi", {"type": "json_schema", "json_schema": {}}).fields == (Field("answer"),)
    assert find_form("hi", {}).fill(lambda _: "plain") == "plain"
