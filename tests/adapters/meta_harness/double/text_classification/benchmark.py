"""Evaluates memory systems on datasets. In our own words, with the names that the original has."""

import argparse
import json
import os
import random
import subprocess
import sys
from pathlib import Path

BASE = Path(__file__).parent


def load_config():
    return {
        "datasets": ["first", "second"],
        "models": [{"model": "maker/Small"}],
        "memory_systems": {"baselines": ["no_memory", "few_memory"]},
        "inner_loop": {"mode": "online"},
    }


DATASETS = load_config()["datasets"]
MODELS = load_config()["models"]
SEEDS = [1, 2]


def get_model_short_name(model):
    return model.split("/")[-1].lower()


def parse_run_path(base, path):
    parts = path.parent.relative_to(base).parts
    if len(parts) != 3:
        return None
    return {"dataset": parts[0], "memory": parts[1], "model": parts[2].partition("_seed")[0]}


def load_results(base, name="val.json"):
    found = {}
    for path in sorted(base.rglob(name)):
        parsed = parse_run_path(base, path)
        if parsed:
            found[parsed["model"], parsed["dataset"], parsed["memory"]] = json.loads(path.read_text())
    return found


def build_val_runs(logs_dir, memory_systems, datasets, models, mode="online", num_epochs=1, temperature=None):
    runs, done = [], 0
    for model in models:
        short = get_model_short_name(model["model"])
        for dataset in datasets:
            for name, path in memory_systems:
                for seed in SEEDS:
                    folder = logs_dir / dataset / name / f"{short}_seed{seed}"
                    if (folder / "val.json").exists():
                        done += 1
                        continue
                    folder.mkdir(parents=True, exist_ok=True)
                    command = ["env", "PYTHONPATH=..", "uv", "run", "python", "-m", "text_classification.inner_loop"]
                    command += ["--memory", path, "--dataset", dataset, "--seed", str(seed), "--mode", mode]
                    command += ["--val-output", str(folder / "val.json"), "--save-memory", str(folder / "memory.json")]
                    runs.append((f"val/{dataset}/{name}", command))
    random.shuffle(runs)
    return runs, len(runs), done


def print_frontier(logs_dir, results_dir, model_filter=None, metric="val"):
    base, name = (logs_dir, "val.json") if metric == "val" else (results_dir, "test.json")
    results = {key: each for key, each in load_results(base, name).items() if model_filter in (None, key[0])}
    if not results:
        print("No results found")
        return
    frontier, by_system = {}, {}
    for (_, dataset, system), each in sorted(results.items()):
        accuracy = each["accuracy"] * 100
        by_system.setdefault(system, []).append((accuracy, each["memory_context_chars"]))
        if accuracy > frontier.get(dataset, {}).get("accuracy", -1):
            frontier[dataset] = {"best_system": system, "accuracy": accuracy}
    points = []
    for system, each in by_system.items():
        points.append((-sum(a for a, _ in each) / len(each), sum(c for _, c in each) // len(each), system))
    pareto, fewest = [], float("inf")
    for accuracy, context, system in sorted(points):
        if context <= fewest:
            fewest = context
            key = "val_accuracy" if metric == "val" else "test_accuracy"
            pareto.append({"system": system, key: round(-accuracy, 1), "ctx_len": context})
    frontier["_pareto"] = pareto
    target = logs_dir / ("frontier_val.json" if metric == "val" else "frontier.json")
    target.write_text(json.dumps(frontier, indent=2))
    print(f"Wrote {target}")


def main():
    parser = argparse.ArgumentParser()
    for option in ("--memory", "--model", "--logs-dir"):
        parser.add_argument(option)
    for option in ("--test", "--frontier", "--results"):
        parser.add_argument(option, action="store_true")
    args = parser.parse_args()
    logs, results = Path(args.logs_dir), BASE / "results"
    metric = "test" if args.test else "val"
    if args.frontier:
        print_frontier(logs, results, args.model, metric)
    elif args.results:
        print(f"{len(load_results(logs))} results")
    elif args.test:
        for dataset in DATASETS:
            target = results / dataset / args.memory / "small" / "test.json"
            target.parent.mkdir(parents=True, exist_ok=True)
            program = ["uv", "run", "python", "-m", "text_classification.inner_loop"]
            options = ["--memory", f"agents/{args.memory}.py", "--dataset", dataset, "--test-output", str(target)]
            subprocess.run([*program, *options], check=False)
    else:
        os.chdir(BASE)
        runs, _, _ = build_val_runs(logs, [(args.memory, f"agents/{args.memory}.py")], DATASETS, MODELS)
        for _, command in sorted(runs):
            subprocess.run(command, check=False)


if __name__ == "__main__":
    sys.exit(main())
