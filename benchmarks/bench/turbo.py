"""One run of TurboGEPA on a server, in TurboGEPA's own environment: neither dspy nor gepa is here.

It gets what the others get: the same server, seed instruction and budget, as many requests at once as there are slots,
and the same feedback, through a reflection strategy of its own interface that shows the best parent's text with what
TurboGEPA hands over of its answers (five at most). Its candidates climb its ladder of rungs over the validation
examples, and its default stopping rules stay on; since it counts rungs, not metric calls, we stop it at the budget.
"""

from __future__ import annotations

import asyncio
import os
import resource
import tempfile
import time
from typing import TYPE_CHECKING, Any

from flashevolve_plugins.benchmarks.bench.observer import Gauge
from flashevolve_plugins.benchmarks.bench.record import Point, Record
from flashevolve_plugins.benchmarks.bench.versions import versions
from flashevolve_plugins.benchmarks.presets import PRESETS, SEED_INSTRUCTION

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flashevolve_plugins.benchmarks.bench.cells import RunKey
    from flashevolve_plugins.benchmarks.landscape import Landscape


class Watch:
    """Counts calls, and follows which candidate TurboGEPA itself holds for the best.

    Args:
        landscape: knows the true score.
        val: validation examples.
        budget: metric calls.
    """

    def __init__(self, landscape: Landscape, val: int, budget: int) -> None:
        self._landscape = landscape
        self._val = val
        self._budget = budget
        self._start = time.monotonic()
        self._examples: dict[str, set[str]] = {}
        self._parents: dict[str, str | None] = {}
        self._texts: dict[str, str] = {}
        self.spent = asyncio.Event()
        self.calls = 0
        self.best = 0.0
        self.best_text = SEED_INSTRUCTION
        self.curve = [Point(0.0, 0, landscape.true_score(SEED_INSTRUCTION))]
        #: TurboGEPA's best text so far, or ``None``, and its score there. Set once there is an orchestrator.
        self.pick: Callable[[], tuple[str | None, float]] = lambda: (None, 0.0)

    def note(self, candidate: Any, example: str) -> None:
        """A candidate was scored on an example."""
        self.calls += 1
        if self.calls >= self._budget:
            self.spent.set()
        self._texts.setdefault(candidate.fingerprint, candidate.text)
        self._parents.setdefault(candidate.text, candidate.meta.get("parent"))
        self._examples.setdefault(candidate.text, set()).add(example)
        text, self.best = self.pick()
        if text is not None and text != self.best_text:
            self.best_text = text
            self.curve.append(Point(time.monotonic() - self._start, self.calls, self._landscape.true_score(text)))

    @property
    def sweeps(self) -> int:
        """Candidates that were scored on every validation example."""
        return sum(len(examples) == self._val for examples in self._examples.values())

    @property
    def proposals(self) -> int:
        """Candidates that were evaluated on anything, without the seed."""
        return max(0, len(self._examples) - 1)

    @property
    def depth(self) -> int:
        """Ancestors of the best candidate."""
        seen: set[str] = set()
        text: str | None = self.best_text
        while text is not None and text not in seen:
            seen.add(text)
            text = self._texts.get(self._parents.get(text) or "")
        return len(seen) - 1


def run_turbo(key: RunKey, base_url: str) -> Record:
    """Run TurboGEPA once.

    Args:
        key: which run.
        base_url: of the server.
    """
    os.environ |= {"OPENAI_API_BASE": base_url, "OPENAI_API_KEY": "none", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    import litellm  # noqa: F401, PLC0415 - only in that environment, and nothing that is to be measured
    import turbo_gepa.adapters  # noqa: F401, PLC0415

    os.chdir(tempfile.mkdtemp())  # it writes caches and logs where it stands
    cell, landscape = key.cell, PRESETS[key.cell.landscape].landscape(key.seed)
    gauge = Gauge(time.monotonic)
    watch = Watch(landscape, cell.val, cell.calls)
    started, cpu = time.monotonic(), time.process_time()
    _optimize(key, landscape, watch, gauge)
    ended = time.monotonic()
    in_flight = gauge.means(ended)
    return Record(
        clock="server",
        cell=cell,
        rival=key.rival,
        seed=key.seed,
        seconds=ended - started,
        metric_calls=watch.calls,
        proposals=watch.proposals,
        accepted=max(0, watch.sweeps - 1),
        sweeps=watch.sweeps,
        requests=gauge.requests,
        tokens=None,
        busy=sum(in_flight) / len(in_flight) / cell.slots,
        window_busy=None,
        most_in_flight=gauge.most,
        best_validation=watch.best,
        depth=watch.depth,
        curve=watch.curve,
        in_flight=in_flight,
        cpu_seconds=time.process_time() - cpu,
        peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        versions=versions("turbo-gepa", "litellm"),
    )


def _optimize(key: RunKey, landscape: Landscape, watch: Watch, gauge: Gauge) -> None:
    import litellm  # noqa: PLC0415 - only in that environment
    from turbo_gepa.adapters import DefaultAdapter  # noqa: PLC0415
    from turbo_gepa.adapters.default_adapter import DefaultDataInst  # noqa: PLC0415
    from turbo_gepa.config import Config, adaptive_shards  # noqa: PLC0415

    cell, complete = key.cell, litellm.acompletion

    async def counted(*arguments: Any, **options: Any) -> Any:
        gauge.change(1)
        try:
            return await complete(*arguments, **options)
        finally:
            gauge.change(-1)

    litellm.acompletion = counted

    class Adapter(DefaultAdapter):
        async def _task_runner(self, candidate: Any, example_id: str) -> Any:
            metrics = await super()._task_runner(candidate, example_id)
            watch.note(candidate, example_id)
            return metrics

        def _build_orchestrator(self, **options: Any) -> Any:
            orchestrator = super()._build_orchestrator(**options)

            def pick() -> tuple[str | None, float]:
                found = self._build_run_metadata(orchestrator, orchestrator.archive.pareto_entries())
                return found["best_prompt"], found["best_quality"]

            watch.pick = pick
            return orchestrator

    examples = [DefaultDataInst(each.question, "", id=each.id) for each in landscape.examples("val", cell.val)]
    adapter = Adapter(
        examples,
        config=Config(
            eval_concurrency=cell.slots,
            llm_connection_limit=cell.slots,
            n_islands=1,
            shards=adaptive_shards(cell.val),
            reflection_strategy_names=(),
            reflection_strategies=(_strategy(landscape),),
        ),
        task_lm="openai/simulated",
        reflection_lm="openai/simulated",
        sampler_seed=key.seed,
        eval_fn=lambda output, _, example: {"quality": landscape.score(example["input"], output)},
    )
    asyncio.run(_until_spent(adapter, watch.spent))


async def _until_spent(adapter: Any, spent: asyncio.Event) -> None:
    run = asyncio.ensure_future(adapter.optimize_async([SEED_INSTRUCTION], display_progress=False))
    stop = asyncio.ensure_future(spent.wait())
    await asyncio.wait({run, stop}, return_when=asyncio.FIRST_COMPLETED)
    if run.done():
        run.result()  # raises what ended it
    for each in (run, stop):
        each.cancel()


def _strategy(landscape: Landscape) -> Any:
    """A reflection that reads like gepa's: the current text, then what went wrong in some of its answers."""
    from turbo_gepa.strategies import ReflectionStrategy  # noqa: PLC0415 - only in that environment

    def prompt(parents: Sequence[dict[str, Any]], answered: Sequence[dict[str, Any]], *_: Any) -> str:
        shown = [each for each in answered if "assistant_output" in each]
        feedback = "\n\n".join(landscape.feedback(each["input"], each["assistant_output"])[1] for each in shown)
        return (
            f"The current instruction is:\n```\n{parents[0]['prompt']}\n```\n\nFeedback on its answers:\n{feedback}\n\n"
            "Provide the new instructions within ``` blocks."
        )

    def parse(text: str) -> list[str]:
        return [text.strip().removeprefix("```").removesuffix("```").strip()]

    return ReflectionStrategy("landscape", "You improve instructions.", prompt, parse)
