"""Files that a reader finds as they were or as they are to be, never in between."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

UNFINISHED = ".*.[0-9]*-[0-9]*"  # what a file is called while it is being written


def write_whole(path: Path, data: bytes) -> None:
    """Write a file whole, or leave the old one. Its permissions stay as they were.

    Args:
        path: the file; its directory is made if it is not there.
        data: its content.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        new.write_bytes(data)
        if path.exists():
            new.chmod(path.stat().st_mode & 0o777)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def plain(value: object) -> object:
    """For JSON: a number or a truth value of numpy's as Python's own; of anything else, what it looks like."""
    return value.item() if hasattr(value, "item") else repr(value)
