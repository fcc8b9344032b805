"""The seam for gepa's own ``MetaHarnessEngine``, which no release has yet."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from flashevolve_plugins._errors import HostError

SUPPORTED = "none yet: gepa's MetaHarnessEngine runs its own loop"


def gepa_has_engine() -> bool:
    """Whether the installed gepa defines ``gepa.oa.engines.MetaHarnessEngine``. Nothing is imported to find out."""
    spec = find_spec("gepa")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        engines = Path(place) / "oa" / "engines"
        for source in (engines.with_suffix(".py"), *engines.glob("**/*.py")):
            if source.is_file() and "class MetaHarnessEngine" in source.read_text(encoding="utf-8", errors="replace"):
                return True
    return False


def install() -> None:
    """Say that flash does not run it.

    Raises:
        HostError: always.
    """
    raise HostError("gepa's own MetaHarnessEngine is not run by flash yet: use superagentic-metaharness 0.4 instead.")
