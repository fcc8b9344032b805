"""A checkout's stale candidates on what is best now: each is a module, copied from another one and changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashevolve_plugins.adapters.meta_harness.private_copy import files_of
from flashevolve_plugins.adapters.meta_harness.publishing import Candidate, belonging, renamed
from flashevolve_plugins.adapters.meta_harness.three_way import Carried, carry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

AGENT = "agent"  # the one name under which agents are compared


def carried_agents(agents: Path, candidates: Sequence[Candidate], base: str, best: str) -> Carried:
    """What candidates have changed of what was best as their session began, on what is best now.

    Args:
        agents: the folder of agents.
        candidates: those of one session.
        base: the module of what was best then.
        best: the module of what is best now.

    Returns:
        All files of those whose change can be carried; the first conflict where that are none.
    """
    published, files, conflict = files_of(agents), {}, ""
    for candidate in candidates:
        if candidate.made_of not in ("", base):
            change = Carried(conflict=f"{candidate.name} was made of {candidate.made_of}, not of what was best")
        else:
            sides = (published, base), (candidate.files, candidate.stem), (published, best)
            change = carry(*(_agent(of, stem) for of, stem in sides))
        conflict = conflict or change.conflict
        if change.files:
            files.update(renamed({**_agent(published, best), **change.files}, AGENT, candidate.stem))
    return Carried(files, "" if files else conflict)


def _agent(files: Mapping[str, bytes], stem: str) -> dict[str, bytes]:
    return renamed(belonging(files, stem), stem, AGENT)


def carry_agents(candidates: Sequence[Candidate], change: Mapping[str, bytes | None], best: str) -> None:
    """Let candidates be what :func:`carried_agents` said."""
    for candidate in candidates:
        own = {name: data for name, data in belonging(change, candidate.stem).items() if data is not None}
        if own:
            candidate.files = own
            if candidate.made_of:
                candidate.made_of = candidate.told["base_system"] = best
