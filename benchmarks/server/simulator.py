"""From a checked request to its answers: text, length and luck, independent of the order of requests."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from flashevolve_plugins.benchmarks.server.playbook_replies import playbook_reply
from flashevolve_plugins.benchmarks.server.replies import reply

if TYPE_CHECKING:
    from flashevolve_plugins.benchmarks.server.chat import ChatRequest
    from flashevolve_plugins.benchmarks.server.settings import ServerSettings

__all__ = ["Choice", "Simulator", "count_tokens"]

_CHARACTERS_PER_TOKEN = 4


def count_tokens(text: str) -> int:
    """Return the tokens of ``text``: one per four characters, rounded up."""
    return -(-len(text) // _CHARACTERS_PER_TOKEN)


@dataclass(frozen=True)
class Choice:
    """One answer.

    Args:
        text: what the client reads.
        tokens: what it counts; most of it stands for thinking that is not sent.
        finish_reason: "length" if ``max_tokens`` cut the text.
        slowness: factor on its work.
    """

    text: str
    tokens: int
    finish_reason: Literal["stop", "length"]
    slowness: float = 1.0


class Simulator:
    """Answers requests.

    Text and length depend on the server's seed, the messages, and how often the same messages were answered before.

    Args:
        settings: of the server.
    """

    def __init__(self, settings: ServerSettings) -> None:
        """Start with no request seen."""
        self._settings = settings
        self._median = settings.lengths.median()
        self._seen: Counter[bytes] = Counter()

    def choices(self, chat: ChatRequest) -> list[Choice]:
        """Return the ``chat.n`` answers to a request."""
        digest = hashlib.blake2b(str(self._settings.seed).encode(), digest_size=16)
        for message in chat.messages:
            digest.update(f"\x1e{message.role}\x1f{message.text}".encode("utf-8", "surrogatepass"))
        key = digest.digest()
        first = self._seen[key]
        self._seen[key] += chat.n
        return [self._choice(chat, key, first + index) for index in range(chat.n)]

    def _choice(self, chat: ChatRequest, key: bytes, seen: int) -> Choice:
        """Return the answer to messages that were answered ``seen`` times before."""
        draw = random.Random(hashlib.blake2b(key + seen.to_bytes(8, "big"), digest_size=16).digest())
        luck = draw.getrandbits(64)
        text = playbook_reply(self._settings.playbook, chat.messages, luck)
        if text is None:
            text = reply(self._settings.landscape, chat.messages, chat.response_format, luck)
        tokens = max(self._settings.lengths.draw(draw, self._median), count_tokens(text))
        slowness = self._settings.latency.draw_slowness(draw)
        limit = chat.max_tokens
        if limit is None or tokens <= limit:
            return Choice(text, tokens, "stop", slowness)
        if count_tokens(text) <= limit:
            return Choice(text, limit, "stop", slowness)
        return Choice(text[: limit * _CHARACTERS_PER_TOKEN], limit, "length", slowness)
