"""Which packages a run used."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version


def versions(*packages: str) -> dict[str, str]:
    """Package to version, of those that are installed, with Python's own and ours."""
    found = {"python": platform.python_version()}
    for package in ("flashevolve-plugins", *packages):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
