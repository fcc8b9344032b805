"""One run under flash: what the item bodies and the host's loop share."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any

from gepa.core.data_loader import ListDataLoader
from gepa.core.state import _candidate_hash
from gepa.strategies.eval_policy import FullEvaluationPolicy

from flashevolve_plugins import _events as ev
from flashevolve_plugins._driver import LATER
from flashevolve_plugins._errors import BackendError
from flashevolve_plugins._model import Sample, Stage, Terminal
from flashevolve_plugins._ordering import Examples
from flashevolve_plugins.adapters.gepa import recipes
from flashevolve_plugins.adapters.gepa.budget import max_metric_calls
from flashevolve_plugins.adapters.gepa.early import BeforeState
from flashevolve_plugins.adapters.gepa.items import TASK, failed, mutation
from flashevolve_plugins.adapters.gepa.known import Known
from flashevolve_plugins.adapters.gepa.merging import Merges
from flashevolve_plugins.adapters.gepa.pool import new_entries
from flashevolve_plugins.adapters.gepa.rebase import merge
from flashevolve_plugins.adapters.gepa.recording import Recording
from flashevolve_plugins.adapters.gepa.rollouts import mean_of
from flashevolve_plugins.adapters.gepa.scope import at_iteration
from flashevolve_plugins.adapters.gepa.validation import ValidationCache

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from flashevolve_plugins._bodies import Body
    from flashevolve_plugins._driver import Driver
    from flashevolve_plugins._host_item import HostItem
    from flashevolve_plugins._keeping import Kept
    from flashevolve_plugins._model import PoolEntry
    from flashevolve_plugins._policies import Batch
    from flashevolve_plugins.adapters.gepa.budget import Costs
    from flashevolve_plugins.adapters.gepa.evaluation import Evaluator
    from flashevolve_plugins.adapters.gepa.gate import Gated
    from flashevolve_plugins.adapters.gepa.keeping import Keeps
    from flashevolve_plugins.adapters.gepa.taking_up import TakingUp


ALARM_AFTER = 10  # reflections, the first ones
NOTHING: Any = object()


class Session:
    """What one run knows.

    Args:
        engine: the host's ``GEPAEngine``.
        evaluator: how its adapter evaluates.
        driver: who runs the samples.
        costs: what one proposal and one validation are expected to cost.
        kept: what the run's directory holds, if it has one.
    """

    def __init__(
        self, engine: Any, evaluator: Evaluator, driver: Driver, costs: Costs, kept: TakingUp | None = None
    ) -> None:
        self.engine = engine
        self.kept = kept
        #: How often every example is evaluated. Set by the run.
        self.rollouts = 1
        #: Whether what a gate rejected is remembered. Set by the run.
        self.remembers = False
        #: What that is: a digest of the parent, and one of the proposal.
        self.rejected: set[tuple[str, str]] = set()
        self.proposer = engine.reflective_proposer
        self.evaluator = evaluator
        self.driver = driver
        self.validation_cost = costs.validation
        self._proposal_cost = costs.proposal
        self._calls_per_example = evaluator.calls_per_example
        self.cache = ValidationCache(enabled=engine._initial_evaluation_cache is not None)
        self.merges = Merges(self)
        self.examples = Examples(driver.policies, driver.pool)
        self.known = Known(self)
        #: The host's; before there is one, what items read of it that are offered early, or ``None``.
        self.state: Any = None
        #: Whether the host's state exists.
        self.begun = False
        self._validates_all = type(engine.val_evaluation_policy) is FullEvaluationPolicy
        #: What is in the pool or being validated, as sorted (component, text) pairs, and how often. See :meth:`take`.
        self.taken: Counter[tuple[tuple[str, str], ...]] = Counter()
        #: Whether what passed its gate waits in the merge queue, and what waits there, by the item's number.
        self.holds = driver.scheduler.holds
        self.waiting: dict[int, Gated] = {}
        self._failed_reflections: int | None = 0
        #: Lets the host count what an item spent and its recording does not tell. Set by the run.
        self.settle: Callable[[], None] = lambda: None
        self._offered = 0
        self._first_iteration = 0

    # -- while the host's loop runs ---------------------------------------------------------------------------------

    def begin(self, state: Any, seed: HostItem) -> None:
        """The seed is validated and the host's state exists: offer items from now on."""
        before, self.state, self.begun = self.state, state, True
        self._drop_cache()
        ledger = self.driver.scheduler.ledger
        ledger.limit = max_metric_calls(self.engine)
        if self.kept is not None:
            state.total_num_evals -= self.kept.counted_twice
            self.kept.told_seed(seed.number)
        if before is not None:
            before.hand_over(state)
            seed.end(Terminal.COMMITTED, entries=self.pool_entries(None), counted=False)
            return
        self._first_iteration = state.i + 1
        ledger.spent = state.total_num_evals  # of both runs, if resumed
        seed.end(Terminal.COMMITTED, entries=self.pool_entries(None), counted=False)
        self.driver.offer_from(self.source, self._merge)

    def begin_early(self, seed: dict[str, str]) -> None:
        """The seed is being validated, for which the host's state waits: offer items that are made from the seed."""
        self.state = BeforeState(seed)
        self.driver.offer_from(self.source, self._merge)

    def _drop_cache(self) -> None:
        """The host's own cache mixes training and validation ids; ours keeps validation results alone."""
        cache, self.state.evaluation_cache = self.state.evaluation_cache, None
        if cache is not None and cache._cache:
            self.engine.logger.log(
                f"The state file's cache of {len(cache._cache)} evaluations is dropped: it mixes training and "
                "validation examples, whose ids overlap."
            )

    def source(self, number: int) -> Body | None:
        """The next item's body, or ``None`` when a stopper says so. Asks the stoppers once."""
        iteration = self._first_iteration + self._offered
        with self.scope(iteration - 1):
            if self.engine.stop_callback is not None and self.engine.stop_callback(self.state):
                return None
        if self.kept is not None:
            begun_before = self._again(self.kept, number, iteration)
            if begun_before is not NOTHING:
                return begun_before  # type: ignore[no-any-return]
        return self._new(number, iteration)

    def _new(self, number: int, iteration: int) -> Body:
        """A new item."""
        recording = Recording()
        self._offered += 1
        try:
            merge = self.merges.offer(number, iteration, recording)
            if merge is not None:
                return merge
            with self.scope(iteration):
                selector = self.proposer.candidate_selector if self.begun else self.state
                tasks = self.proposer.sampling_strategy.sample_tasks(
                    self.state, selector, self.proposer.batch_sampler, self.proposer.trainset
                )
                recording.made_from = self._onto_provisional(tasks)
        except Exception as error:  # noqa: BLE001 - the host's loop raises or logs it when it comes to this item
            return failed(error, recording)
        if self.kept is not None:
            self.kept.opened(number, tasks)
        return mutation(self, number, tasks, partial(self.scope, iteration), recording)

    def _onto_provisional(self, tasks: list[Any]) -> int | None:
        """Let what was admitted provisionally stand in where the host selected the best, and give its item.

        To the host the item is made from the best, until the other one is in its pool.
        """
        provisional = list(self.driver.pool.provisional.values())
        if not provisional or not self.begun:
            return None
        best, newest = self.best(), provisional[-1]
        stood_in = [task for task in tasks if task.parent_idx == best]
        for task in stood_in:
            task.parent_candidate = dict(newest.artifact)
        return newest.item if stood_in else None

    def index_of(self, item: int) -> int | None:
        """The host's index of the candidate that an item brought, or ``None``."""
        return next((entry.version - 1 for entry in self.driver.pool.entries if entry.item == item), None)

    def _again(self, kept: TakingUp, number: int, iteration: int) -> Any:
        """An item that was under way when the run was interrupted; ``NOTHING`` if it is time for a new one."""
        scheduler, recording = self.driver.scheduler, Recording()
        shared = self.validation_cost if self.holds else 0
        found = kept.next(number, self.state.program_candidates, scheduler.ledger.free, scheduler.offer_cost, shared)
        if found is LATER:
            return None if kept.short else LATER
        if found is None:
            self._count_unserved()
            needed = scheduler.offer_cost + scheduler.expected_need()
            return NOTHING if kept.may_offer(scheduler.ledger.free, needed) else LATER
        self._offered += 1
        recipe, tasks = found
        if isinstance(recipe, recipes.Merge):
            return self.merges.again(recipe, iteration, recording)
        return mutation(self, number, tasks, partial(self.scope, iteration), recording)

    def _count_unserved(self) -> None:
        """Count what was paid for before and is of no use any more."""
        if self.kept is not None and self.begun:
            calls = self.kept.settle()
            self.state.total_num_evals += calls
            self.driver.scheduler.ledger.spent += calls

    def count_all(self) -> None:
        """The run ends: let the host's state count all that was spent, also on what has not ended."""
        ledger, unserved = self.driver.scheduler.ledger, 0 if self.kept is None else self.kept.keeper.unserved
        self.state.total_num_evals = max(self.state.total_num_evals, ledger.spent + unserved)
        if self.kept is not None:
            self.kept.stopped(self.state)

    def _merge(self, number: int, batch: Batch) -> Body:
        """The body of a merge of what waits in the queue."""
        iteration = self._first_iteration + self._offered
        self._offered += 1
        if self.kept is not None:
            self.kept.opened_queued(number, batch.members)
        return merge(self, number, batch, partial(self.scope, iteration), Recording())

    def best(self) -> int:
        """The index of the host's best candidate by validation score."""
        return int(self.engine.val_evaluation_policy.get_best_program(self.state))

    def is_perfect(self, evaluation: Any) -> bool:
        """Whether the host would not reflect on it, as nothing is left to improve."""
        perfect = self.proposer.perfect_score
        return (
            bool(self.proposer.skip_perfect_score)
            and perfect is not None
            and all(score is not None and score >= perfect for score in evaluation.scores)
        )

    def scope(self, iteration: int) -> AbstractContextManager[None]:
        """The scoped view of an iteration, with the metric calls spent or promised so far."""
        ledger = self.driver.scheduler.ledger
        return at_iteration(self.state, iteration, ledger.spent + ledger.reserved)

    def pool_entries(self, item: int | None) -> list[PoolEntry]:
        """What the host's pool holds and ours does not yet."""
        entries = new_entries(self.engine, self.state, self.driver.pool.version, item)
        self.take({tuple(sorted(entry.artifact.items())) for entry in entries})
        return entries

    def take(self, contents: set[tuple[tuple[str, str], ...]]) -> None:
        """Validate these once only. Under another policy than the full one a second time may be on other examples."""
        if self._validates_all:
            self.taken.update(contents)

    def leave(self, contents: set[tuple[tuple[str, str], ...]]) -> None:
        """They are not validated after all by who took them."""
        if self._validates_all:
            self.taken -= Counter(contents)  # which keeps no zeros

    def reject(self, proposals: list[Any]) -> None:
        """Proposals did not pass their gate."""
        if self.remembers:
            for each in proposals:
                parent = self.state.program_candidates[each.parent_program_ids[0]]
                self.rejected.add((_candidate_hash(parent), _candidate_hash(each.candidate)))

    def note_reflection(self, result: Any) -> None:
        """Notice reflections that all fail: nothing would ever be proposed.

        Raises:
            BackendError: the first 10 reflections failed.
        """
        if not isinstance(result, Exception):
            self._failed_reflections = None
        elif self._failed_reflections is not None:
            self._failed_reflections += 1
            if self._failed_reflections >= ALARM_AFTER:
                raise BackendError(
                    f"Every one of the first {ALARM_AFTER} reflections failed ({type(result).__name__}: {result}): "
                    "correct the reflection model, then run again. The state is kept."
                ) from result

    # -- for item bodies --------------------------------------------------------------------------------------------

    def sharing(self, stage: Stage) -> Stage:
        """A stage of a proposal, whose validation is shared with others where there is a merge queue."""
        return replace(stage, shared=self.validation_cost) if self.holds else stage

    def _evaluation(
        self, stage: str, call: Callable[[], Any], examples: int, *what: Any, trace: bool, kept: Kept | None
    ) -> Sample:
        """One call of the evaluator, as a sample."""
        counts_examples = stage == "validate" or not trace  # as the host does then, whatever they cost
        return Sample(
            call,
            TASK,
            cost=examples if counts_examples else examples * self._calls_per_example,
            spent=None if counts_examples else self._learned_calls,
            asynchronous=self.evaluator.asynchronous,
            seconds=self.seconds(stage, *what),
            kept=kept,
        )

    @property
    def keeps(self) -> Keeps | None:
        """How results are kept, where the run has a directory."""
        return None if self.kept is None or not self.kept.with_results else self.kept.keeps

    def keep(self, candidate: dict[str, str], ids: list[Any], evaluation: Any) -> None:
        """Spare validations what a rollout has found, where the host validates on the training examples themselves."""
        if self.cache.enabled and all(map(self.shares, ids)):
            self.cache.put(candidate, ids, evaluation)

    def shares(self, example: Any) -> bool:
        """Whether an id is that of the same example in both sets: of one loader, or of two made from the same list."""
        train, val = self.proposer.trainset, self.engine.valset
        if train is val:
            return True
        if type(train) is not ListDataLoader or type(val) is not ListDataLoader:
            return False
        both = train.items[example : example + 1], val.items[example : example + 1]
        return all(both) and both[0][0] is both[1][0]

    def rollout_cost(self, examples: int) -> int:
        """Metric calls that examples with traces are expected to cost: as many as the dearest did."""
        return examples * self._calls_per_example * self.rollouts

    def note_calls(self, evaluation: Any, rollouts: int = 1) -> None:
        """Learn from the adapter's own count, where it has one, how many metric calls an example takes."""
        if evaluation.num_metric_calls is not None and evaluation.scores:
            dearest = ceil(evaluation.num_metric_calls / len(evaluation.scores) / rollouts)
            self._calls_per_example = max(self._calls_per_example, dearest)

    def _learned_calls(self, evaluated: Any) -> int:
        """Metric calls of what a sample gave, from which the next ones are expected to cost as much."""
        for evaluation in evaluated if isinstance(evaluated, list) else [evaluated]:
            self.note_calls(evaluation)
        return self.calls(evaluated)

    def calls(self, evaluated: Any) -> int:
        """Metric calls of one evaluation, or of several, as the host counts them."""
        if isinstance(evaluated, list):
            return sum(map(self.calls, evaluated))
        calls = evaluated.num_metric_calls
        return len(evaluated.scores) if calls is None else int(calls)

    def evaluation_stage(
        self,
        name: str,
        items: list[tuple[dict[str, str], list[Any]]],
        *,
        then: int = 0,
        commits: bool = False,
        capture_traces: bool = True,
    ) -> tuple[Stage, Callable[[list[Any]], list[Any]]]:
        """A stage that evaluates.

        Args:
            name: the stage's name.
            items: (candidate, examples) pairs.
            then: metric calls needed after it.
            commits: whether it is a validation.
            capture_traces: whether the adapter must capture traces.

        Returns:
            The stage, and a function from its results to one ``EvaluationBatch`` per item.
        """
        together = self.evaluator.batch_evaluate
        if together is not None and capture_traces and len(items) > 1:
            examples = sum(len(batch) for _, batch in items)
            kept = None if self.keeps is None else self.keeps.evaluation(items, traces=True, together=True)
            sample = self._evaluation(name, partial(together, items), examples, items, trace=True, kept=kept)
            whole = Stage(name, (sample,) * self.rollouts, then=then, commits=commits)
            return whole, lambda results: [mean_of(each) for each in zip(*results, strict=True)]
        samples: list[Sample] = []
        counts: list[int] = []
        for candidate, batch in items:
            pieces = [[example] for example in batch] if self.evaluator.granularity == "example" else [batch]
            counts.append(len(pieces))
            for piece in pieces:
                call = partial(self.evaluator.evaluate, candidate, piece, capture_traces=capture_traces)
                kept = (
                    None if self.keeps is None else self.keeps.evaluation([(candidate, piece)], traces=capture_traces)
                )
                sample = self._evaluation(name, call, len(piece), candidate, piece, trace=capture_traces, kept=kept)
                samples.extend([sample] * self.rollouts)

        def finish(results: list[Any]) -> list[Any]:
            ends = range(self.rollouts, len(results) + 1, self.rollouts)
            parts = iter([mean_of(results[end - self.rollouts : end]) for end in ends])
            return [self.evaluator.merge([next(parts) for _ in range(count)]) for count in counts]

        return Stage(name, tuple(samples), then=then, commits=commits), finish

    def seconds(self, *what: Any) -> Callable[[], float] | None:
        """Virtual seconds of a sample, if the host's adapter models them (``flashevolve_seconds``)."""
        model = getattr(self.engine.adapter, "flashevolve_seconds", None)
        return None if model is None else partial(model, *what)

    def affordable(self) -> float:
        """Metric calls that can still be promised."""
        return self.driver.scheduler.ledger.free

    def note_costs(self, *, proposal: int = 0, validation: int = 0) -> None:
        """A proposal or a validation turned out to cost this much; the next item is expected to need as much."""
        if proposal > self._proposal_cost or validation > self.validation_cost:
            self._proposal_cost = max(proposal, self._proposal_cost)
            self.validation_cost = max(validation, self.validation_cost)
            self.driver.tell(ev.OfferCostChanged(self._proposal_cost + self.validation_cost))
