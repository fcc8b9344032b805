"""What proposers and evaluators print: bounded on disk, and without the secrets of this environment."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._whole_file import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MOST_OUTPUT = 16 * 1024 * 1024  # bytes that a command's output may take on disk
LONGEST_FILE = 200_000  # characters of a file that records and policies see
MOST_FILES = 200
_SECRET = re.compile(r"key|token|secret|passw|credential|auth", re.IGNORECASE)
_SHORTEST_SECRET = 8


def without_secrets(text: str, environment: Mapping[str, str] | None = None) -> str:
    """A text with the values of secret-looking variables replaced by their names."""
    for name, value in (os.environ if environment is None else environment).items():
        if len(value) >= _SHORTEST_SECRET and _SECRET.search(name) and value in text:
            text = text.replace(value, f"[{name}]")
    return text


def tidy_output(path: Path, most: int = MOST_OUTPUT) -> None:
    """Take secrets out of a file of output, and its middle if it is longer than ``most`` bytes: whole lines stay."""
    with suppress(OSError):
        size = path.stat().st_size
        if size > most:
            with path.open("rb") as file:
                head = file.read(most // 2).rpartition(b"\n")[0]
                file.seek(size - most // 2)
                tail = file.read().partition(b"\n")[2]
            data = head + b"\n" + tail
        else:
            data = path.read_bytes()
        text = data.decode("utf-8", "surrogateescape")
        clean = without_secrets(text)
        if clean != text or size > most:
            write_whole(path, clean.encode("utf-8", "surrogateescape"))


def write_json_whole(path: Path, value: Any) -> None:
    """Write a file whole, in the form in which both hosts write JSON."""
    write_whole(path, json_of(value))


def json_of(value: Any) -> bytes:
    """A value in the form in which both hosts write JSON."""
    return json.dumps(value, indent=2, sort_keys=True).encode()


def texts_of(folder: Path, names: list[str]) -> dict[str, str]:
    """The texts of some files of a folder, for records and policies; empty for one that is gone."""
    texts = {}
    for name in names[:MOST_FILES]:
        path = folder / name
        text = ""
        with suppress(OSError):
            text = path.read_text(encoding="utf-8", errors="replace")[:LONGEST_FILE]
        texts[name] = without_secrets(text)
    return texts
