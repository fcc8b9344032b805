"""What a run keeps of its calls so that it can be taken up: each evaluation, dataset and text, under its content."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._content import Contents, digest
from flashevolve_plugins._keeping import Pickled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashevolve_plugins.adapters.gepa.evaluation import Evaluator
    from flashevolve_plugins.adapters.gepa.reflection import Reflection


@dataclass
class Evaluated:
    """How the evaluation of (candidate, examples) pairs is kept, by one call of the evaluator.

    Args:
        keeps: of the run.
        items: the pairs.
        capture_traces: whether the adapter captures traces.
        together: whether the call gives a list with one evaluation for each pair.
    """

    keeps: Keeps
    items: Sequence[tuple[dict[str, str], list[Any]]]
    capture_traces: bool
    together: bool = False

    @cached_property
    def key(self) -> bytes:
        """Candidates, examples, whether with traces, and what evaluated them."""
        of = self.keeps.contents.of
        pairs = [(candidate, [of(each) for each in batch]) for candidate, batch in self.items]
        return digest("evaluation", self.keeps.identity, self.capture_traces, self.together, pairs)

    def freeze(self, result: Any) -> bytes | None:
        """The evaluations as bytes."""
        if self.together:
            parts = [
                self.keeps.evaluator.freeze(candidate, batch, evaluation)
                for (candidate, batch), evaluation in zip(self.items, result, strict=True)
            ]
            return Pickled(self.key).freeze(parts)
        ((candidate, batch),) = self.items
        return self.keeps.evaluator.freeze(candidate, batch, result)

    def thaw(self, frozen: bytes) -> Any:
        """The evaluations again."""
        if self.together:
            parts = Pickled(self.key).thaw(frozen)
            return [
                self.keeps.evaluator.thaw(candidate, batch, part)
                for (candidate, batch), part in zip(self.items, parts, strict=True)
            ]
        ((candidate, batch),) = self.items
        return self.keeps.evaluator.thaw(candidate, batch, frozen)


@dataclass
class Keeps:
    """Makes the above for one run, and the same for what is no evaluation.

    Args:
        evaluator: the run's.
    """

    evaluator: Evaluator

    @cached_property
    def contents(self) -> Contents:
        """Digests of the run's examples."""
        return Contents(self.evaluator.content)

    @cached_property
    def identity(self) -> bytes:
        """Program, metric and models: what others gave is no result of these."""
        return digest(*self.evaluator.identity())

    def evaluation(
        self, items: Sequence[tuple[dict[str, str], list[Any]]], *, traces: bool, together: bool = False
    ) -> Evaluated:
        """An evaluation."""
        return Evaluated(self, items, traces, together)

    def dataset(self, task: Any, components: Sequence[str]) -> Pickled:
        """The reflective dataset of a task."""
        return Pickled(digest("dataset", *self._of_task(task), list(components)))

    def texts(self, jobs: Sequence[tuple[Any, Sequence[str]]]) -> Pickled:
        """What one reflection proposes for tasks and their components."""
        named = [[*self._of_task(task), list(components)] for task, components in jobs]
        return Pickled(digest("texts", named), _succeeded)

    def merged(self, current: dict[str, str], changes: Sequence[Any]) -> Pickled:
        """What a policy writes of several changes."""
        return Pickled(digest("merge", current, [(each.before, each.after, each.feedback) for each in changes]))

    def _of_task(self, task: Any) -> tuple[Any, ...]:
        return self.identity, task.parent_candidate, [self.contents.of(each) for each in task.minibatch]


def question(prompt: str) -> bytes:
    """What names the answer to a policy's question."""
    return digest("question", prompt)


def _succeeded(reflection: Reflection) -> bool:
    return not any(isinstance(texts, Exception) for texts in reflection.texts)
