"""Secrets stay out of what this package writes: item records, log lines, warnings, messages of errors.

What is hidden is what looks like a secret, and what is known to be one: values of environment variables whose names say
so, and what adapters have registered. Texts for a terminal have their control characters made visible here as well.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

if TYPE_CHECKING:
    import logging

HIDDEN = "[secret]"
SHORTEST = 8  # characters of a value that is hidden wherever it stands
DEEPEST = 5  # attributes, one inside the other, that are searched for keys
ENDINGS = ("KEY", "TOKEN", "SECRET", "PASSWORD")

_NAME = r"(?:api[-_ ]?key|access[-_]?key|private[-_]?key|secret|token|passw(?:or)?d|credentials?|authorization)"
_WORD = r"(?<![\w-])[\w-]*"  # from where a word begins: a long one would be read again from each of its characters
_SCHEME = r"(?:(?:bearer|basic|token)\s+)?"
_NAMED = re.compile(_NAME + "$", re.IGNORECASE)
#: Each with the part that stays, if any, as its first group.
_PATTERNS = (
    re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^\s/@:'\"]*:[^\s/@'\"]+(?=@)", re.IGNORECASE),
    re.compile(r"()\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{8,}"),
    re.compile(r"()\b(?:gh[opsu]_|github_pat_|xox[abpr]-|hf_|gsk_|glpat-|AKIA|AIza)[A-Za-z0-9_-]{12,}"),
    re.compile(r"()\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),
    re.compile(r"(\b(?:bearer|basic)\s+)(?=\S*[\d=]|\S{20})[\w.~+/=-]{8,}", re.IGNORECASE),
    # A header or a field, name and value in quotes or not, as in Python, JSON, YAML and URLs.
    re.compile(rf"({_WORD}{_NAME}[\"']?\s*[:=]\s*{_SCHEME}[\"']){_SCHEME}[^\s\"']{{4,}}(?=[\"'])", re.IGNORECASE),
    re.compile(rf"({_WORD}{_NAME}={_SCHEME})[^\s\"'&,;)\]}}]{{4,}}", re.IGNORECASE),
    re.compile(rf"({_WORD}(?:api[-_]?key|authorization)[\"']?\s*:\s*{_SCHEME})[^\s\"'&,;)\]}}]{{8,}}", re.IGNORECASE),
    re.compile(rf"({_WORD}{_NAME}\W{{1,4}}(?:(?:is|was|provided)\W+)?)(?=[^\s\"']*\d)[\w+/=.-]{{16,}}", re.IGNORECASE),
)
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")

_registered: set[str] = set()


def register_secrets(values: Iterable[object]) -> None:
    """These are hidden from now on, in this process.

    Args:
        values: what is no text, or shorter than 8 characters, is left out.
    """
    _registered.update(each for each in values if isinstance(each, str) and len(each) >= SHORTEST)


def register_secrets_of(*clients: object) -> None:
    """Hide the keys, the headers and the passwords in URLs of models and their clients.

    Args:
        clients: models, adapters or roles; what holds no key is passed over.
    """
    seen: set[int] = set()
    for client in clients:
        register_secrets(_secrets_of(client, seen, DEEPEST))


def redact(text: str) -> str:
    """The text with ``[secret]`` in the place of every secret."""
    return _redacted(text, _known())


def redacted(value: Any) -> Any:
    """Something made of mappings, sequences and texts, as for JSON, without its secrets."""
    return _walk(value, _known())


def shown(value: object, most: int = 200) -> str:
    """What something of the user's looks like, on one line, without its secrets, and cut."""
    return redact(" ".join(repr(value).split()))[:most]


def visible(text: str) -> str:
    """The text with control characters, those that turn a line around included, as escapes; tabs and newlines stay."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


class SecretFilter:
    """A filter of :mod:`logging` for this package's own lines, tracebacks included."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Hide the secrets of a record. It is always logged."""
        message = record.getMessage()
        record.msg, record.args = visible(redact(message)), None
        if record.exc_info:
            import logging  # noqa: PLC0415 - whoever logs has imported it

            text = logging.Formatter().formatException(record.exc_info)
            hidden = redact(text)
            if hidden != text:  # formatters of others may read the exception itself
                record.exc_info, record.exc_text = None, hidden
        return True


def hide_in_log() -> None:
    """Put the filter on this package's logger, once."""
    import logging  # noqa: PLC0415 - importing the package stays light

    logger = logging.getLogger("flashevolve_plugins")
    if not any(isinstance(each, SecretFilter) for each in logger.filters):
        logger.addFilter(SecretFilter())


def log(logger: logging.Logger, level: int, message: str, *arguments: object, exc_info: Any = None) -> None:
    """Log a line of ours on the logger of a host, without its secrets.

    Args:
        logger: the host's.
        level: of :mod:`logging`.
        message: with ``%s`` for the arguments.
        arguments: its arguments.
        exc_info: an exception whose traceback is logged.
    """
    if logger.isEnabledFor(level):
        trace = (type(exc_info), exc_info, exc_info.__traceback__) if isinstance(exc_info, BaseException) else None
        record = logger.makeRecord(logger.name, level, __file__, 0, message, arguments, trace)
        SecretFilter().filter(record)
        logger.handle(record)


def _known() -> list[str]:
    """Every value known to be a secret, in the ways in which it is written, the longest first."""
    named = {value for name, value in os.environ.items() if name.upper().endswith(ENDINGS) and len(value) >= SHORTEST}
    values = _registered | named
    written = {form for value in values for form in (value, quote(value, safe=""), repr(value)[1:-1])}
    return sorted(written, key=len, reverse=True)


def _redacted(text: str, known: Iterable[str]) -> str:
    for value in known:
        if value in text:
            text = text.replace(value, HIDDEN)
    for pattern in _PATTERNS:
        text = pattern.sub(rf"\1{HIDDEN}", text)
    return text


def _walk(value: Any, known: Iterable[str]) -> Any:
    if isinstance(value, str):
        return _redacted(value, known)
    if isinstance(value, Mapping):
        return {_walk(name, known): _walk(each, known) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_walk(each, known) for each in value]
    return value


#: Where models, their clients and the objects that hold them keep what they are called with.
_HOLDERS = (
    *("kwargs", "completion_kwargs", "litellm_batch_completion_kwargs", "config", "headers", "default_headers"),
    *("_custom_headers", "client", "_client", "api_client", "lm", "_lm", "llm", "model"),
    *("generator", "reflector", "curator", "agent", "skill_manager"),
)
_URLS = ("api_base", "base_url", "api_key")


def _secrets_of(holder: Any, seen: set[int], depth: int) -> Iterable[str]:
    """The secrets in an object and in what it holds."""
    if holder is None or isinstance(holder, (str, bytes, int, float)) or depth == 0 or id(holder) in seen:
        return
    seen.add(id(holder))
    if isinstance(holder, Mapping):
        for name, value in holder.items():
            yield from _secret(str(name), value)
            if isinstance(value, Mapping):
                yield from _secrets_of(value, seen, depth - 1)
        return
    held = getattr(holder, "__dict__", {})
    for name in (*_HOLDERS, *_URLS):
        value = held.get(name) if name in held else None
        yield from _secret(name, value)
        yield from _secrets_of(value, seen, depth - 1)


def _secret(name: str, value: Any) -> Iterable[str]:
    """A value, where its name says that it is a secret; of a URL, its password."""
    text = value if isinstance(value, str) else str(value) if name in _URLS and value is not None else ""
    if "://" in text:
        try:
            password = urlsplit(text).password
        except ValueError:
            return
        yield from filter(None, [password])
    elif _NAMED.search(name):
        yield text.removeprefix("Bearer ").removeprefix("Basic ")
