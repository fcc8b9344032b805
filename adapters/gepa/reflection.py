"""One reflection in a slot: as the host does it, its log lines kept for the serial history."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gepa.proposer.reflective_mutation.reflection_lm import StatelessReflectionLM

from flashevolve_plugins.adapters.gepa.overlay import overlay


@dataclass
class Reflection:
    """What one reflection gave.

    Args:
        texts: the host's tuple of texts, prompts, raw outputs and metadata, or what was raised.
        lines: what the host's reflection logged.
    """

    texts: Any = None
    lines: list[str] = field(default_factory=list)

    def log(self, message: str) -> None:
        """Keep a line."""
        self.lines.append(message)


def may_run_at_once(proposer: Any) -> bool:
    """Whether the host itself would run several reflections at once: its own reflection, on a model that batches.

    A function of the user's is called one at a time, as the host does.
    """
    return is_stateless(proposer) and hasattr(proposer._reflection_lm.lm, "batch_complete")


def is_stateless(proposer: Any) -> bool:
    """Whether the host's own stateless reflection writes the texts."""
    return (
        proposer.adapter.propose_new_texts is None
        and proposer.custom_candidate_proposer is None
        and type(proposer._reflection_lm) is StatelessReflectionLM
    )


def reflect(proposer: Any, candidate: dict[str, str], dataset: Any, components: list[str]) -> Reflection:
    """Propose new texts. As the host does, a reflection that fails is tried once more, then given up.

    Args:
        proposer: the host's reflective proposer.
        candidate: the parent.
        dataset: its reflective dataset.
        components: the components to update.
    """
    made = Reflection()
    if is_stateless(proposer):
        quiet = overlay(proposer._reflection_lm, {"logger": made})
        stays = property(lambda _self: quiet, lambda _self, _next: None)  # its successor is itself
        proposer = overlay(proposer, {"_reflection_lm": stays})
    for _ in range(2):
        try:
            made.texts = proposer.propose_new_texts(candidate, dataset, components)
            break
        except Exception as error:  # noqa: BLE001 - recorded; the host's loop logs it
            made.texts = error
    return made
