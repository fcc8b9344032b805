"""A run of ``superagentic-metaharness`` that was killed or stopped, as its directory tells of it."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._content import describe, digest
from flashevolve_plugins.adapters.meta_harness.private_copy import files_of
from flashevolve_plugins.adapters.meta_harness.superagentic_files import workspace_files

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

BASELINE, KEPT = "baseline", ("baseline", "keep")
NOT_OVER = (BASELINE, "unknown")  # outcomes that count as no candidate: unknown is what was cancelled


@dataclass(frozen=True)
class Recipe:
    """What begins a candidate again where it was.

    Args:
        candidate: its name.
        parent: the name of the one that it was made from.
        result: the host's record of what the proposer has done; ``None`` until then.
    """

    candidate: str
    parent: str
    result: Any = None


def fingerprint(engine: Any) -> dict[str, str]:
    """What must be the same for a run to be taken up, by its name for messages."""
    domain = engine.domain_adapter
    told = {
        "objective": (engine.objective, engine.constraints, engine.allowed_write_paths),
        "baseline": files_of(engine.baseline),
        "proposer": (engine.proposer.name, describe(type(engine.proposer))),
        "evaluator": describe(type(getattr(domain, "evaluator", domain))),
    }
    return {name: digest(value).hex() for name, value in told.items()}


def key(what: str, candidate: Any) -> bytes:
    """What a candidate's validation or job is the result of: its files."""
    return digest(what, candidate.candidate_id, workspace_files(candidate))


def records(store: Any, without: Collection[str]) -> list[Any]:
    """The host's records of all candidates that have a manifest, in their order; none where the baseline has none."""
    found = []
    for path in sorted(store.candidates_dir.glob("*/manifest.json")):
        if path.parent.name not in without:
            told = json.loads(path.read_text(encoding="utf-8"))
            candidate = _record(path.parent, told["parent_candidate_ids"])
            known = {each.name for each in fields(candidate)} - {"workspace_dir"}
            for name, value in told.items():
                if name in known:
                    setattr(candidate, name, value)
            found.append(candidate)
    return found if found and found[0].outcome == BASELINE else []


def best_of(found: Sequence[Any]) -> Any:
    """What a proposal is made from: of what the host has kept, the one with the highest score."""
    return max((each for each in found if each.outcome in KEPT), key=lambda each: each.search_objective)


def goes_on(store: Any, recipe: Recipe, found: Sequence[Any]) -> bool:
    """Whether a candidate was made, and is still there."""
    known = any(each.candidate_id == recipe.parent for each in found)
    return known and recipe.result is not None and (store.candidates_dir / recipe.candidate / "workspace").is_dir()


def record(store: Any, recipe: Recipe) -> Any:
    """The host's record of a candidate that goes on. It has no manifest until it has ended."""
    candidate = _record(store.candidates_dir / recipe.candidate, [recipe.parent])
    candidate.manifest_path.unlink(missing_ok=True)
    return candidate


def _record(folder: Path, parents: list[str]) -> Any:
    from metaharness.models import CandidateRecord  # noqa: PLC0415 - the host

    return CandidateRecord(folder.name, parents, folder, folder / "workspace", folder / "manifest.json")


def remove_unfinished(store: Any, keep: Collection[str]) -> None:
    """Remove what sessions have left that did not end."""
    for folder in store.candidates_dir.iterdir():
        if folder.is_dir() and folder.name not in keep and not (folder / "manifest.json").exists():
            with suppress(OSError):
                shutil.rmtree(folder)
