"""Meta-Harness with one more argument: no agent, no key, no GPU.

Needs the extra: pip install "flashevolve-plugins[meta-harness]"
"""

import tempfile
import time
from pathlib import Path

import metaharness
from metaharness import EvaluationResult, FakeBackend

from flashevolve_plugins import Flash

ADVICE = ["Think first.", "Be brief.", "Shout.", "Cite the source.", "Guess.", "Check the answer."]
WORTH = dict(zip(ADVICE, [0.2, 0.1, -0.2, 0.1, -0.3, 0.2], strict=True))
FILE = "prompt.txt"


def propose(request):
    """Stands in for a coding agent: adds one piece of advice to the prompt it was given."""
    time.sleep(0.5)
    text = (request.workspace_dir / FILE).read_text()
    left = [each for each in ADVICE if each not in text] or ADVICE
    chosen = left[int(request.candidate_id[1:]) % len(left)]
    return {"relative_path": FILE, "content": f"{text}{chosen}\n", "summary": f"added {chosen!r}"}


class Evaluator:
    """Knows what each piece of advice is worth."""

    flashevolve_evaluate = "example"  # several threads may call it

    def evaluate(self, workspace):
        """The score of one candidate's prompt."""
        time.sleep(0.2)
        text = (workspace / FILE).read_text()
        return EvaluationResult(0.3 + sum(worth for each, worth in WORTH.items() if each in text))


def main():
    """Let twelve candidates be proposed, four at a time."""
    with tempfile.TemporaryDirectory() as folder:
        baseline = Path(folder) / "harness"
        baseline.mkdir()
        (baseline / FILE).write_text("Answer the question.\n")
        result = metaharness.optimize_harness(
            baseline,
            FakeBackend(propose),
            Evaluator(),
            run_dir=Path(folder) / "run",
            budget=12,
            objective="right answers",
            executor=Flash(max_concurrency=4, reflection_concurrency=4),
        )
    tried = len(result.candidate_ids) - 1
    print(f"score 0.300 -> {result.best_objective:.3f}, {tried} candidates, the best is {result.best_candidate_id}")


if __name__ == "__main__":
    main()
