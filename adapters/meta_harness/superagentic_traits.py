"""What a proposer or an evaluator of ``superagentic-metaharness`` says of itself."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from flashevolve_plugins.adapters.meta_harness.host import Job

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

OWN = ("CodexExecBackend", "GeminiCliBackend", "OmnigentCliBackend", "FakeBackend", "CodingToolEvaluator")


def _plain(domain: Any) -> Any:
    """The evaluator that a domain adapter of the host's own stands for, else the adapter."""
    return domain.evaluator if type(domain).__name__ == "LegacyDomainAdapter" else domain


def at_once(each: Any) -> bool:
    """Whether several threads may call it: it is the host's own, or says so."""
    each = _plain(each)
    kind = type(each)
    own = kind.__name__ in OWN and kind.__module__.partition(".")[0] == "metaharness"
    return own or getattr(each, "flashevolve_evaluate", None) == "example"


def has_tests(domain: Any) -> bool:
    """Whether it has held-out tests."""
    return callable(getattr(_plain(domain), "evaluate_test", None))


def seconds_of(each: Any, *arguments: Any) -> float:
    """Virtual seconds of a call, as the object says."""
    said = getattr(each, "flashevolve_seconds", None)
    return 0.0 if said is None else float(said(*arguments))


def jobs_of(domain: Any, workspace: Path) -> tuple[Sequence[Job], Callable[[Sequence[Any]], Any]]:
    """An evaluation's jobs, and from their results to the evaluation.

    An evaluator with ``flashevolve_jobs(workspace)``, which gives functions without arguments, and
    ``flashevolve_combine(workspace, results)`` is split; any other is called once.
    """
    evaluator = _plain(domain)
    seconds = partial(seconds_of, evaluator, workspace)
    if hasattr(evaluator, "flashevolve_jobs"):
        jobs = [
            Job(each, partial(seconds_of, each) if hasattr(each, "flashevolve_seconds") else seconds)
            for each in evaluator.flashevolve_jobs(workspace)
        ]
        return jobs, partial(evaluator.flashevolve_combine, workspace)
    return [Job(partial(domain.evaluate_search, workspace), seconds)], lambda results: results[0]
