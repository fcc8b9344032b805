"""One run of ACE in virtual time: the real host and the real Scheduler on a virtual server."""

from __future__ import annotations

import json
import random
import types
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from flashevolve_plugins.benchmarks.bench.ace_measure import Watch, flash_options
from flashevolve_plugins.benchmarks.bench.virtual_server import Crew, Request, ServerDriver, VirtualFlash, VirtualServer
from flashevolve_plugins.benchmarks.server.chat import ChatRequest, Message
from flashevolve_plugins.benchmarks.server.profiles import PROFILES
from flashevolve_plugins.benchmarks.server.settings import ServerSettings
from flashevolve_plugins.benchmarks.server.simulator import Simulator, count_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashevolve_plugins._driver import Driver
    from flashevolve_plugins._model import Limits, Sample
    from flashevolve_plugins._pool import Pool
    from flashevolve_plugins.benchmarks.bench.ace_cells import AceKey, AceRecord
    from flashevolve_plugins.benchmarks.bench.ace_tasks import Questions


class VirtualModel:
    """A model in the form ACE wants, which answers as the simulated server does.

    Args:
        simulator: says what is answered, and at what length.
        server: where requests take their time.
    """

    def __init__(self, simulator: Simulator, server: VirtualServer) -> None:
        self._simulator = simulator
        self._server = server
        #: Whether a call lets virtual time pass by itself, as in a synchronous loop, rather than leaving a request.
        self.waits = False
        self.num_calls = self.prompt_tokens = self.completion_tokens = 0
        self._requests: list[Request] = []

    def complete(self, system: str, user: str, **_: Any) -> str:
        """Answer."""
        messages = (Message("system", system), Message("user", user))
        chat = ChatRequest("simulated", messages, 1, stream=False, include_usage=False, max_tokens=None,
                           response_format={})  # fmt: skip
        choice = self._simulator.choices(chat)[0]
        request = Request(sum(count_tokens(each.text) for each in messages), choice.tokens, choice.slowness)
        self.num_calls += 1
        self.prompt_tokens += request.prompt
        self.completion_tokens += request.output
        if self.waits:
            answered: list[bool] = []
            self._server.send(request, lambda: answered.append(True))
            while not answered:
                self._server.step()
        else:
            self._requests.append(request)
        return choice.text

    def complete_json(self, system: str, user: str, **_: Any) -> dict[str, Any]:
        """Answer with an object."""
        return dict(json.loads(self.complete(system, user)))

    def taken(self) -> list[Request]:
        """The requests that were left since the last time."""
        taken, self._requests = self._requests, []
        return taken


class ReadingDriver(ServerDriver):
    """A virtual driver whose samples read what is there when they begin, as a request's prompt does.

    Args:
        model: leaves the requests that a sample makes.
        server: whom the samples ask.
        limits: see :class:`Driver`, as everything below.
        policies: who decides.
        pool: the pool.
        spent: metric calls already spent.
    """

    def __init__(self, model: VirtualModel, *args: Any, **kwargs: Any) -> None:
        self._model = model
        super().__init__(*args, **kwargs)

    def _start(self, item: int, index: int, sample: Sample) -> None:
        result: Any = None
        raised: Exception | None = None
        try:
            result = sample.call()
        except Exception as error:  # noqa: BLE001 - raised again when the sample has ended
            raised = error

        def end() -> Any:
            if raised is not None:
                raise raised
            return result

        crews: Any = [Crew(1, [self._model.taken()])]
        super()._start(item, index, replace(sample, call=end, seconds=lambda: crews))


@dataclass(eq=False)
class ReadingFlash(VirtualFlash):
    """A ``Flash`` whose runs take place on a virtual server, with samples that read when they begin.

    Args:
        model: the model.
    """

    model: VirtualModel | None = None

    def open_driver(self, limits: Limits, *, pool: Pool, spent: int = 0, speculate: bool = False) -> Driver:
        """A driver for one run, with fresh policies."""
        assert self.server is not None and self.model is not None  # noqa: S101, PT018 - given where this is made
        hooks = self.open_hooks(speculate=speculate)
        return ReadingDriver(self.model, self.server, limits, hooks, pool=pool, spent=spent)


def run_virtual(key: AceKey, asked: Questions) -> AceRecord:
    """Run ACE once in virtual time.

    Args:
        key: which run.
        asked: the questions.
    """
    import ace  # noqa: PLC0415 - only with the host

    cell, profile, landscape = key.cell, PROFILES[key.cell.profile], key.cell.playbook(key.seed)
    settings = ServerSettings(latency=profile.latency, lengths=profile.lengths, seed=key.seed, playbook=landscape)
    server = VirtualServer(profile.latency)
    model = VirtualModel(Simulator(settings), server)
    options = flash_options(key)
    flash = None
    if options is not None:
        flash = ReadingFlash(**options, evaluate="example", progress=False, server=server, model=model)
    model.waits = flash is None
    config = ace.ACEConfig(epochs=cell.epochs, reflector_max_rounds=cell.rounds, auto_embedder=False)
    with _repeatable(key.seed):
        host = ace.ACE(model, config=config, executor=flash)
        watch = Watch(key, landscape, asked, host, lambda: server.now)
        watch.run()
    calls, tokens = server.gauge.requests, server.tokens
    busy = sum(server.gauge.means(server.now)) / len(server.gauge.means(server.now)) / cell.slots
    model.waits = False
    return watch.record(flash, seconds=server.now, calls=calls, tokens=tokens, busy=busy)


@contextmanager
def _repeatable(seed: int) -> Iterator[None]:
    """Let the host draw the ids of its bullets from a seed, since prompts show them, and read each bullet once."""
    from ace import playbook, refine  # noqa: PLC0415 - only with the host

    draw = random.Random(seed)
    kept = playbook.uuid, refine._tokens  # noqa: SLF001 - virtual time counts no processor time
    playbook.uuid = types.SimpleNamespace(uuid4=lambda: uuid.UUID(int=draw.getrandbits(128)))
    refine._tokens = cache(refine._tokens)  # noqa: SLF001
    try:
        yield
    finally:
        playbook.uuid, refine._tokens = kept  # noqa: SLF001
