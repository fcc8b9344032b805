"""One run in virtual time: the real hosts and the real Scheduler on a virtual server, hours in seconds."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache, partial
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from flashevolve_plugins.benchmarks.bench.observer import Observer, shares
from flashevolve_plugins.benchmarks.bench.record import Record
from flashevolve_plugins.benchmarks.bench.rivals import parse
from flashevolve_plugins.benchmarks.bench.versions import versions
from flashevolve_plugins.benchmarks.bench.virtual_server import Crew, Request, VirtualFlash, VirtualServer
from flashevolve_plugins.benchmarks.presets import PRESETS, SEED_INSTRUCTION
from flashevolve_plugins.benchmarks.server.chat import Message
from flashevolve_plugins.benchmarks.server.profiles import PROFILES
from flashevolve_plugins.benchmarks.server.replies import reply
from flashevolve_plugins.benchmarks.server.simulator import count_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashevolve_plugins.benchmarks.bench.cells import Cell, RunKey

REFLECTION_PROMPT = 600  # tokens: an instruction, three examples with feedback, and what to do with them
REFLECTIONS_AT_ONCE = 10  # of gepa's own batched reflection; dspy reflects one after the other


class LandscapeAdapter:
    """A gepa adapter that answers from the landscape at once; what it would have asked a server is virtual.

    Args:
        cell: the setting: the landscape, how long answers are, and how many threads the host has.
        host: whose way of batching a synchronous loop has: ``"dspy"`` or ``"gepa"``.
        seed: of landscape, answers and lengths.
    """

    flashevolve_evaluate = "example"

    def __init__(self, cell: Cell, host: str, seed: int) -> None:
        preset = PRESETS[cell.landscape]
        self.landscape = preset.landscape(seed)
        self.components = [f"part_{part}" for part in range(1, preset.parts + 1)]
        self.calls = 0
        self._profile = PROFILES[cell.profile]
        self._median = self._profile.lengths.median()
        self._host = host
        self._threads = cell.slots
        self._seed = seed
        self._seen: Counter[str] = Counter()
        self._draw = random.Random(seed)
        self._own = cache(partial(_own_length, seed))

    def true_score(self, candidate: dict[str, str]) -> float:
        """The score of a candidate without noise."""
        return self.landscape.true_score(*(candidate[name] for name in self.components))

    # -- what gepa calls ---------------------------------------------------------------------------------------------

    def evaluate(self, batch: list[str], candidate: dict[str, str], *, capture_traces: bool = False) -> Any:
        """Answer and score every question of a batch."""
        from gepa.core.adapter import EvaluationBatch  # noqa: PLC0415 - only with the host

        self.calls += len(batch)
        outputs, scores, traces = [], [], []
        for question in batch:
            answers = {
                name: self.landscape.answer(candidate[name], asked, self._luck(candidate[name], asked))
                for name, asked in self._asked(question)
            }
            outputs.append(" ".join(answers.values()))
            scores.append(self.landscape.score(question, outputs[-1]))
            traces.append({"question": question, **answers})
        return EvaluationBatch(outputs=outputs, scores=scores, trajectories=traces if capture_traces else None)

    def make_reflective_dataset(self, candidate: dict[str, str], evaluation: Any, components: list[str]) -> Any:
        """The feedback on each component's answers."""
        del candidate
        return {
            name: [
                {"Feedback": self.landscape.feedback(dict(self._asked(trace["question"]))[name], trace[name])[1]}
                for trace in evaluation.trajectories
            ]
            for name in components
        }

    def propose_new_texts(self, candidate: dict[str, str], dataset: Any, components: list[str]) -> dict[str, str]:
        """Reflect as the landscape's model does."""
        texts = {}
        for name in components:
            named = self.landscape.named_rules("\n".join(record["Feedback"] for record in dataset[name]))
            luck = self._luck("reflect", candidate[name], *named)
            texts[name] = self.landscape.reflect(candidate[name], named, luck)
        return texts

    def flashevolve_ask(self, prompt: str) -> str:
        """Answer a policy's question as the landscape's model does."""
        return reply(self.landscape, [Message("user", prompt)], {}, self._luck("ask", prompt))

    # -- what it asks of the server ----------------------------------------------------------------------------------

    def flashevolve_seconds(self, stage: str, *call: Any) -> list[Crew]:
        """The requests behind a sample, and who sends them: one example or reflection, or a whole step of the host."""
        if stage == "dataset":
            return []
        if stage in {"judge", "merge"}:
            return [Crew(1, [[self._request(2 * REFLECTION_PROMPT)]])]
        if stage == "propose":
            jobs = len(call[0]) if call and isinstance(call[0], list) else 1
            at_once = 1 if self._host == "dspy" else min(REFLECTIONS_AT_ONCE, self._threads)
            return [Crew(at_once, [[self._request(REFLECTION_PROMPT)] for _ in range(jobs)])]
        first, *rest = call
        if isinstance(first, dict):  # a candidate and some examples, from flash
            return [Crew(self._threads, self._jobs(first, rest[0]))]
        if rest:  # a batch and a candidate, from the host
            return [Crew(self._threads, self._jobs(rest[0], first))]
        return self._batches([self._jobs(candidate, batch) for candidate, batch in first])

    def _batches(self, batches: list[list[list[Request]]]) -> list[Crew]:
        """Batches of several candidates at once, as the host shares its threads out between them."""
        if self._host != "dspy":  # one pool
            return [Crew(self._threads, [job for batch in batches for job in batch])]
        if len(batches) > self._threads:  # a thread takes one whole batch after the other
            return [Crew(self._threads, [[request for job in batch for request in job] for batch in batches])]
        share, more = divmod(self._threads, len(batches))
        return [Crew(share + (index < more), batch) for index, batch in enumerate(batches)]

    def _jobs(self, candidate: dict[str, str], batch: Sequence[str]) -> list[list[Request]]:
        """An example is one request per component, each after the other."""
        prompts = [count_tokens(candidate[name]) for name in self.components]
        return [
            [self._request(prompt + count_tokens(question), self._own(question)) for prompt in prompts]
            for question in batch
        ]

    def _request(self, prompt: int, own: float | None = None) -> Request:
        output = self._profile.lengths.draw(self._draw, self._median, own)
        return Request(prompt, output, self._profile.latency.draw_slowness(self._draw))

    def _asked(self, question: str) -> list[tuple[str, str]]:
        parts = len(self.components)
        return [
            (name, self.landscape.part_question(question, part, parts))
            for part, name in enumerate(self.components, start=1)
        ]

    def _luck(self, *words: str) -> int:
        text = "\x1f".join(words)
        self._seen[text] += 1
        digest = blake2b(f"{self._seed}\x1f{self._seen[text]}\x1f{text}".encode(), digest_size=8)
        return int.from_bytes(digest.digest(), "big")


def _own_length(seed: int, question: str) -> float:
    """An example's own part of how long its answers are."""
    digest = blake2b(f"{seed}\x1flength\x1f{question}".encode(), digest_size=8)
    return random.Random(int.from_bytes(digest.digest(), "big")).gauss(0, 1)


class _Silent:
    def log(self, *_: Any) -> None:
        """Log nothing."""


def run_virtual(key: RunKey, watching: Sequence[object] = ()) -> Record:
    """Run ``gepa.optimize`` once in virtual time.

    Args:
        key: which run. A rival on dspy batches and reflects as ``dspy.GEPA`` does; the loop is gepa's in both.
        watching: further plugins of a run under flash.
    """
    import gepa  # noqa: PLC0415 - only with the host

    cell, rival = key.cell, parse(key.rival)
    adapter, server = LandscapeAdapter(cell, rival.host, key.seed), VirtualServer(PROFILES[cell.profile].latency)
    observer = Observer(lambda: server.now, lambda: adapter.calls, adapter.true_score)
    if rival.flash is None:
        flash = VirtualFlash(lockstep=True, progress=False, server=server)
    else:
        flash = VirtualFlash(
            max_concurrency=cell.slots,
            reflection_concurrency=cell.slots,
            **{**rival.flash, "plugins": [*rival.flash.get("plugins", ()), *watching]},
            progress=False,
            server=server,
        )
    gepa.optimize(
        seed_candidate=dict.fromkeys(adapter.components, SEED_INSTRUCTION),
        trainset=[example.question for example in adapter.landscape.examples("train", cell.train)],
        valset=[example.question for example in adapter.landscape.examples("val", cell.val)],
        adapter=adapter,
        max_metric_calls=cell.calls,
        seed=key.seed,
        logger=_Silent(),
        callbacks=[observer],
        use_merge=rival.host
        == "dspy",  # as dspy.GEPA has it; it only finds something where there are several components
        executor=flash,
        **rival.strategies(),
    )
    last = flash.last_run
    assert last is not None  # noqa: S101 - the run is over
    in_flight = server.gauge.means(server.now)
    phases = zip(("start", "steady", "drain"), pairwise((0.0, *last.window, server.now)), strict=True)
    return Record(
        clock="virtual",
        cell=cell,
        rival=key.rival,
        seed=key.seed,
        seconds=server.now,
        metric_calls=adapter.calls,
        proposals=observer.proposals,
        accepted=observer.counts["accepted"],
        sweeps=observer.counts["sweeps"],
        requests=server.gauge.requests,
        tokens=server.tokens,
        busy=sum(in_flight) / len(in_flight) / cell.slots,
        window_busy=None if rival.flash is None else last.window_busy.get("task"),
        most_in_flight=server.gauge.most,
        best_validation=observer.best,
        depth=observer.depth,
        curve=observer.curve,
        staleness={} if rival.flash is None else dict(last.staleness),
        stages=shares(observer.stages if rival.flash is None else last.sample_seconds),
        in_flight=in_flight,
        versions=versions("gepa"),
        work=server.work,
        lost={} if rival.flash is None else {name: server.lost(cell.slots, *phase) for name, phase in phases},
    )
