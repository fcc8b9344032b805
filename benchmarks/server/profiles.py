"""Named speeds of servers, each calibrated to published figures. The simulated server and virtual time share them."""

from __future__ import annotations

from dataclasses import dataclass, field

from flashevolve_plugins.benchmarks.server.latency import LatencyModel, OutputLengths

__all__ = ["PROFILES", "Profile"]


@dataclass(frozen=True)
class Profile:
    """The speed of one kind of server.

    Args:
        about: what it stands for.
        calibration: which figures it was set to, and who published them.
        latency: its engine.
        lengths: how long its answers are.
        max_requests: under way at once; one more gets status 429. ``None`` refuses none.
    """

    about: str
    calibration: str
    latency: LatencyModel = field(default_factory=LatencyModel)
    lengths: OutputLengths = field(default_factory=OutputLengths)
    max_requests: int | None = None


_API = LatencyModel(base_token_time=1 / 60, half_batch=1e9, max_num_seqs=64, first_token=0.75, spread=0.67)

PROFILES = {
    "h100": Profile(
        "an 8B model under vLLM on one H100; every token takes longer the more requests run; 256 run at once",
        "one request 99 tokens/s, as vLLM's 104 to 110 for Llama-3.1-8B (rbgo/llm-inference-benchmark on the Hugging"
        " Face hub); 256 requests 8,500 tokens/s, between 5,777 (Red Hat, MLPerf Inference v5.1, vLLM 0.10, one H100,"
        " long prompts) and 12,965 (NVIDIA NIM's performance page, Llama-3.1-8B on one H100 at 250 requests);"
        " output lengths as in the FlashEvolve paper: mean 699 tokens, cut at 6,000",
    ),
    "h100-examples": Profile(
        "as h100, but half of the variance of an answer's logarithmic length belongs to the example, which is long or"
        " short in every validation; in virtual time only",
        "as h100; the half is an assumption, since no published figure separates the two",
        lengths=OutputLengths(share=0.5),
    ),
    "api": Profile(
        "a hosted API whose speed does not depend on your load but varies from request to request; 64 run at once,"
        " further ones queue",
        "median 0.75 s to the first token with a 95th percentile three times that, and 60 tokens/s: between"
        " GPT-4o-mini (0.65 s, 1.1 s, 105 tokens/s), Llama 3.3 70B (0.76 s, 2.2 s, 48 tokens/s) and Gemini 2.0 Flash"
        " (0.56 s, 2.3 s, 137 tokens/s) in 60,480 probes over a week (jonathanwrede.de, 'I monitored 6 LLM APIs for"
        " 7 days')",
        _API,
    ),
    "api-limited": Profile(
        "the same API, where a request beyond 64 under way is refused with status 429 and a time to come back",
        "as api",
        _API,
        max_requests=64,
    ),
    "laptop": Profile(
        "a quantised 9B model under llama.cpp with four slots",
        "41 tokens/s alone, as a 9B model in 5 GB (research.visar.veron3.space, local LLM setup); four at once 1.94"
        " times as fast together as one alone, as llama-server there (160 and 310 tokens/s for a 0.8B model)",
        LatencyModel(base_token_time=0.0157, half_batch=1.82, max_num_seqs=4),
    ),
    "instant": Profile(
        "answers of two tokens: nothing left to wait for",
        "to nothing; it shows what is left when latency is not the bottleneck",
        LatencyModel(base_token_time=0.001),
        OutputLengths(mean=2, sigma=0.5, maximum=8),
    ),
}
