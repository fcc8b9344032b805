"""What an item needs to be begun again by a run that is taken up."""

from __future__ import annotations

import pickle
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gepa.core.data_loader import ListDataLoader
from gepa.strategies.proposal_sampling import ProposalTask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashevolve_plugins._content import Contents


@dataclass
class Mutation:
    """Of an item that mutates.

    Args:
        tasks: parent candidate, minibatch ids and digests of the minibatch's examples, for each task.
        components: those chosen to be updated, for each of the tasks that went on to reflection; ``None`` before that.
    """

    tasks: list[tuple[dict[str, str], list[Any], list[bytes]]]
    components: list[list[str]] | None = None


@dataclass
class Merge:
    """Of one of the host's own merges: what it merged, on which validation ids, and what it had read.

    Args:
        candidate: component name to text.
        ids: validation ids.
        view: attributes of the frozen view of the host's state.
        random: state of the host's generator before.
        done: merges performed before.
    """

    candidate: dict[str, str]
    ids: list[Any]
    view: dict[str, Any]
    random: Any
    done: Any


@dataclass
class Queued:
    """Of a merge of what waited in the queue. It is not begun again: its members are, and then merged together again.

    Args:
        members: their rows.
    """

    members: list[int]


@dataclass
class Seed:
    """Of the seed's validation, which the host begins again itself."""


def frozen(recipe: Any) -> bytes:
    """The recipe as bytes; that of the seed, which nobody begins again, where an id is no value that can be kept."""
    try:
        return pickle.dumps(recipe)
    except Exception:  # noqa: BLE001 - whatever a user's object raises
        return pickle.dumps(Seed())


def thawed(recipe: bytes) -> Any:
    """The recipe; that of the seed where a class of an id is no longer there."""
    try:
        return pickle.loads(recipe)  # noqa: S301 - the directory is trusted, or nothing of it is loaded
    except Exception:  # noqa: BLE001 - as above
        return Seed()


def recipe_of(tasks: Sequence[Any], contents: Contents) -> Mutation:
    """The recipe of what a sampling strategy asked for."""
    return Mutation(
        [
            (dict(task.parent_candidate), list(task.minibatch_ids), [contents.of(each) for each in task.minibatch])
            for task in tasks
        ]
    )


@dataclass
class Again:
    """Items to begin again, and where to find what they were made from.

    Args:
        trainset: the run's.
        contents: digests of its examples.
        recipes: rows and recipes, in the order of their first beginning.
    """

    trainset: Any
    contents: Contents
    recipes: deque[tuple[int, Any]] = field(default_factory=deque)
    _by_digest: dict[bytes, Any] | None = None

    def next(self, candidates: Sequence[dict[str, str]]) -> tuple[int, Any, list[ProposalTask[Any, Any]]] | None:
        """The first whose parents are in the pool: its row, its recipe and, for a mutation, its tasks.

        A parent that is not may be among those that are begun again, whose validation is paid for.
        """
        for position, (row, recipe) in enumerate(self.recipes):
            if isinstance(recipe, Merge):
                known = recipe.view["program_candidates"]
                if list(candidates[: len(known)]) == known:
                    del self.recipes[position]
                    return row, recipe, []
                continue
            tasks = [self._task(candidates, *task) for task in recipe.tasks]
            found = [task for task in tasks if task is not None]
            if len(found) == len(tasks):
                del self.recipes[position]
                return row, recipe, found
        return None

    def _task(
        self, candidates: Sequence[dict[str, str]], parent: dict[str, str], ids: list[Any], digests: list[bytes]
    ) -> ProposalTask[Any, Any] | None:
        if parent not in candidates:
            return None
        examples = self._examples(ids, digests)
        if examples is None:
            return None
        found_ids, minibatch = examples
        return ProposalTask(list(candidates).index(parent), dict(parent), found_ids, minibatch)

    def _examples(self, ids: list[Any], digests: list[bytes]) -> tuple[list[Any], list[Any]] | None:
        """The examples with these digests, under the ids that they have now."""
        try:
            examples = self.trainset.fetch(ids)
        except (LookupError, TypeError, ValueError):
            examples = []
        if [self.contents.of(each) for each in examples] == digests:
            return list(ids), list(examples)
        if self._by_digest is None:
            known = self.trainset.all_ids() if type(self.trainset) is ListDataLoader else []
            fetched = self.trainset.fetch(known) if known else []
            self._by_digest = {self.contents.of(example): each for each, example in zip(known, fetched, strict=True)}
        found = [self._by_digest.get(each) for each in digests]
        if None in found:
            return None
        return found, self.trainset.fetch(found)
