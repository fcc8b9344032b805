"""The program that runs one proposer: in a process of its own, so that nothing it does to its environment gets out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from flashevolve_plugins.adapters.meta_harness.checkout import importing_from, load

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Run the proposer of an example that was copied.

    Args:
        argv: the copied example's folder, and JSON with the run's folder in it, the iteration, what the prompt counts,
            the timeout in seconds and more words for the prompt.

    Returns:
        0 where the session has named candidates, else 1.
    """
    folder, told = Path(argv[0]), json.loads(argv[1])
    example = load(folder)
    module, logs = example.module, folder / told["logs"]
    module.LOGS_DIR = logs
    module.PENDING_EVAL = logs / "pending_eval.json"
    module.FRONTIER_VAL = logs / "frontier_val.json"
    module.EVOLUTION_SUMMARY = logs / "evolution_summary.jsonl"
    if told["jobs"]:
        module.JOBS_DIR = folder / told["jobs"]
    prompt = module.render_task_prompt(told["iteration"], told["counted"]) + told["more"]
    with importing_from(folder):
        done = module.propose_claude(prompt, told["iteration"], timeout=told["timeout"])
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
