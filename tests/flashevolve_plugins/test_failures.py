"""What counts as a failure of the infrastructure, told without any client library."""

import errno
import http.client
import json
import socket
from types import SimpleNamespace

import pytest

from flashevolve_plugins import BackendError
from flashevolve_plugins._failures import LONGEST_MESSAGE, infrastructure


def made(name, *bases, module="somewhere", **attributes):
    """An exception of a class of that name."""
    kind = type(name, bases or (Exception,), {"__module__": module})
    error = kind("it broke")
    for key, value in attributes.items():
        setattr(error, key, value)
    return error


def raised_from(error, cause):
    error.__cause__ = cause
    return error


def raised_while_handling(error, context):
    error.__context__ = context
    return error


REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

INFRASTRUCTURE = [
    (REFUSED, "refused"),
    (socket.gaierror(-2, "Name or service not known"), "refused"),
    (ConnectionResetError("reset"), "connection"),
    (BrokenPipeError("broken"), "connection"),
    (http.client.RemoteDisconnected("closed"), "connection"),
    (http.client.IncompleteRead(b"half"), "connection"),
    (OSError(errno.EHOSTUNREACH, "No route to host"), "connection"),
    (TimeoutError("slow"), "timeout"),
    (made("APIConnectionError"), "connection"),
    (made("APITimeoutError", type("APIConnectionError", (Exception,), {})), "timeout"),
    (made("RateLimitError", status_code=429), "rate limit"),
    (made("InternalServerError", status_code=500), "server error"),
    (made("APIStatusError", status_code=529), "rate limit"),
    (made("HTTPStatusError", response=SimpleNamespace(status_code=503)), "server error"),
    (made("HTTPError", status=502), "server error"),
    (made("ReadError", type("TransportError", (Exception,), {})), "connection"),
    (made("Timeout", module="litellm.exceptions"), "timeout"),
    (made("Timeout", module="requests.exceptions"), "timeout"),
    (made("LMTransportError"), "connection"),
    (made("LMServerError", status=None), "server error"),
    (raised_from(made("LMProviderError", status=200), json.JSONDecodeError("bad", "{", 1)), "malformed answer"),
    (raised_from(made("LMUnexpectedError"), REFUSED), "refused"),
    (raised_from(RuntimeError("the tool failed"), TimeoutError()), "timeout"),
    (made("BaseExceptionGroup", exceptions=(ValueError(), ConnectionResetError())), "connection"),
    (made("AttributeError", AttributeError, obj=made("RateLimitError", status_code=429)), "rate limit"),
]


@pytest.mark.parametrize(("error", "kind"), INFRASTRUCTURE, ids=lambda each: getattr(each, "args", each) and repr(each))
def test_what_a_server_or_a_network_did_is_told_with_its_kind(error, kind):
    assert infrastructure(error).kind == kind


OWN = [
    ValueError("no score"),
    KeyError("answer"),
    json.JSONDecodeError("bad", "{", 1),
    OSError(errno.ENOSPC, "No space left"),
    FileNotFoundError("data.json"),
    made("Timeout"),  # somebody's own
    made("BadRequestError", status_code=400),
    made("AuthenticationError", status_code=401),
    made("NotFoundError", status_code=404),
    made("ContextWindowExceededError", status=400),
    made("LMProviderError", status=200),
    made("NotImplementedStatus", status_code=501),
    made("Odd", status="failed", response="text", status_code=True),
    raised_from(made("BadRequestError", status_code=422), ConnectionResetError()),
    raised_while_handling(ValueError("no answer"), ConnectionResetError()),
    raised_while_handling(KeyError("answer"), made("RateLimitError", status_code=429)),
    raised_from(BackendError("every example raised"), ConnectionResetError()),
    KeyboardInterrupt(),
    made("BaseExceptionGroup", exceptions=(ValueError(),)),
    AttributeError("no attribute"),
]


@pytest.mark.parametrize("error", OWN, ids=repr)
def test_what_is_the_samples_own_is_no_failure_of_a_server(error):
    assert infrastructure(error) is None


def reset():
    raise ConnectionResetError("reset")


def answer(handler):
    try:
        reset()
    except ConnectionResetError as error:
        handler(error)


def test_an_error_raised_while_handling_one_is_the_program_s_own_but_not_the_same_one_raised_again():
    def another(_):
        raise ValueError("no answer")

    def again(error):
        raise error

    for handler, found in ((another, False), (again, True)):
        with pytest.raises((ValueError, ConnectionResetError)) as caught:
            answer(handler)
        assert (infrastructure(caught.value) is not None) is found


def test_a_chain_of_errors_that_refer_to_each_other_ends():
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert infrastructure(first) is None


WAITS = [
    ({"retry-after": "3"}, 3.0),
    ({"Retry-After": "0.5"}, 0.5),
    ({"retry-after": "3", "retry-after-ms": "1500"}, 1.5),
    ({"retry-after": "Wed, 21 Oct 2015 07:28:30 GMT", "date": "Wed, 21 Oct 2015 07:28:00 GMT"}, 30.0),
    ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),  # long ago
    ({"retry-after": "soon"}, None),
    ({"retry-after": "-1"}, None),
    ({"retry-after": "inf"}, None),
    ({}, None),
]


@pytest.mark.parametrize(("headers", "seconds"), WAITS)
def test_a_server_that_says_when_to_come_back_is_heard(headers, seconds):
    error = made("RateLimitError", status_code=429, response=SimpleNamespace(headers=headers))
    assert infrastructure(error).retry_after == seconds


def test_it_is_heard_through_whatever_wraps_the_answer():
    answer = made("HTTPStatusError", response=SimpleNamespace(headers={"retry-after": "7"}))
    wrapped = raised_while_handling(made("RateLimitError", status_code=429), answer)
    assert infrastructure(raised_from(made("LMRateLimitError"), wrapped)).retry_after == 7.0
    assert infrastructure(made("LMRateLimitError", retry_after=4.0)).retry_after == 4.0


def test_nobody_listening_is_seen_behind_what_a_client_makes_of_it():
    client = raised_while_handling(
        made("InternalServerError", status_code=500), raised_from(made("ConnectError"), REFUSED)
    )
    found = infrastructure(client)
    assert (found.kind, found.refused) == ("refused", True)
    assert not infrastructure(ConnectionResetError()).refused


def test_the_message_is_one_short_line():
    error = TimeoutError("\n  slow\nand much more")
    assert infrastructure(error).message == "TimeoutError: slow"
    assert len(infrastructure(TimeoutError("x" * 999)).message) == LONGEST_MESSAGE
    assert infrastructure(TimeoutError()).message == "TimeoutError"
