"""How much faster flash is than ``dspy.GEPA`` at equal slots and equal metric calls, on the simulated server.

Run ``python -m flashevolve_plugins.benchmarks.speed --help``. Every run is a process of its own with a server of its
own. The sequential runs of several seeds go side by side, since they keep the processor idle; those of flash go one
after the other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Of the simulated server's seconds: fast, and slow enough that this machine's processor is not what is measured.
TIME_SCALE = 0.05


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison, or one run of it.

    Args:
        argv: the arguments.

    Returns:
        The exit code.
    """
    options = _parser().parse_args(argv)
    if options.one is not None:
        print(json.dumps(_run_one(options, options.one, options.seeds[0])))
        return 0
    with ThreadPoolExecutor(options.jobs) as pool:
        sequential = list(pool.map(lambda seed: _run_apart(options, "sequential", seed), options.seeds))
    flash = [_run_apart(options, options.staleness, seed) for seed in options.seeds]
    report = {"settings": vars(options), "sequential": sequential, "flash": flash}
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    print(_table(options, sequential, flash))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="speed", description=__doc__)
    parser.add_argument("--calls", type=int, default=3000, help="metric calls of each run (%(default)s)")
    parser.add_argument("--slots", type=int, default=32, help="threads of each run (%(default)s)")
    parser.add_argument("--train", type=int, default=150, help="training examples (%(default)s)")
    parser.add_argument("--val", type=int, default=100, help="validation examples (%(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="seeds (%(default)s)")
    parser.add_argument("--staleness", default="full", help="flash's staleness policy (%(default)s)")
    parser.add_argument("--max-staleness", type=int, help="pool versions an item may lag behind")
    parser.add_argument("--time-scale", type=float, default=TIME_SCALE, help="of the server's seconds (%(default)s)")
    parser.add_argument("--jobs", type=int, default=5, help="sequential runs at once (%(default)s)")
    parser.add_argument("--json", help="where to save every figure")
    parser.add_argument("--one", choices=["sequential", "flash"], help=argparse.SUPPRESS)
    return parser


def _run_apart(options: argparse.Namespace, name: str, seed: int) -> dict[str, Any]:
    """One run in a process of its own."""
    command = [sys.executable, "-m", "flashevolve_plugins.benchmarks.speed"]
    command += ["--one", "sequential" if name == "sequential" else "flash", "--seeds", str(seed)]
    for option in ("calls", "slots", "train", "val", "time_scale", "staleness", "max_staleness"):
        value = getattr(options, option)
        if value is not None:
            command += [f"--{option.replace('_', '-')}", str(value)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - our own program
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(
        f"{name}, seed {seed}: {result['seconds']:.0f} s, {result['metric_calls']} calls", file=sys.stderr, flush=True
    )
    return result


def _run_one(options: argparse.Namespace, kind: str, seed: int) -> dict[str, Any]:
    import logging  # noqa: PLC0415 - the parent process needs none of this
    from contextlib import redirect_stdout  # noqa: PLC0415
    from io import StringIO  # noqa: PLC0415

    from flashevolve_plugins import Flash  # noqa: PLC0415
    from flashevolve_plugins.benchmarks.landscape import Landscape  # noqa: PLC0415
    from flashevolve_plugins.benchmarks.measure import CountingLM, run_gepa  # noqa: PLC0415
    from flashevolve_plugins.benchmarks.server import ServerSettings, SimulatedServer  # noqa: PLC0415
    from flashevolve_plugins.benchmarks.server.latency import LatencyModel  # noqa: PLC0415
    from flashevolve_plugins.benchmarks.tasks import landscape_task  # noqa: PLC0415

    logging.getLogger("dspy").setLevel(logging.ERROR)
    landscape = Landscape(seed=seed)
    settings = ServerSettings(landscape=landscape, latency=LatencyModel(time_scale=options.time_scale), seed=seed)
    executor = None
    if kind == "flash":
        executor = Flash(staleness=options.staleness, max_staleness=options.max_staleness, progress=False)
    with SimulatedServer(settings) as server, redirect_stdout(StringIO()):
        lm = CountingLM(
            "openai/simulated", api_base=server.base_url, api_key="none", cache=False, temperature=1.0, max_tokens=8000
        )
        result = run_gepa(
            kind,
            landscape_task(landscape, train=options.train, val=options.val),
            lm,
            executor=executor,
            num_threads=options.slots,
            max_metric_calls=options.calls,
            seed=seed,
        )
    return {**asdict(result), "seed": seed}


def _table(options: argparse.Namespace, sequential: list[dict[str, Any]], flash: list[dict[str, Any]]) -> str:
    pairs = list(zip(sequential, flash, strict=True))
    rows = [
        ("wall time, sequential / flash", [before["seconds"] / after["seconds"] for before, after in pairs], "{:.2f}"),
        ("busy share, first rollout to last offer", [each["window_busy"] for each in flash], "{:.3f}"),
        ("busy share of the whole run, flash", [each["busy"] for each in flash], "{:.3f}"),
        ("busy share of the whole run, sequential", [each["busy"] for each in sequential], "{:.3f}"),
        ("metric calls, flash", [each["metric_calls"] for each in flash], "{:.0f}"),
        ("metric calls, sequential", [each["metric_calls"] for each in sequential], "{:.0f}"),
        ("proposals, flash", [each["proposals"] for each in flash], "{:.0f}"),
        ("proposals, sequential", [each["proposals"] for each in sequential], "{:.0f}"),
        ("true score, flash", [each["true_score"] for each in flash], "{:.3f}"),
        ("true score, sequential", [each["true_score"] for each in sequential], "{:.3f}"),
        (
            "CPU ms per metric call, flash",
            [1e3 * each["cpu_seconds"] / each["metric_calls"] for each in flash],
            "{:.1f}",
        ),
    ]
    head = (
        f"{options.slots} slots, valset {options.val}, {options.calls} calls, {len(flash)} seeds, {options.staleness}"
    )
    lines = [f"| {head} | median | range |", "|---|---|---|"]
    for name, values, form in rows:
        low, middle, high = (form.format(each) for each in (min(values), statistics.median(values), max(values)))
        lines.append(f"| {name} | {middle} | {low} to {high} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
