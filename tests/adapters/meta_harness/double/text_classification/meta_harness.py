"""Evolves memory systems, one iteration after the other. In our own words, with the names that the original has."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import claude_wrapper
from benchmark import get_model_short_name, load_config, load_results

EVOLVE_DIR = Path(__file__).parent
AGENTS_DIR = EVOLVE_DIR / "agents"
LOGS_DIR = EVOLVE_DIR / "logs"
PENDING_EVAL = LOGS_DIR / "pending_eval.json"
FRONTIER_VAL = LOGS_DIR / "frontier_val.json"
EVOLUTION_SUMMARY = LOGS_DIR / "evolution_summary.jsonl"
KEPT = {"__init__.py", "no_memory.py", "few_memory.py"}
_interrupted = False


def _handle_signal(signum, frame):
    global _interrupted
    _interrupted = True


def run_cmd(cmd, timeout=7200, cwd=None):
    try:
        return subprocess.run(cmd, cwd=cwd, timeout=timeout, capture_output=True, text=True, check=False)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(cmd, 124, "", "timed out")


def run_benchmark(args):
    return run_cmd(["uv", "run", "python", "benchmark.py", "--logs-dir", str(LOGS_DIR), *args], cwd=str(EVOLVE_DIR))


def render_task_prompt(iteration, num_datasets):
    return f"This is iteration {iteration}, on {num_datasets} datasets. Write pending_eval.json to: `{PENDING_EVAL}`"


def count_iterations_from_summary():
    if not EVOLUTION_SUMMARY.exists():
        return 0
    return max((json.loads(line)["iteration"] for line in EVOLUTION_SUMMARY.read_text().splitlines()), default=0)


def propose_claude(task_prompt, iteration, timeout=2400):
    saved = os.environ.pop("ANTHROPIC_API_KEY", None)
    result = claude_wrapper.run(
        prompt=task_prompt,
        cwd=str(EVOLVE_DIR),
        log_dir=str(LOGS_DIR / "claude_sessions"),
        name=f"iter{iteration}",
        timeout_seconds=timeout,
    )
    if saved:
        os.environ["ANTHROPIC_API_KEY"] = saved
    return result.exit_code == 0 and PENDING_EVAL.exists()


def validate_candidates(candidates):
    valid = []
    for each in candidates:
        program = f"from {EVOLVE_DIR.name}.agents.{each['name']} import *; print('OK')"
        result = run_cmd(["uv", "run", "python", "-c", program], cwd=str(EVOLVE_DIR.parent), timeout=120)
        if result.returncode == 0 and "OK" in result.stdout:
            valid.append(each)
    return valid


def _best():
    pareto = json.loads(FRONTIER_VAL.read_text())["_pareto"] if FRONTIER_VAL.exists() else []
    return pareto[0]["val_accuracy"] if pareto else 0


def update_evolution_summary(iteration, candidates, val_scores, propose_time=None, bench_time=None, wall_time=None):
    best = _best()
    with EVOLUTION_SUMMARY.open("a") as file:
        for number, each in enumerate(candidates):
            score = val_scores.get(each["name"], 0)
            row = {"iteration": iteration, "system": each["name"], "avg_val": round(score, 1)}
            row["delta"] = round(score - best, 1) if best else None
            row["outcome"] = f"{score:.1f}%" if score else "failed"
            row["hypothesis"] = each.get("hypothesis", "")
            if number == 0 and wall_time is not None:
                row["timing_s"] = {"propose": propose_time, "bench": bench_time, "wall": wall_time}
            file.write(json.dumps(row) + "\n")


def fresh_start():
    for path in AGENTS_DIR.glob("*.py"):
        if path.name not in KEPT:
            path.unlink()
    for path in (PENDING_EVAL, FRONTIER_VAL, EVOLUTION_SUMMARY, *LOGS_DIR.rglob("val.json")):
        path.unlink(missing_ok=True)


def run_evolve(args):
    global LOGS_DIR, PENDING_EVAL, FRONTIER_VAL, EVOLUTION_SUMMARY
    config = load_config()
    model = get_model_short_name(args.model)
    LOGS_DIR = EVOLVE_DIR / "logs" / (args.run_name or "unnamed")
    PENDING_EVAL = LOGS_DIR / "pending_eval.json"
    FRONTIER_VAL = LOGS_DIR / "frontier_val.json"
    EVOLUTION_SUMMARY = LOGS_DIR / "evolution_summary.jsonl"
    LOGS_DIR.mkdir(parents=True, exist_ok=True)
    if args.fresh:
        fresh_start()
    baselines = config["memory_systems"]["baselines"]
    if not args.skip_baseline:
        for name in baselines:
            run_benchmark(["--memory", name])
        run_benchmark(["--frontier", "--model", model])
    start = count_iterations_from_summary() + 1
    for iteration in range(start, start + args.iterations):
        if _interrupted:
            return
        _iterate(iteration, args, config["datasets"], model)
    frontier = json.loads(FRONTIER_VAL.read_text()) if FRONTIER_VAL.exists() else {}
    names = {*baselines, *(each["system"] for each in frontier.get("_pareto", []))}
    names |= {each["best_system"] for key, each in frontier.items() if not key.startswith("_")}
    for name in sorted(names):
        run_benchmark(["--memory", name, "--test"])
    run_benchmark(["--frontier", "--test", "--model", model])
    run_benchmark(["--results"])


def _iterate(iteration, args, datasets, model):
    began = time.time()
    PENDING_EVAL.unlink(missing_ok=True)
    if not propose_claude(render_task_prompt(iteration, len(datasets)), iteration, timeout=args.propose_timeout):
        return
    proposed = time.time() - began
    candidates = json.loads(PENDING_EVAL.read_text()).get("candidates", [])
    valid = validate_candidates(candidates)
    if not valid:
        update_evolution_summary(iteration, candidates, {}, propose_time=proposed)
        return
    for each in valid:
        run_benchmark(["--memory", each["name"]])
    run_benchmark(["--frontier", "--model", model])
    results, scores = load_results(LOGS_DIR, "val.json"), {}
    for each in valid:
        found = [results[model, name, each["name"]] for name in datasets if (model, name, each["name"]) in results]
        scores[each["name"]] = sum(one["accuracy"] * 100 for one in found) / len(found) if found else 0
    spent = time.time() - began
    update_evolution_summary(iteration, valid, scores, propose_time=proposed, bench_time=spent, wall_time=spent)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--model", default=load_config()["models"][0]["model"])
    parser.add_argument("--propose-timeout", type=int, default=2400)
    parser.add_argument("--run-name")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--skip-baseline", action="store_true")
    args = parser.parse_args()
    signal.signal(signal.SIGINT, _handle_signal)
    signal.signal(signal.SIGTERM, _handle_signal)
    run_evolve(args)


if __name__ == "__main__":
    sys.exit(main())
