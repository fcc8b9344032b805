"""Lockstep: one step after the other, in whole batches, exactly as the host makes them, through the same executor."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._model import Limits, Sample, Stage, Terminal
from flashevolve_plugins._pool import Pool
from flashevolve_plugins.adapters.gepa.items import LOCAL, REFLECTION, STAGES, TASK
from flashevolve_plugins.adapters.gepa.overlay import overlay
from flashevolve_plugins.adapters.gepa.pool import new_entries

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashevolve_plugins._driver import Driver
    from flashevolve_plugins._flash import Flash
    from flashevolve_plugins._host_item import HostItem
    from flashevolve_plugins._model import PoolEntry
    from flashevolve_plugins.adapters.gepa.evaluation import Evaluator


def run_in_lockstep(engine: Any, host_run: Callable[[Any], Any], flash: Flash, evaluator: Evaluator) -> Any:
    """Run the host's loop, each of its calls a sample of one item at a time.

    Args:
        engine: the host's engine, ready to run.
        host_run: the host's own ``GEPAEngine.run``.
        flash: the settings.
        evaluator: knows how many metric calls reflective datasets make.

    Returns:
        The host's final ``GEPAState``. Its budget is kept, and overshot, as the host does it.
    """
    limits = Limits(slots={TASK: 1, REFLECTION: 1, LOCAL: 1}, stages=STAGES, entry=TASK, max_items=1)
    driver = flash.open_driver(limits, pool=Pool())
    driver.feedback_calls = lambda: evaluator.feedback_calls
    try:
        with driver:
            run = _Lockstep(engine, driver)
            try:
                state = host_run(run.engine)
            except Exception as error:
                run.end_item(Terminal.FAILED, f"{type(error).__name__}: {error}")
                raise
            run.end_item()
            return state
    finally:
        flash.last_run = driver.snapshot()


class _Lockstep:
    def __init__(self, engine: Any, driver: Driver) -> None:
        self._driver = driver
        self._host = engine
        self._state: Any = None
        self._item: HostItem | None = None
        self._rollout_done = False
        self.engine = overlay(
            engine,
            {
                "reflective_proposer": self._proposer(engine.reflective_proposer),
                "merge_proposer": self._merge_proposer(engine.merge_proposer),
                "evaluator": self._call("validate", TASK, engine.evaluator, _first_size, commits=True),
                "_batch_evaluate": self._call("validate", TASK, engine._batch_evaluate, _batch_sizes, commits=True),
                "_should_stop": self._should_stop,
            },
        )

    def _proposer(self, proposer: Any) -> Any:
        return overlay(
            proposer,
            {
                "adapter": overlay(
                    proposer.adapter,
                    {"make_reflective_dataset": self._call("dataset", LOCAL, proposer.adapter.make_reflective_dataset)},
                ),
                "_batch_evaluate": partial(self._rollout_or_gate, proposer._batch_evaluate),
                "_propose_texts_batch": self._call("propose", REFLECTION, proposer._propose_texts_batch),
                "propose_new_texts": self._call("propose", REFLECTION, proposer.propose_new_texts),
            },
        )

    def _merge_proposer(self, proposer: Any) -> Any:
        if proposer is None:
            return None
        return overlay(proposer, {"evaluator": self._call("gate", TASK, proposer.evaluator, _first_size)})

    def _rollout_or_gate(self, function: Callable[..., Any], items: list[Any]) -> Any:
        """The proposer evaluates twice per iteration: parents, then children."""
        stage = "gate" if self._rollout_done else "rollout"
        self._rollout_done = True
        return self._call(stage, TASK, function, _batch_sizes)(items)

    def _call(
        self,
        stage: str,
        resource: str,
        function: Callable[..., Any],
        cost: Callable[[Any], int] | None = None,
        *,
        commits: bool = False,
    ) -> Callable[..., Any]:
        """The host's call as a stage of the item at hand."""

        def call(*arguments: Any) -> Any:
            model = getattr(self._host.adapter, "flashevolve_seconds", None)
            sample = Sample(
                partial(function, *arguments),
                resource,
                cost=0 if cost is None else cost(arguments[0]),
                spent=_calls if cost is _batch_sizes and not commits else None,
                seconds=None if model is None else partial(model, stage, *arguments),
            )
            if self._item is None:
                self._item = self._driver.host_item()
            return self._item.run(Stage(stage, (sample,), commits=commits))[0]

        return call

    def _should_stop(self, state: Any) -> bool:
        if self._state is None:
            self._state = state
            self._driver.scheduler.ledger.spent = state.total_num_evals  # more than the seed's, if a run is resumed
        first = self._driver.pool.version == 0
        self.end_item()
        if first:
            self._driver.policies.run_started(self._driver.snapshot())
        return bool(type(self._host)._should_stop(self._host, state))

    def end_item(self, terminal: Terminal | None = None, reason: str = "") -> None:
        """The host's iteration is over: so is its item."""
        item, self._item, self._rollout_done = self._item, None, False
        if item is None:
            return
        entries = self._new_entries(item.number)
        seed = self._driver.pool.version == 0
        ending = terminal or (Terminal.COMMITTED if entries else Terminal.REJECTED)
        item.end(ending, reason, entries, counted=not seed)

    def _new_entries(self, item: int) -> list[PoolEntry]:
        state = self._state
        if state is None:
            return []
        return new_entries(self._host, state, self._driver.pool.version, item)


def _first_size(batch: list[Any]) -> int:
    return len(batch)


def _calls(evaluations: list[Any]) -> int:
    """Metric calls as the host counts them."""
    return sum(len(each.scores) if each.num_metric_calls is None else each.num_metric_calls for each in evaluations)


def _batch_sizes(items: list[tuple[Any, list[Any]]]) -> int:
    return sum(len(batch) for _, batch in items)
