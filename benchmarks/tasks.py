"""Tasks that an optimizer can be run on: the hidden-rule landscape, and question/answer files."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dspy

from flashevolve_plugins._errors import UsageError
from flashevolve_plugins.benchmarks.landscape import Landscape
from flashevolve_plugins.benchmarks.presets import SEED_INSTRUCTION

if TYPE_CHECKING:
    from collections.abc import Callable

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True)
class Task:
    """What ``dspy.GEPA`` needs of a task.

    Args:
        trainset: examples for rollouts.
        valset: examples for validations.
        metric: dspy's five-argument metric, with feedback.
        true_score: the score of a candidate without noise, or ``None`` where it cannot be computed.
        adapter: the dspy adapter to use, or ``None`` for dspy's own.
        landscape: the rules behind it, or ``None`` for a file of examples.
        parts: predictors of the program.
    """

    trainset: list[Any]
    valset: list[Any]
    metric: Callable[..., Any]
    true_score: Callable[[dict[str, str]], float] | None = None
    adapter: Any = None
    landscape: Landscape | None = None
    parts: int = 1

    def program(self) -> Any:
        """A fresh program, from question to answer."""
        return dspy.Predict(_signature()) if self.parts == 1 else _Parts(self.parts)


def _signature() -> Any:
    return dspy.Signature("question -> answer", SEED_INSTRUCTION)


class _Parts(dspy.Module):
    """A program whose predictors each write a part of the answer, one after the other."""

    def __init__(self, parts: int) -> None:
        super().__init__()
        self._parts = parts
        for part in range(1, parts + 1):
            setattr(self, f"part_{part}", dspy.Predict(_signature()))

    def forward(self, question: str) -> Any:
        """Answer in parts."""
        answers = [
            getattr(self, f"part_{part}")(question=Landscape.part_question(question, part, self._parts)).answer
            for part in range(1, self._parts + 1)
        ]
        return dspy.Prediction(answer=" ".join(answers))


def landscape_task(landscape: Landscape, *, train: int, val: int, parts: int = 1) -> Task:
    """A task of the hidden-rule landscape.

    Args:
        landscape: the rules; the simulated server must answer by the same ones.
        train: number of training examples.
        val: number of validation examples.
        parts: predictors of the program.
    """

    def metric(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        del trace
        score, feedback = landscape.feedback(gold.question, pred.answer)
        if pred_name is not None and parts > 1:
            _, inputs, outputs = pred_trace[0]
            feedback = landscape.feedback(inputs["question"], outputs["answer"])[1]
        return dspy.Prediction(score=score, feedback=feedback)

    def examples(split: Any, count: int) -> list[Any]:
        return [
            dspy.Example(question=each.question).with_inputs("question") for each in landscape.examples(split, count)
        ]

    def true_score(candidate: dict[str, str]) -> float:
        return landscape.true_score(*(text for _, text in sorted(candidate.items())))

    trainset, valset = examples("train", train), examples("val", val)
    return Task(trainset, valset, metric, true_score, landscape=landscape, parts=parts)


class PlainAdapter(dspy.Adapter):
    """A dspy adapter without field markers: the instruction, then the inputs; the whole answer is the output.

    Small models do not keep to markers. The last output field gets the text, further ones stay empty.
    """

    def format(self, signature: Any, demos: list[Any], inputs: dict[str, Any]) -> list[dict[str, Any]]:
        """The messages of a request."""
        del demos
        fields = "\n\n".join(f"{name}: {value}" for name, value in inputs.items())
        return [{"role": "system", "content": signature.instructions}, {"role": "user", "content": fields}]

    def parse(self, signature: Any, completion: str) -> dict[str, Any]:
        """The output fields of an answer."""
        *others, last = signature.output_fields
        return {**dict.fromkeys(others, ""), last: completion.strip()}


def file_task(path: str, *, train: int, val: int, seed: int = 0) -> Task:
    """A task from a JSON-lines file with the fields of GSM8K (question, answer) or Formula (context, target).

    Args:
        path: the file.
        train: number of training examples.
        val: number of validation examples; no example is in both.
        seed: of the choice of examples.

    Raises:
        UsageError: no such file, too few lines, or other fields.
    """
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"There is no file {path!r}: give a JSON-lines file with question and answer fields.")
    try:
        rows = [json.loads(line) for line in file.read_text("utf-8").splitlines() if line.strip()]
    except ValueError as error:  # of the text's encoding or of its JSON
        raise UsageError(f"{path!r} is no JSON-lines file in UTF-8: {error}.") from error
    pairs = [_pair(row, path) for row in rows]
    if len(pairs) < train + val:
        raise UsageError(f"{path!r} has {len(pairs)} examples, fewer than train={train} and val={val} together.")
    random.Random(seed).shuffle(pairs)
    examples = [dspy.Example(question=question, target=target).with_inputs("question") for question, target in pairs]
    return Task(examples[:train], examples[train : train + val], _answer_metric, adapter=PlainAdapter())


def _pair(row: Any, path: str) -> tuple[str, str]:
    if not isinstance(row, dict):
        raise UsageError(f"{path!r} has a line that is no JSON object: {row!r:.80}.")
    if "question" in row and "answer" in row:
        return str(row["question"]), str(row["answer"]).rsplit("####", 1)[-1].strip()
    if "context" in row and "target" in row:
        return str(row["context"]), str(row["target"]).strip()
    raise UsageError(
        f"{path!r} has a line with the fields {sorted(row)}: needed are question and answer, or context and target."
    )


def _answer_metric(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
    """1 if the answer's last number, or its text where there is none, is the target; else 0."""
    del trace, pred_name, pred_trace
    answer = str(pred.answer or "")
    right = _normal(answer) == _normal(gold.target)
    words = (
        "Correct." if right else f"Wrong: the answer should be {gold.target}, and the response said {answer[:200]!r}."
    )
    return dspy.Prediction(score=float(right), feedback=words)


def _normal(text: str) -> str:
    numbers = _NUMBER.findall(text)
    if not numbers:
        return " ".join(text.lower().split())
    return f"{float(numbers[-1].replace(',', '')):.6g}"
