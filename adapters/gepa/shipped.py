"""gepa's own adapters, declared for what they can evaluate at once. Imports none of them.

Each reads its candidate, keeps nothing from one example to the next and scores every example alone, so what decides is
what it shares between calls: see ``docs/explanation/executor.md``. ``optimize_anything`` has a module of its own, and
those that run dspy programs are declared by dspy's adapter.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from flashevolve_plugins.adapters.gepa.declare import declare, is_shipped
from flashevolve_plugins.adapters.gepa.evaluation import DEFAULT_SLOTS, PlainEvaluator
from flashevolve_plugins.adapters.gepa.overlay import overlay
from flashevolve_plugins.adapters.gepa.passing import caught, passing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gepa.core.adapter import EvaluationBatch

IN_PROCESS = "vllm/"  # litellm runs these models in this process, where one call at a time may use them


def declare_shipped() -> None:
    """Declare all of them."""
    for (module, name), make in SHIPPED.items():
        declare(partial(is_shipped, module=module, name=name), make)


class _DefaultEvaluator(PlainEvaluator):
    """Of ``DefaultAdapter``, which refuses a batch in which only some examples have objective scores."""

    def merge(self, parts: Sequence[EvaluationBatch]) -> EvaluationBatch:
        """Join the parts of one batch, in order.

        Raises:
            ValueError: as the host's.
        """
        if len({part.objective_scores is None for part in parts}) > 1:
            raise ValueError("Objective scores must either be all None or all not None.")
        return super().merge(parts)


def _with_model(
    adapter: Any,
    model: Any,
    slots: int,
    make: Callable[..., PlainEvaluator] = PlainEvaluator,
    **declared: Any,
) -> PlainEvaluator:
    """An adapter whose examples each take a call or two of a model.

    Args:
        adapter: the host's adapter.
        model: its name, for litellm, which several threads may call at once; or a function of the user's.
        slots: the adapter's own number of calls at once.
        make: the evaluator's class.
        declared: more of the evaluator, where the model has a name.
    """
    kind = type(adapter).__name__
    if not isinstance(model, str):
        name = f"{kind} with a function as its model"
        return make(adapter, "serial", slots, name=name, alternatives=("example", "batch"))
    if model.startswith(IN_PROCESS):
        return make(adapter, "serial", name=f"{kind} with a model in this process")
    return make(adapter, **{"granularity": "example", "slots": slots, **declared})


def _default(adapter: Any) -> PlainEvaluator:
    return _with_model(adapter, adapter.model, adapter.max_litellm_workers, _DefaultEvaluator)


def _anymaths(adapter: Any) -> PlainEvaluator:
    urls = (adapter.api_base,) if adapter.model.startswith("ollama") else ()
    return _with_model(adapter, adapter.model, adapter.max_litellm_workers, urls=urls)


def _confidence(adapter: Any) -> PlainEvaluator:
    return _with_model(adapter, adapter.model, adapter.max_litellm_workers)


class _PassingEvaluator(PlainEvaluator):
    """Of adapters that score whatever their model raises: what it met on the way to its server is no score."""

    def evaluate(self, candidate: dict[str, str], batch: list[Any], *, capture_traces: bool) -> EvaluationBatch:
        """Evaluate a candidate on a batch, unless its server fails."""
        return caught(super().evaluate, candidate, batch, capture_traces=capture_traces)


def _mcp(adapter: Any) -> PlainEvaluator:
    # A session, with a process of its own where the server is local, is opened per batch, and lasts for it.
    model, lm = adapter.task_model, adapter._lm
    called = {"task_model": model if isinstance(model, str) else passing(model), "_lm": lm and passing(lm)}
    own = overlay(adapter, called)
    return _with_model(own, model, DEFAULT_SLOTS, _PassingEvaluator, granularity="batch", alternatives=("example",))


def _langchain(adapter: Any) -> PlainEvaluator:
    # The host, too, calls the rollout from many threads. Its progress bar is one per batch.
    own = overlay(adapter, {"show_progress": False, "rollout_fn": passing(adapter.rollout_fn)})
    return _PassingEvaluator(own, "example", adapter.num_threads)


def _generic_rag(adapter: Any) -> PlainEvaluator:
    name = f"{type(adapter).__name__}, with a store and a model of yours,"
    pipeline = adapter.rag_pipeline
    client = pipeline.llm_client
    client = passing(client) if callable(client) else overlay(client, {"completion": passing(client.completion)})
    pipeline = overlay(pipeline, {"llm_client": client})
    own = overlay(adapter, {"rag_pipeline": overlay(pipeline, {"execute_rag": passing(pipeline.execute_rag)})})
    return _PassingEvaluator(own, "serial", name=name, alternatives=("example", "batch"))


def _terminal_bench(adapter: Any) -> PlainEvaluator:
    # One prompt file for all, and a folder named after the second.
    return PlainEvaluator(adapter, "serial")


SHIPPED: dict[tuple[str, str], Callable[[Any], PlainEvaluator]] = {
    ("default_adapter.default_adapter", "DefaultAdapter"): _default,
    ("anymaths_adapter.anymaths_adapter", "AnyMathsAdapter"): _anymaths,
    ("confidence_adapter.confidence_adapter", "ConfidenceAdapter"): _confidence,
    ("generic_rag_adapter.generic_rag_adapter", "GenericRAGAdapter"): _generic_rag,
    ("langchain_adapter.langchain_adapter", "LangChainAdapter"): _langchain,
    ("mcp_adapter.mcp_adapter", "MCPAdapter"): _mcp,
    ("terminal_bench_adapter.terminal_bench_adapter", "TerminusAdapter"): _terminal_bench,
}
