"""The host's own merges as items.

``MergeProposer.propose`` evaluates in its middle. It is run twice on the same frozen view of the state, with the same
random numbers: once up to the evaluation, when the item is offered, and once to its end, when the item has ended and
the host's loop comes to it. Between the two, the evaluation runs in slots like every other.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any

from gepa.core.callbacks import MergeAttemptedEvent, MergeRejectedEvent, notify_callbacks

from flashevolve_plugins._model import Discarded, Outcome, Terminal
from flashevolve_plugins.adapters.gepa import recipes
from flashevolve_plugins.adapters.gepa.gate import REPEATED
from flashevolve_plugins.adapters.gepa.overlay import overlay
from flashevolve_plugins.adapters.gepa.recording import EndOfRecording, Recording, recorded
from flashevolve_plugins.adapters.gepa.validation import Pending, Validated, validation_stage

if TYPE_CHECKING:
    from flashevolve_plugins._bodies import Body
    from flashevolve_plugins.adapters.gepa.session import Session


class _Paused(BaseException):
    """The host's merge asks for an evaluation: what it merged, and on which validation ids."""

    def __init__(self, candidate: dict[str, str], ids: list[Any]) -> None:
        self.candidate, self.ids = candidate, ids
        super().__init__()


class _View:
    """The parts of the host's state that a merge reads, as they were when it was offered."""

    def __init__(self, state: Any) -> None:
        self.program_candidates = list(state.program_candidates)
        self.parent_program_for_candidate = list(state.parent_program_for_candidate)
        self.prog_candidate_val_subscores = list(state.prog_candidate_val_subscores)
        self.program_full_scores_val_set = list(state.program_full_scores_val_set)
        self.per_program_tracked_scores = list(state.per_program_tracked_scores)
        self._front = state.get_pareto_front_mapping()
        self.full_program_trace: list[dict[str, Any]] = [{}]
        self.i = state.i

    def kept(self) -> dict[str, Any]:
        """What a view is made of again."""
        return dict(vars(self))

    @classmethod
    def of(cls, kept: dict[str, Any]) -> _View:
        """The view that was made of this."""
        view = cls.__new__(cls)
        view.__dict__.update(kept)
        return view

    def get_pareto_front_mapping(self) -> Any:
        """The Pareto front at that time."""
        return {key: set(programs) for key, programs in self._front.items()}

    def cached_evaluate_full(self, candidate: dict[str, str], ids: list[Any], *_: Any) -> Any:
        """Stop here: the evaluation is to run in slots."""
        raise _Paused(candidate, ids)


class _Replay(_View):
    """The same view with the evaluation's results at hand, writing to the live state."""

    def __init__(self, view: _View, state: Any, results: Validated | None) -> None:
        self.__dict__.update(view.__dict__)
        self.i, self.full_program_trace, self.increment_evals = state.i, state.full_program_trace, state.increment_evals
        self._results = results

    def cached_evaluate_full(self, candidate: dict[str, str], ids: list[Any], *_: Any) -> Any:
        """The results that the slots gave."""
        del candidate, ids
        assert self._results is not None  # noqa: S101 - only a merge that was found asks
        evaluation, cost = self._results.evaluation, self._results.cost
        self._results.tell()
        return (
            evaluation.outputs_by_val_id,
            evaluation.scores_by_val_id,
            evaluation.objective_scores_by_val_id,
            cost,
        )


class Merges:
    """Offers the host's merges, and stands in for its merge proposer while the host's loop runs over ended items.

    Args:
        session: the run.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._host = session.engine.merge_proposer
        self._found_new_program = False
        self._in_flight = 0

    # -- offering ---------------------------------------------------------------------------------------------------

    def offer(self, number: int, iteration: int, recording: Recording) -> Body | None:
        """A merge, if the host's schedule has one due and a candidate entered the pool since the last attempt.

        Args:
            number: the item's.
            iteration: the item's.
            recording: the item's; where nothing is found to merge it keeps that this was tried.
        """
        host = self._host
        if host is None or not host.use_merge or not self._found_new_program:
            return None
        if host.merges_due - self._in_flight <= 0:
            return None
        self._found_new_program = False
        view, before = _View(self._session.state), host.rng.getstate()
        view.i = iteration
        done = (list(host.merges_performed[0]), list(host.merges_performed[1]))
        quiet = {"logger": _Quiet(), "callbacks": None, "last_iter_found_new_program": True, "merges_due": 1}
        recording.put("replay", (view, before, done))
        try:
            overlay(host, quiet).propose(view)
        except _Paused as paused:
            if self._session.kept is not None:
                recipe = recipes.Merge(paused.candidate, paused.ids, view.kept(), before, done)
                self._session.kept.opened_merge(number, recipe)
            self._in_flight += 1
            recording.merge = True
            return self._body(paused.candidate, paused.ids, view, recording)
        return None

    def again(self, recipe: recipes.Merge, iteration: int, recording: Recording) -> Body:
        """A merge that was under way when the run was interrupted."""
        view = _View.of(recipe.view)
        view.i = iteration
        recording.put("replay", (view, recipe.random, recipe.done))
        self._in_flight += 1
        recording.merge = True
        return self._body(recipe.candidate, recipe.ids, view, recording)

    def _body(self, candidate: dict[str, str], ids: list[Any], view: _View, recording: Recording) -> Body:
        outcome = yield from recorded(self._evaluate(candidate, ids, view, recording), recording)
        self._in_flight -= 1
        return outcome

    def _evaluate(self, candidate: dict[str, str], ids: list[Any], view: _View, recording: Recording) -> Body:
        session, content = self._session, {tuple(sorted(candidate.items()))}
        taken_up = session.kept is not None and session.kept.has_state
        if taken_up and content & session.taken.keys():  # the host has forgotten which merges it has made
            raise Discarded(Terminal.REJECTED, REPEATED, "gate")
        pending = Pending(session, candidate, list(dict.fromkeys(ids)))
        items = [pending.batch()] if pending.missing else []
        stage, finish = session.evaluation_stage("gate", items, then=session.validation_cost, capture_traces=False)
        merged = finish((yield stage))
        results = pending.complete(merged[0] if merged else None, capture_traces=False)
        recording.put("merged", results)
        parents = view.full_program_trace[-1]["merged_entities"][:2]
        needed = max(sum(view.prog_candidate_val_subscores[parent][each] for each in ids) for parent in parents)
        reached = sum(results.evaluation.scores_by_val_id[each] for each in ids)
        if reached < needed:
            return Outcome(Terminal.REJECTED, f"merged score {reached} worse than both parents")
        session.take(content)
        try:
            stage, finish_validation, _ = validation_stage(
                session, [(candidate, parents)], partial(session.scope, view.i)
            )
            validated = finish_validation((yield stage))
        except BaseException:
            session.leave(content)
            raise
        for evaluation in validated:
            recording.put("validated", evaluation)
        return Outcome(Terminal.COMMITTED)

    # -- replaying --------------------------------------------------------------------------------------------------

    def stand_in(self, current: Any) -> Any:
        """What the host's loop sees as its merge proposer.

        Args:
            current: returns the recording of the item that the loop has come to.
        """
        host, merges = self._host, self
        if host is None:
            return None

        class StandIn:
            """Merges exactly when the item at hand is a merge, or began with looking for one."""

            max_merge_invocations = host.max_merge_invocations

            @property
            def use_merge(self) -> bool:
                return bool(current().has("replay"))

            @property
            def last_iter_found_new_program(self) -> bool:
                return self.use_merge

            @last_iter_found_new_program.setter
            def last_iter_found_new_program(self, found: bool) -> None:
                merges._found_new_program = merges._found_new_program or found

            @property
            def merges_due(self) -> int:
                return max(int(host.merges_due), self.use_merge)

            @merges_due.setter
            def merges_due(self, count: int) -> None:
                host.merges_due = count

            @property
            def total_merges_tested(self) -> int:
                return int(host.total_merges_tested)

            @total_merges_tested.setter
            def total_merges_tested(self, count: int) -> None:
                host.total_merges_tested = count

            def propose(self, state: Any) -> Any:
                return merges._replay(current(), state)

        return StandIn()

    def _replay(self, recording: Recording, state: Any) -> Any:
        """Let the host's ``propose`` run to its end over the results."""
        view, random_state, done = recording.take("replay")
        if recording.merge and not recording.has("merged"):
            return self._tell_end(recording, state)
        rng = random.Random()
        rng.setstate(random_state)
        live = {"rng": rng, "merges_performed": done, "last_iter_found_new_program": True, "merges_due": 1}
        results = recording.take("merged") if recording.merge else None
        proposal = overlay(self._host, live).propose(_Replay(view, state, results))
        if proposal is None:
            return None
        accepted = sum(proposal.subsample_scores_after) >= max(proposal.subsample_scores_before)
        if accepted and not recording.has("validated"):
            return self._tell_end(recording, state, proposal)
        return proposal

    def _tell_end(self, recording: Recording, state: Any, proposal: Any = None) -> None:
        self._session.settle()
        if not isinstance(recording.end, Discarded):
            raise recording.end or EndOfRecording(None)
        iteration, reason = state.i + 1, f"Discarded: {recording.end}"
        self._host.logger.log(f"Iteration {iteration}: Merge discarded: {recording.end}")
        if proposal is not None:
            parents, callbacks = proposal.parent_program_ids, self._host.callbacks
            attempted = MergeAttemptedEvent(
                iteration=iteration, parent_ids=parents, merged_candidate=proposal.candidate
            )
            notify_callbacks(callbacks, "on_merge_attempted", attempted)
            rejected = MergeRejectedEvent(iteration=iteration, parent_ids=parents, reason=reason)
            notify_callbacks(callbacks, "on_merge_rejected", rejected)


class _Quiet:
    """Logs nothing: the lines are logged when the host's loop comes to the item."""

    def log(self, *_: Any) -> None:
        """Log nothing."""
