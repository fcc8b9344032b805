"""The host's candidates as pool entries."""

from __future__ import annotations

from typing import Any

from flashevolve_plugins._model import PoolEntry


def new_entries(engine: Any, state: Any, known: int, item: int | None) -> list[PoolEntry]:
    """What the host's state holds beyond the first ``known`` candidates.

    Args:
        engine: the host's engine; its validation policy scores.
        state: the host's state.
        known: the pool's version.
        item: the item that brought them, or ``None``.
    """
    return [
        PoolEntry(
            version=index + 1,
            artifact=dict(state.program_candidates[index]),
            score=engine.val_evaluation_policy.get_valset_score(index, state),
            parents=tuple(each + 1 for each in state.parent_program_for_candidate[index] if each is not None),
            item=item,
            scores=dict(state.prog_candidate_val_subscores[index]),
        )
        for index in range(known, len(state.program_candidates))
    ]
