"""Which errors are a server's or a network's, and so tell nothing of the sample that met them.

Told by the names of their classes and by their status codes, so that no client library has to be here.
"""

from __future__ import annotations

import errno
import json
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from math import isfinite
from time import time
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._errors import FlashEvolveError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REFUSED, CONNECTION, TIMEOUT = "refused", "connection", "timeout"
RATE_LIMIT, SERVER, MALFORMED = "rate limit", "server error", "malformed answer"

#: HTTP statuses with which the same request may succeed later.
STATUSES = {
    408: TIMEOUT,
    425: SERVER,
    429: RATE_LIMIT,
    500: SERVER,
    502: SERVER,
    503: SERVER,
    504: TIMEOUT,
    **dict.fromkeys(range(520, 525), SERVER),  # a proxy says what its own server did not
    529: RATE_LIMIT,
}

#: Class names, of an error or of what it is derived from, in the standard library, openai, litellm, httpx, requests,
#: aiohttp, google's and dspy.
NAMES = {
    "ConnectionRefusedError": REFUSED,
    "ConnectError": REFUSED,
    "gaierror": REFUSED,
    "TimeoutError": TIMEOUT,
    "APITimeoutError": TIMEOUT,
    "LMTimeoutError": TIMEOUT,
    "LMLockTimeoutError": TIMEOUT,
    **dict.fromkeys(("ConnectTimeout", "ReadTimeout", "WriteTimeout", "PoolTimeout"), TIMEOUT),
    "DeadlineExceeded": TIMEOUT,
    "GatewayTimeout": TIMEOUT,
    "RateLimitError": RATE_LIMIT,
    "LMRateLimitError": RATE_LIMIT,
    "TooManyRequests": RATE_LIMIT,
    "ResourceExhausted": RATE_LIMIT,
    "InternalServerError": SERVER,
    "ServiceUnavailable": SERVER,
    "BadGateway": SERVER,
    "ServiceUnavailableError": SERVER,
    "BadGatewayError": SERVER,
    "LMServerError": SERVER,
    "APIResponseValidationError": MALFORMED,
    "APIConnectionError": CONNECTION,
    "LMTransportError": CONNECTION,
    "TransportError": CONNECTION,
    "ConnectionError": CONNECTION,
    "ClientConnectionError": CONNECTION,
    "ClientPayloadError": CONNECTION,
    "ChunkedEncodingError": CONNECTION,
    "IncompleteRead": CONNECTION,
    "BadStatusLine": CONNECTION,
    "SSLEOFError": CONNECTION,
    "SSLZeroReturnError": CONNECTION,
}
CLIENTS = ("litellm", "requests")  # whose timeout is just called that
UNREACHABLE = {errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ETIMEDOUT}

KEPT = "with a run_dir (dspy: log_dir) the state is kept: run again with the same one"  # ends a sentence
MOST_LINKS = 16  # of a chain of errors; some refer to themselves
LONGEST_MESSAGE = 200  # characters


@dataclass(frozen=True)
class Failure:
    """What is known of an error of the infrastructure.

    Args:
        kind: what went wrong, in a word or two.
        message: the error in one line.
        retry_after: seconds that the server asks to be left alone, or ``None`` where it says nothing.
        refused: whether nobody listens there.
    """

    kind: str
    message: str
    retry_after: float | None = None
    refused: bool = False


def infrastructure(error: BaseException) -> Failure | None:
    """Tell an infrastructure failure from what is the sample's own; ``None`` for the latter.

    An error that was raised ``from`` an infrastructure failure is one. An error raised while handling one is not: the
    program has gone on from there.
    """
    for each in _causes(error):
        kind = _kind(each)
        if kind is not None:
            return _failure(kind, error) if kind else None
    return None


def _failure(kind: str, error: BaseException) -> Failure:
    everything = list(_behind(error))
    waits = [wait for each in everything if (wait := _retry_after(each)) is not None]
    refused = any(NAMES.get(type(each).__name__) == REFUSED for each in everything)
    return Failure(REFUSED if refused else kind, message_of(error), max(waits, default=None), refused)


def message_of(error: BaseException) -> str:
    """An error in one line."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    text = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return text if len(text) <= LONGEST_MESSAGE else f"{text[: LONGEST_MESSAGE - 1]}…"


def _chain(error: BaseException, following: Callable[[BaseException], BaseException | None]) -> Iterator[BaseException]:
    seen: set[int] = set()
    here: BaseException | None = error
    while here is not None and id(here) not in seen and len(seen) < MOST_LINKS:
        seen.add(id(here))
        yield here
        here = following(here)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was raised from."""
    return _chain(error, _cause)


def _behind(error: BaseException) -> Iterator[BaseException]:
    """The error and all that came before it."""
    return _chain(error, lambda each: _cause(each) or each.__context__)


def _cause(error: BaseException) -> BaseException | None:
    if error.__cause__ is not None:
        return error.__cause__
    if isinstance(error, AttributeError):
        thing = getattr(error, "obj", None)  # litellm's batches give errors in the place of answers
        return thing if isinstance(thing, Exception) else None
    grouped = getattr(error, "exceptions", None)  # of a task group
    members = [each for each in grouped if isinstance(each, BaseException)] if isinstance(grouped, tuple) else []
    return next((each for each in members if infrastructure(each) is not None), None)


def _kind(error: BaseException) -> str | None:
    """What kind of failure it is; empty for one that is the sample's own; ``None`` if it does not say."""
    if isinstance(error, FlashEvolveError) or not isinstance(error, Exception):
        return ""
    said = _kind_by_status(error)
    if said is None:
        said = next((NAMES[each.__name__] for each in type(error).__mro__ if each.__name__ in NAMES), None)
    if said is None and type(error).__name__ == "Timeout" and type(error).__module__.startswith(CLIENTS):
        said = TIMEOUT
    if said is None and isinstance(error, OSError) and error.errno in UNREACHABLE:
        said = CONNECTION
    return said


def _kind_by_status(error: Exception) -> str | None:
    status = _status(error)
    if status is None or status in STATUSES:
        return None if status is None else STATUSES[status]
    if 400 <= status < 500:  # noqa: PLR2004 - HTTP's own range for what the client did wrong
        return ""
    broken = 200 <= status < 300 and isinstance(error.__cause__, json.JSONDecodeError)  # noqa: PLR2004 - HTTP's own
    return MALFORMED if broken else None


def _status(error: BaseException) -> int | None:
    sources = (error, getattr(error, "response", None))
    found = [getattr(each, name, None) for each in sources for name in ("status_code", "status")]
    return next((each for each in found if isinstance(each, int) and not isinstance(each, bool)), None)


def _retry_after(error: BaseException) -> float | None:
    said = _seconds(getattr(error, "retry_after", None))
    if said is not None:
        return said
    for source in (getattr(error, "response", None), error):
        headers = getattr(source, "headers", None)
        get = getattr(headers, "get", None)
        if callable(get):
            said = _of_headers(get)
            if said is not None:
                return said
    return None


def _of_headers(get: Callable[[str], Any]) -> float | None:
    milliseconds = _seconds(_header(get, "retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = _header(get, "retry-after")
    seconds = _seconds(value)
    return _until(value, _header(get, "date")) if seconds is None else seconds


def _header(get: Callable[[str], Any], name: str) -> Any:
    """A header, also where somebody has copied them into a plain dict."""
    return next((value for each in (name, name.title()) if (value := get(each)) is not None), None)


def _seconds(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if isfinite(seconds) and seconds >= 0 else None


def _until(date: Any, now: Any) -> float | None:
    """Seconds from the date of an answer to the date that it names: both are the server's clock."""
    if not isinstance(date, str):
        return None
    try:
        then = parsedate_to_datetime(date).timestamp()
        here = parsedate_to_datetime(now).timestamp() if isinstance(now, str) else time()
    except (TypeError, ValueError):
        return None
    return max(0.0, then - here)
