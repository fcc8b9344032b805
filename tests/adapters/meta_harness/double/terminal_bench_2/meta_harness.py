"""Evolves scaffolds, one iteration after the other. In our own words, with the names that the original has."""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import claude_wrapper

EVOLVE_DIR = Path(__file__).parent
AGENTS_DIR = EVOLVE_DIR / "agents"
LOGS_DIR = EVOLVE_DIR / "logs"
JOBS_DIR = EVOLVE_DIR / "jobs"
PENDING_EVAL = LOGS_DIR / "pending_eval.json"
FRONTIER_VAL = LOGS_DIR / "frontier_val.json"
EVOLUTION_SUMMARY = LOGS_DIR / "evolution_summary.jsonl"
BASELINES = [("one-baseline", "agents.baseline_one:AgentHarness"), ("two-baseline", "agents.baseline_two:AgentHarness")]
EVAL_TASK_SET = "full"
MODEL = "maker/small"
_interrupted = False


def _handle_signal(signum, frame):
    global _interrupted
    _interrupted = True


def run_cmd(cmd, timeout=7200, cwd=None):
    environment = {**os.environ, "HARBOR_MODEL": MODEL}
    try:
        return subprocess.run(
            cmd, cwd=cwd, env=environment, timeout=timeout, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(cmd, 124, "", "timed out")


def _eval_command(import_path, trials, concurrent, job, *more):
    script = str(EVOLVE_DIR / "scripts" / "run_eval.sh")
    options = ["--job-name", job, "--jobs-dir", str(JOBS_DIR)]
    return [script, import_path, EVAL_TASK_SET, str(trials), str(concurrent), *more, *options]


def harbor_run(import_path, job_name, n_trials=2, n_concurrent=10):
    result = run_cmd(_eval_command(import_path, n_trials, n_concurrent, job_name), cwd=str(EVOLVE_DIR))
    return JOBS_DIR / job_name, True if result.returncode in (0, 124) else None


def _trials(job_dir):
    for folder in sorted(job_dir.iterdir()):
        if folder.is_dir() and "__" in folder.name:
            path = folder / "result.json"
            yield folder.name.rsplit("__", 1)[0], json.loads(path.read_text()) if path.exists() else {}


def parse_job_results(job_dir, expected_trials=None):
    rewards = {}
    for task, result in _trials(job_dir):
        reward = ((result.get("verifier_result") or {}).get("rewards") or {}).get("reward")
        rewards.setdefault(task, []).append(float(reward or 0.0))
    return rewards


def compute_pass_rates(task_rewards):
    passed = {task: [each > 0 for each in rewards] for task, rewards in task_rewards.items()}
    every = [each for one in passed.values() for each in one]
    return {task: sum(one) / len(one) for task, one in passed.items()}, sum(every) / len(every) if every else 0.0


def parse_trial_metrics(job_dir):
    costs = {}
    for task, result in _trials(job_dir):
        costs.setdefault(task, []).append((result.get("agent_result") or {}).get("cost_usd"))
    return costs


def summarize_trial_metrics(trial_metrics):
    return {"n_trials": sum(map(len, trial_metrics.values())), "total_cost_usd": sum(map(sum, trial_metrics.values()))}


def count_iterations():
    if not EVOLUTION_SUMMARY.exists():
        return 0
    return max((json.loads(line)["iteration"] for line in EVOLUTION_SUMMARY.read_text().splitlines()), default=0)


def update_frontier(candidates_results, metrics=None):
    frontier = json.loads(FRONTIER_VAL.read_text()) if FRONTIER_VAL.exists() else {}
    for name, (per_task, average) in candidates_results.items():
        for task, rate in per_task.items():
            if rate > frontier.get(task, {}).get("pass_rate", -1):
                frontier[task] = {"best_agent": name, "pass_rate": rate}
        if average > frontier.get("_best", {}).get("avg_pass_rate", -1):
            frontier["_best"] = {"agent": name, "avg_pass_rate": average}
    FRONTIER_VAL.write_text(json.dumps(frontier, indent=2))


def update_evolution_summary(iteration, candidates, results, propose_time=None, bench_time=None, metrics=None):
    best = json.loads(FRONTIER_VAL.read_text())["_best"]["avg_pass_rate"] if FRONTIER_VAL.exists() else 0
    with EVOLUTION_SUMMARY.open("a") as file:
        for each in candidates:
            per_task, average = results.get(each["name"], ({}, 0))
            row = {"iteration": iteration, "agent": each["name"], "import_path": each.get("import_path", "")}
            row |= {"avg_pass_rate": round(average, 3), "per_task": per_task}
            row |= {"delta": round(average - best, 3), "rollout_metrics": (metrics or {}).get(each["name"])}
            row["timing_s"] = {"propose": propose_time, "bench": bench_time}
            file.write(json.dumps(row) + "\n")


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


def validate_candidate(name, import_path):
    program = f"from {import_path.split(':')[0]} import *; print('OK')"
    result = run_cmd(["uv", "run", "python", "-c", program], cwd=str(EVOLVE_DIR), timeout=120)
    return result.returncode == 0 and "OK" in result.stdout


def smoke_test(name, import_path, timeout=1800):
    job = f"smoke-{name}"
    shutil.rmtree(JOBS_DIR / job, ignore_errors=True)
    command = _eval_command(import_path, 1, 1, job, "-i", "extract-elf")
    return run_cmd(command, cwd=str(EVOLVE_DIR), timeout=timeout).returncode == 0


def render_task_prompt(iteration, n_trials):
    return f"This is iteration {iteration}, with {n_trials} trials. Write pending_eval.json to: `{PENDING_EVAL}`"


def fresh_start():
    for path in AGENTS_DIR.glob("*.py"):
        if not path.name.startswith(("__", "baseline_")):
            path.unlink()
    for path in (PENDING_EVAL, FRONTIER_VAL, EVOLUTION_SUMMARY):
        path.unlink(missing_ok=True)


def run_evolve(args):
    global JOBS_DIR, LOGS_DIR, PENDING_EVAL, FRONTIER_VAL, EVOLUTION_SUMMARY
    name = args.run_name or "unnamed"
    JOBS_DIR, LOGS_DIR = EVOLVE_DIR / "jobs" / name, EVOLVE_DIR / "logs" / name
    PENDING_EVAL = LOGS_DIR / "pending_eval.json"
    FRONTIER_VAL = LOGS_DIR / "frontier_val.json"
    EVOLUTION_SUMMARY = LOGS_DIR / "evolution_summary.jsonl"
    for folder in (JOBS_DIR, LOGS_DIR):
        folder.mkdir(parents=True, exist_ok=True)
    if args.fresh:
        fresh_start()
    for baseline, path in BASELINES:
        folder = JOBS_DIR / f"{baseline}-t{args.trials}"
        if not args.skip_baseline and not folder.exists():
            harbor_run(path, folder.name, args.trials, args.concurrent)
        if folder.exists():
            update_frontier({baseline: compute_pass_rates(parse_job_results(folder))})
    start = count_iterations() + 1
    for iteration in range(start, start + args.iterations):
        if _interrupted:
            return
        _iterate(iteration, args)


def _iterate(iteration, args):
    PENDING_EVAL.unlink(missing_ok=True)
    if not propose_claude(render_task_prompt(iteration, args.trials), iteration, timeout=args.propose_timeout):
        return
    candidates = json.loads(PENDING_EVAL.read_text()).get("candidates", [])
    for each in candidates:
        each["import_path"] = each["import_path"].rsplit(":", 1)[0] + ":AgentHarness"
    valid = [
        each
        for each in candidates
        if validate_candidate(each["name"], each["import_path"])
        and (args.skip_smoke or smoke_test(each["name"], each["import_path"]))
    ]
    if not valid:
        update_evolution_summary(iteration, candidates, {}, propose_time=0)
        return
    results, metrics = {}, {}
    for each in valid:
        job = f"evolve-{each['name']}-t{args.trials}"
        folder, done = harbor_run(each["import_path"], job, args.trials, args.concurrent)
        results[each["name"]] = ({}, 0)
        if done:
            results[each["name"]] = compute_pass_rates(parse_job_results(folder, args.trials))
            metrics[each["name"]] = summarize_trial_metrics(parse_trial_metrics(folder))
    update_frontier(results, metrics=metrics)
    update_evolution_summary(iteration, valid, results, propose_time=0, bench_time=0, metrics=metrics)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--trials", type=int, default=2)
    parser.add_argument("--propose-timeout", type=int, default=2400)
    parser.add_argument("--run-name")
    for option in ("--fresh", "--skip-baseline", "--skip-smoke", "--full-eval"):
        parser.add_argument(option, action="store_true")
    parser.add_argument("--concurrent", type=int, default=50)
    args = parser.parse_args()
    signal.signal(signal.SIGINT, _handle_signal)
    signal.signal(signal.SIGTERM, _handle_signal)
    run_evolve(args)


if __name__ == "__main__":
    sys.exit(main())
