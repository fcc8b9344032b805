"""In which form a request wants its answer, and how to fill that form."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Field", "Form", "find_form"]

_MARKERS = "Respond with the corresponding output fields, starting with the field "
_MARKERS_END = ", and then ending with the marker for"
_JSON = "Respond with a JSON object in the following order of fields: "
_FIELD = re.compile(r"`(?:\[\[ ## )?(\w+)(?: ## \]\])?`(?: \(must be formatted as a valid Python (.*)\))?")
_OPTION = re.compile(r"Literal\[\s*(['\"])(.*?)\1")
_VALUES: dict[str, Any] = {"int": 1, "float": 1.0, "bool": True}
_SCHEMA_TYPES = {"integer": "int", "number": "float", "boolean": "bool", "array": "list", "object": "dict"}


@dataclass(frozen=True)
class Field:
    """An output field.

    Args:
        name: as the request spells it.
        annotation: its Python type as text; empty for a string.
    """

    name: str
    annotation: str = ""

    def value(self, text: str) -> Any:
        """Return a value of this field's type; ``text`` itself for a string."""
        kind = self.annotation.split("[", 1)[0].strip().lower()
        if option := _OPTION.match(self.annotation):
            return option.group(2)
        if kind in {"list", "tuple", "set"}:
            return [text]
        if kind == "dict":
            return {"text": text}
        return _VALUES.get(kind, text)


@dataclass(frozen=True)
class Form:
    """The form of an answer.

    Args:
        kind: "markers" for dspy's ChatAdapter, "json" for its JSONAdapter or a JSON response format, else "plain".
        fields: the output fields in order; empty for a plain answer.
    """

    kind: Literal["markers", "json", "plain"] = "plain"
    fields: tuple[Field, ...] = ()

    def fill(self, text_of: Callable[[str], str]) -> str:
        """Return the whole answer.

        Args:
            text_of: returns the text for a field's name; asked for "" when the answer is plain.
        """
        if self.kind == "plain":
            return text_of("")
        values = {field.name: field.value(text_of(field.name)) for field in self.fields}
        if self.kind == "json":
            return json.dumps(values, ensure_ascii=False)
        parts = [
            f"[[ ## {name} ## ]]\n{value if isinstance(value, str) else json.dumps(value)}"
            for name, value in values.items()
        ]
        return "\n\n".join([*parts, "[[ ## completed ## ]]"])


def find_form(last: str, response_format: dict[str, Any]) -> Form:
    """Find the form that a request asks for.

    Args:
        last: the last message's text, at whose end dspy's adapters name the output fields.
        response_format: the request's field of that name, or an empty dict.
    """
    if (at := last.rfind(_MARKERS)) >= 0:
        rest = last[at + len(_MARKERS) :].split(_MARKERS_END, 1)[0]
        return Form("markers", _fields(rest))
    if (at := last.rfind(_JSON)) >= 0:
        return Form("json", _fields(last[at + len(_JSON) :].rstrip().removesuffix(".")))
    kind = response_format.get("type")
    if kind == "json_schema":
        return Form("json", _schema_fields(response_format.get("json_schema")))
    return Form("json", (Field("answer"),)) if kind == "json_object" else Form()


def _fields(listing: str) -> tuple[Field, ...]:
    """Read the field names and types out of an adapter's closing sentence."""
    found = (_FIELD.search(part) for part in listing.split(", then "))
    return tuple(Field(match.group(1), match.group(2) or "") for match in found if match)


def _schema_fields(wrapper: object) -> tuple[Field, ...]:
    """Read the properties of a JSON schema; one answer field if it has none."""
    schema = wrapper.get("schema") if isinstance(wrapper, dict) else None
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or not properties:
        return (Field("answer"),)
    return tuple(
        Field(name, _SCHEMA_TYPES.get(str(spec.get("type")), "") if isinstance(spec, dict) else "")
        for name, spec in properties.items()
    )
