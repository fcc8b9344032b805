"""Reflection in a slot: as the host does it, its log lines kept for the serial history."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gepa.proposer.reflective_mutation.reflection_lm import StatelessReflectionLM

from flashevolve_plugins._errors import exit_error
from flashevolve_plugins.adapters.gepa.overlay import overlay
from flashevolve_plugins.adapters.gepa.passing import caught, let_through, passing

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashevolve_plugins._policies import Ask


@dataclass
class Reflection:
    """What one call of the host's reflection gave.

    Args:
        texts: for each of its jobs the host's tuple of texts, prompts, raw outputs and metadata, or what was raised.
        lines: what the host logged of it.
    """

    texts: list[Any] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def log(self, message: str) -> None:
        """Keep a line."""
        self.lines.append(message)


def asked(engine: Any) -> Ask | None:
    """One call of the model that the host reflects with, or ``None`` where it has none that takes a prompt."""
    own: Ask | None = getattr(engine.adapter, "flashevolve_ask", None)
    if own is not None:
        return own
    reflection = engine.reflective_proposer._reflection_lm
    lm = getattr(reflection, "lm", None)
    return None if lm is None else lambda prompt: str(lm(prompt))


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


def takes_all(proposer: Any) -> bool:
    """Whether a reflection strategy of the user's wants all proposals of one sampling call together."""
    return (
        proposer.adapter.propose_new_texts is None
        and proposer.custom_candidate_proposer is None
        and type(proposer._reflection_lm) is not StatelessReflectionLM
        and hasattr(proposer._reflection_lm, "reflect_many")
    )


def reflect(proposer: Any, jobs: list[tuple[dict[str, str], Any, list[str]]]) -> Reflection:
    """Propose new texts. As the host does, a reflection that fails is tried once more, then given up.

    Args:
        proposer: the host's reflective proposer.
        jobs: a parent, its reflective dataset and the components to update, for each proposal.

    Raises:
        Exception: an infrastructure failure, which says nothing of the reflection.
    """
    made = Reflection()
    stand_in: Any = None
    errors: list[Exception] = []

    def propose_new_texts(*job: Any) -> Any:
        try:
            return _staying(type(proposer).propose_new_texts, stand_in, *job)
        except Exception as error:
            let_through(error)
            errors.append(error)
            raise

    def propose_all(jobs: list[Any]) -> Any:
        return _staying(passing(type(proposer)._propose_texts_batch), stand_in, jobs)

    attributes: dict[str, Any] = {
        "logger": made,
        "propose_new_texts": propose_new_texts,
        "_propose_texts_batch": propose_all,
    }
    if is_stateless(proposer):
        quiet = overlay(proposer._reflection_lm, {"logger": made})
        stays = property(lambda _self: quiet, lambda _self, _next: None)  # its successor is itself
        attributes["_reflection_lm"] = stays
    stand_in = overlay(proposer, attributes)
    texts = caught(stand_in._propose_texts_batch_safe, jobs)
    made.texts = [errors.pop(0) if each is None else each for each in texts]
    return made


def _staying(function: Callable[..., Any], *arguments: Any) -> Any:
    """A call whose ``sys.exit`` is an error like any other: the host tries it again, then gives it up."""
    try:
        return function(*arguments)
    except SystemExit as raised:
        raise exit_error(raised) from raised
