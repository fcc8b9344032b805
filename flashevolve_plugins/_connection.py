"""Whether the servers that a run needs are there, asked before anything is spent."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from flashevolve_plugins._errors import BackendError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

TIMEOUT = 5.0  # seconds
PORTS = {"http": 80, "https": 443}


def require_connections(urls: Iterable[str]) -> None:
    """Open and close one connection to each server.

    Args:
        urls: base URLs, such as ``http://127.0.0.1:8000/v1``.

    Raises:
        UsageError: a URL that is none.
        BackendError: a server that does not answer within 5 seconds.
    """
    for url in dict.fromkeys(urls):
        host, port = _address(url)
        if urlsplit(url).scheme in getproxies() and not proxy_bypass(host):
            continue  # a proxy stands between, and only it can tell
        try:
            socket.create_connection((host, port), timeout=TIMEOUT).close()
        except (OSError, UnicodeError) as error:  # UnicodeError: a host name that cannot be one
            raise BackendError(
                f"No server answers at {url} ({error}): start it, or correct the model's api_base, or pass "
                "Flash(check_connection=False). Nothing was spent."
            ) from error


def _address(url: str) -> tuple[str, int]:
    """Host and port of a base URL."""
    try:
        parts = urlsplit(url)
        if parts.scheme in PORTS and parts.hostname:
            return parts.hostname, parts.port or PORTS[parts.scheme]
    except ValueError:  # a port or an IPv6 address that is none
        pass
    raise UsageError(f"The base URL {url!r} is not one: write it like http://127.0.0.1:8000/v1.")
