"""What is known of candidates on training examples, where the user says that evaluating them again changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from gepa.core.state import _candidate_hash

from flashevolve_plugins.adapters.gepa.rollouts import mean_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from flashevolve_plugins.adapters.gepa.session import Session

ROLLOUT = "rollout"

#: A candidate, and the ids of examples.
Where: TypeAlias = "tuple[dict[str, str], Sequence[Any]]"
Key: TypeAlias = "tuple[str, Any]"
Finish: TypeAlias = "Callable[[list[Any]], list[Any]]"

MOST = 4_000  # evaluations of single examples with their traces, the last ones
MOST_FREE = 3  # rollouts in a row; the next one is paid for, as otherwise a run that finds nothing new would never end


class Known:
    """Evaluations with traces by (candidate, training example): of rollouts, gates, and shared validations.

    Only with the host's ``cache_evaluation``, and where every sample is an example. The budget pays for none of them
    twice.

    Args:
        session: the run.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._kept: dict[Key, Any] = {}
        self._free = 0  # rollouts in a row that cost nothing

    @property
    def _enabled(self) -> bool:
        return self._session.cache.enabled and self._session.evaluator.granularity == "example"

    def stage(self, name: str, wanted: list[tuple[dict[str, str], Sequence[Any], list[Any]]], then: int) -> Any:
        """A stage that evaluates, with traces, what is not known.

        Args:
            name: the stage's name.
            wanted: candidate, ids and examples.
            then: metric calls needed after it.

        Returns:
            The stage, and a function from its results to one ``EvaluationBatch`` for each that is wanted.
        """
        session = self._session
        if not self._enabled:
            return session.evaluation_stage(name, [(candidate, batch) for candidate, _, batch in wanted], then=then)
        keys = [[(_candidate_hash(candidate), each) for each in ids] for candidate, ids, _ in wanted]
        parts = self._parts(name, [key for of_one in keys for key in of_one])
        asked, places = dict[Key, Any](), [list[int]() for _ in wanted]  # a minibatch may hold an example twice
        for one, of_one in enumerate(keys):
            for place, key in enumerate(of_one):
                if key not in parts and asked.setdefault(key, (one, place)) == (one, place):
                    places[one].append(place)
        fresh = [
            (candidate, [ids[place] for place in chosen], [batch[place] for place in chosen])
            for (candidate, ids, batch), chosen in zip(wanted, places, strict=True)
        ]
        stage, _ = session.evaluation_stage(name, [(candidate, batch) for candidate, _, batch in fresh], then=then)

        def finish(results: list[Any]) -> list[Any]:
            new = self._put([(candidate, ids) for candidate, ids, _ in fresh], results)
            parts.update(zip(asked, new, strict=True))
            left = set(asked)
            return [session.evaluator.merge([self._take(key, parts, left) for key in of_one]) for of_one in keys]

        return stage, finish

    def _parts(self, stage: str, keys: list[Key]) -> dict[Key, Any]:
        """What is known of these; nothing of a rollout when too many in a row have cost nothing."""
        parts = {key: self._kept[key] for key in keys if key in self._kept}
        if not all(key in parts for key in keys):
            self._free = 0
        elif stage == ROLLOUT:
            self._free += 1
            if self._free > MOST_FREE:
                self._free = 0
                return {}
        return parts

    def _take(self, key: Key, parts: dict[Key, Any], left: set[Key]) -> Any:
        """The evaluation of one example; it costs nothing unless it was made for this."""
        if key in left:
            left.remove(key)
            return parts[key]
        self._session.driver.spare(self._session.calls(parts[key]))
        return replace(parts[key], num_metric_calls=0)

    def keeping(self, finish: Finish, validated: list[Where]) -> Finish:
        """Keep what a validation gives on examples that are training examples as well.

        Args:
            finish: of the validation, in the host's order.
            validated: the candidates, and the ids of what is evaluated.
        """
        if not self._enabled:
            return finish

        def kept(results: list[Any]) -> list[Any]:
            for _ in self._put(validated, results, only=self._session.shares):
                pass
            return finish(results)

        return kept

    def _put(
        self, where: list[Where], results: list[Any], only: Callable[[Any], bool] = lambda _: True
    ) -> Iterator[Any]:
        """Keep the results of samples that are examples, and give each, the mean of its rollouts."""
        rollouts = self._session.rollouts
        parts = iter([mean_of(results[end - rollouts : end]) for end in range(rollouts, len(results) + 1, rollouts)])
        for candidate, ids in where:
            for each in ids:
                part = next(parts)
                if part.trajectories and only(each):
                    self._kept[_candidate_hash(candidate), each] = part
                    if len(self._kept) > MOST:
                        del self._kept[next(iter(self._kept))]
                yield part
