"""One run of ACE through the simulated server, with the host's own client."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from flashevolve_plugins import Flash
from flashevolve_plugins._errors import HostError
from flashevolve_plugins.benchmarks.bench.ace_measure import Watch, flash_options
from flashevolve_plugins.benchmarks.server import ServerSettings, SimulatedServer
from flashevolve_plugins.benchmarks.server.profiles import PROFILES

if TYPE_CHECKING:
    from flashevolve_plugins.benchmarks.bench.ace_cells import AceKey, AceRecord
    from flashevolve_plugins.benchmarks.bench.ace_tasks import Questions

PATIENCE = 600.0  # seconds, for one answer


def run_served(key: AceKey, asked: Questions) -> AceRecord:
    """Run ACE once, on a simulated server of the run's own.

    Args:
        key: which run.
        asked: the questions.

    Raises:
        HostError: the host's client is not installed.
    """
    import ace  # noqa: PLC0415 - only with the host

    cell, profile = key.cell, PROFILES[key.cell.profile]
    landscape = cell.playbook(key.seed)
    latency = replace(profile.latency, time_scale=cell.time_scale)
    settings = ServerSettings(
        latency=latency,
        lengths=profile.lengths,
        seed=key.seed,
        max_requests=profile.max_requests,
        playbook=landscape,
    )
    options = flash_options(key)
    flash = None if options is None else Flash(**options, progress=False)
    with SimulatedServer(settings) as server:
        try:
            model = ace.OpenAILLM("simulated", api_key="none", base_url=server.base_url, timeout=PATIENCE)
        except ImportError as error:
            raise HostError("openai is not installed: pip install 'ace-playbook[openai]'.") from error
        config = ace.ACEConfig(epochs=cell.epochs, reflector_max_rounds=cell.rounds, auto_embedder=False)
        model.complete("", "Hello")  # no first connection is measured
        before = server.metrics()
        host = ace.ACE(model, config=config, executor=flash)
        watch = Watch(key, landscape, asked, host, time.monotonic)
        began = time.monotonic()
        watch.run()
        seconds = time.monotonic() - began
        used = {name: value - before.get(name, 0.0) for name, value in server.metrics().items()}
        return watch.record(
            flash,
            seconds=seconds,
            calls=round(used["vllm:request_success_total"]),
            tokens=round(used["vllm:prompt_tokens_total"] + used["vllm:generation_tokens_total"]),
            busy=used["simulated:slot_seconds_total"] / (seconds * cell.slots),
        )
