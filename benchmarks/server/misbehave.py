"""Answers that are wrong on purpose."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import struct
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse

if TYPE_CHECKING:
    from starlette.types import Receive, Send

    from flashevolve_plugins.benchmarks.server.faults import Faults

__all__ = ["misbehave"]

_PIECES = 100  # in which a drip comes


async def misbehave(kind: str, faults: Faults, body: dict[str, Any], receive: Receive, send: Send) -> None:
    """Answer a request wrongly.

    Args:
        kind: what happens, of the faults' kinds.
        faults: the faults.
        body: what the right answer would have been.
        receive: of the request.
        send: of the request.
    """
    whole = json.dumps(body).encode()
    if kind in {"429", "503"}:
        await _refuse(int(kind), faults, receive, send)
    elif kind == "malformed":
        await _send_part(send, whole[: len(whole) // 2], len(whole) // 2)
    elif kind == "empty":
        await JSONResponse({**body, "choices": []})({"type": "http"}, receive, send)
    elif kind == "drip":
        await _drip(whole, faults.seconds, send)
    elif kind == "hang":
        await _disconnect(receive)
    else:
        if kind != "reset":
            await _send_part(send, whole[: len(whole) // 2] if kind == "truncated" else b"", len(whole))
        _close(receive, hard=kind == "reset")


async def _refuse(status: int, faults: Faults, receive: Receive, send: Send) -> None:
    error = {"message": "Please try again later.", "type": "requests", "param": None, "code": None}
    headers = {"Retry-After": f"{math.ceil(faults.retry_after)}", "Retry-After-Ms": f"{1000 * faults.retry_after:.0f}"}
    waits = headers if status == 429 else None  # noqa: PLR2004 - the one that asks to be left alone for a while
    await JSONResponse({"error": error}, status, waits)({"type": "http"}, receive, send)


async def _send_part(send: Send, part: bytes, length: int) -> None:
    """Send headers that promise so many bytes, and fewer if the part has fewer."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % length)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": part, "more_body": len(part) < length})


async def _drip(whole: bytes, seconds: float, send: Send) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(whole))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    size = -(-len(whole) // _PIECES)
    for start in range(0, len(whole), size):
        await asyncio.sleep(seconds / _PIECES)
        more = start + size < len(whole)
        await send({"type": "http.response.body", "body": whole[start : start + size], "more_body": more})


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _close(receive: Receive, *, hard: bool) -> None:
    """Close the connection under uvicorn, which has no word for that."""
    transport = receive.__self__.transport  # type: ignore[attr-defined]
    if hard:  # the kernel sends a reset where nothing is to linger
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    else:
        transport.close()
