"""The run directory of ``superagentic-metaharness``: its store's steps, in the order in which its loop takes them."""

from __future__ import annotations

import json
import os
import shutil
from math import isfinite
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._whole_file import write_whole
from flashevolve_plugins.adapters.meta_harness.private_copy import files_of
from flashevolve_plugins.adapters.meta_harness.texts import tidy_output, without_secrets
from flashevolve_plugins.adapters.meta_harness.three_way import Carried, carry
from flashevolve_plugins.adapters.meta_harness.under_way import FILE, IDEA, LONGEST_IDEA, idea_in, told_of_others

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

REBASE = (
    "This workspace is a newer one than that of a candidate you made before: "
    ".metaharness/experience/stale holds its diff and the files it had changed, and .metaharness/experience/candidates "
    "what was kept since. Carry over what still helps, and leave out what the workspace has already."
)
OWN = ".metaharness"  # the host's folder in a workspace
EXPERIENCE = os.path.join(OWN, "experience")  # noqa: PTH118 - compared with what copytree names
OTHERS = told_of_others(f"{OWN}/experience/{FILE}", f"{OWN}/{IDEA}")
INHERITED = ("valid", "search_objective", "test_objective", "objective", "test_valid")


def write_files_whole(store: Any, *, clean: bool) -> None:
    """Let a store replace its JSON files whole, and without secrets if they are to be clean."""

    def write(path: Path, data: Any) -> None:
        text = json.dumps(data, indent=2, sort_keys=True)
        write_whole(path, (without_secrets(text) if clean else text).encode("utf-8"))

    store._write_json = write


def initialize(engine: Any) -> None:
    """Begin the directory with the host's own description of the run."""
    evidence = engine.trace_evidence_path
    engine.store.initialize_run(
        {
            "objective": engine.objective,
            "constraints": engine.constraints,
            "budget": engine.budget,
            "proposer": engine.proposer.name,
            "baseline": str(engine.baseline),
            "allowed_write_paths": engine.allowed_write_paths,
            "trace_evidence_path": str(evidence) if evidence else None,
            "search_mode": engine.search_mode,
            "proposal_batch_size": engine.proposal_batch_size,
            "selection_policy": engine.selection_policy,
        }
    )


def materialize(store: Any, parent: Any) -> Any:
    """A new candidate under a name that nobody has: making its directory is what takes the name."""
    number = store._next_candidate_index()
    while True:
        name = f"c{number:04d}"
        try:
            (store.candidates_dir / name).mkdir()
        except FileExistsError:
            number += 1
            continue
        return _made(store, name, parent)


def _made(store: Any, name: str, parent: Any) -> Any:
    """As the store makes it, but for the parent's copies of what came before, which the store would delete again."""
    folder = store.candidates_dir / name
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(parent.workspace_dir, folder / "workspace", ignore=_earlier_candidates)
    return type(parent)(
        candidate_id=name,
        parent_candidate_ids=[parent.candidate_id],
        candidate_dir=folder,
        workspace_dir=folder / "workspace",
        manifest_path=folder / "manifest.json",
    )


def _earlier_candidates(folder: str, names: Sequence[str]) -> Sequence[str]:
    """And what a session was shown of others, and wrote for them."""
    own = {EXPERIENCE: ("candidates", FILE), OWN: (IDEA,)}
    return [name for place, left_out in own.items() if folder.endswith(place) for name in left_out if name in names]


def materialize_again(store: Any, stale: Any, parent: Any) -> Any:
    """The same candidate, made from another parent. What it was before is kept in its ``rebased`` folder."""
    aside = store.run_dir / f".{stale.candidate_id}.stale"
    stale.candidate_dir.rename(aside)
    candidate = _made(store, stale.candidate_id, parent)
    earlier = aside / "rebased"
    kept = candidate.candidate_dir / "rebased"
    if earlier.exists():
        earlier.rename(kept)
    kept.mkdir(exist_ok=True)
    shutil.rmtree(aside / "workspace" / ".metaharness", ignore_errors=True)
    aside.rename(kept / str(len(list(kept.iterdir())) + 1))
    return candidate


def carried(candidate: Any, parent: Any, best: Any) -> Carried:
    """What a candidate has changed of its parent, on the best one."""
    return carry(*map(workspace_files, (parent, candidate, best)))


def workspace_files(candidate: Any) -> dict[str, bytes]:
    """A candidate's files, by their paths."""
    return files_of(candidate.workspace_dir, without=[OWN])


def carry_onto(candidate: Any, parent: Any, best: Any, change: Mapping[str, bytes | None]) -> None:
    """Make a candidate a change of the best one, in its place. What it was of its parent is kept in ``rebased``."""
    kept = candidate.candidate_dir / "rebased"
    before = kept / str(len(list(kept.iterdir())) + 1 if kept.exists() else 1)
    old, own, target = map(workspace_files, (parent, candidate, best))
    for name, data in own.items():
        if old.get(name) != data:
            _put(before / "workspace" / name, data)
    shutil.copytree(candidate.candidate_dir / "proposal", before / "proposal")
    goal = {**dict.fromkeys(own), **target, **change}
    write_files(candidate.workspace_dir, {name: data for name, data in goal.items() if own.get(name) != data})
    candidate.parent_candidate_ids = [best.candidate_id]


def write_files(workspace: Path, files: Mapping[str, bytes | None]) -> None:
    """Write files of a workspace; ``None`` removes one."""
    for name, data in files.items():
        if data is None:
            (workspace / name).unlink(missing_ok=True)
        else:
            _put(workspace / name, data)


def _put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def lay_out_stale(candidate: Any, changed: Sequence[str]) -> None:
    """Put what a candidate was before where its proposer finds it."""
    kept = candidate.candidate_dir / "rebased"
    before = kept / str(len(list(kept.iterdir())))
    stale = candidate.workspace_dir / ".metaharness" / "experience" / "stale"
    for name in changed:
        source = before / "workspace" / name
        if source.is_file():
            target = stale / "workspace" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    stale.mkdir(parents=True, exist_ok=True)
    diff = before / "proposal" / "workspace.diff"
    if diff.is_file():
        shutil.copy2(diff, stale / "workspace.diff")


def bundle(engine: Any, candidate: Any, parent: Any, more: Sequence[str] = ()) -> Any:
    """Write what a proposer reads, from what is committed now, with more words for it; the host's request for it."""
    from metaharness.core.engine import collect_environment_bootstrap  # noqa: PLC0415 - the host

    instructions = engine._build_instructions(parent)
    instructions.constraints = [*instructions.constraints, *more]
    return engine.store.write_instruction_bundle(
        candidate=candidate,
        parent=parent,
        instructions=instructions,
        proposer_name=engine.proposer.name,
        bootstrap=collect_environment_bootstrap(candidate.workspace_dir),
        allowed_write_paths=engine.allowed_write_paths,
        trace_evidence_path=engine.trace_evidence_path,
    )


def about(candidate: Any, summary: str) -> dict[str, Any]:
    """What other sessions are told of a candidate."""
    score = candidate.search_objective
    return {
        "name": candidate.candidate_id,
        "made_from": candidate.parent_candidate_ids[0],
        "idea": summary[:LONGEST_IDEA] or idea_in(candidate.workspace_dir / OWN / IDEA),
        "read": str(candidate.candidate_dir),
        "score": score if score is not None and isfinite(score) else None,
        "problem": "" if candidate.valid else candidate.outcome_summary,
    }


def take_in(store: Any, parent: Any, candidate: Any, result: Any) -> int:
    """Write down what a proposer has changed. How many files that are."""
    diff = store.capture_workspace_diff(parent=parent, candidate=candidate)
    manifest = store.capture_change_manifest(candidate)
    tidy_output(candidate.candidate_dir / "proposal" / "workspace.diff")
    result.changed_files = sorted({*result.changed_files, *diff["workspace_changed_files"]})
    told = {name: value for name, value in diff.items() if name != "workspace_changed_files"}
    result.metadata = {**result.metadata, **told, **manifest}
    candidate.proposal_applied = result.applied
    store.write_proposal_result(candidate.candidate_id, result)
    return int(diff["workspace_change_count"])


def inherit(candidate: Any, parent: Any) -> None:
    """A candidate that changed nothing is worth what its parent is."""
    for name in INHERITED:
        setattr(candidate, name, getattr(parent, name))
    candidate.search_metrics, candidate.test_metrics = dict(parent.search_metrics), dict(parent.test_metrics)
