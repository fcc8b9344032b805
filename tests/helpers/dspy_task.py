"""A task that dspy.GEPA can climb, without a server and without chance.

An example needs one rule for each output field. The task LM answers a field right if its instruction states the rule
(rule 0 needs no stating), the metric names what is missing, and the reflection LM adds the first missing rule to the
instruction; from three prompts in eight it learns nothing, so proposals are rejected too. Every answer depends on the
prompt alone.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from typing import Any

RULES = 5
FIELD = re.compile(r"starting with the field `\[\[ ## (\w+) ## \]\]`")
HARDLY_ANY = 3 / 8  # of the reflections learn nothing
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
)
SOURCE = """class Learned(dspy.Module):
    # {}
    def __init__(self):
        super().__init__()

    def forward(self, **inputs):
        return dspy.Prediction(answer="")"""


class Task:
    """LMs, metric, data and what was seen of them. Set ``on_task``, ``on_reflect`` or ``on_metric`` to interfere."""

    def __init__(self) -> None:
        import dspy

        self.dspy = dspy
        self.lock = threading.Lock()
        self.task_calls: list[str] = []  # thread names, as below
        self.reflections: list[str] = []
        self.metric_calls: list[str] = []  # those that the budget counts
        self.feedback_calls: list[str] = []
        self.lookups: list[str] = []  # of the agent's tool
        self.proposers: list[str] = []  # the names of the LMs in force when the user's own proposer was called
        self.lms: set[str] = set()  # the names of the LMs that the metric saw in dspy's settings
        self.on_task = self.on_reflect = self.on_metric = lambda *_: None
        self.task_lm = self.make_lm("task", self._answer)
        self.reflection_lm = self.make_lm("reflection", self._reflect)

    def __deepcopy__(self, memo: Any) -> Task:
        """Stay the one that counts, whoever copies an optimizer or a program."""
        return self

    def make_lm(self, name: str, answer: Any) -> Any:
        """A dspy LM that answers with a function of (system text, user text)."""

        class LM(self.dspy.utils.DummyLM):
            def __init__(self) -> None:
                super().__init__([], follow_examples=True)
                self.model = name

            def _use_example(self, messages: Any) -> str:
                return answer(str(messages[0]["content"]), str(messages[-1]["content"]))

            def launch(self) -> None:
                """BetterTogether starts and stops the LMs."""

            kill = launch

        return LM()

    def _note(self, where: list[str]) -> None:
        with self.lock:
            where.append(threading.current_thread().name)

    def note_proposer(self) -> None:
        """A proposer of the user's own was called."""
        with self.lock:
            self.proposers.append(self.dspy.settings.lm.model)

    def _answer(self, system: str, user: str) -> str:
        self._note(self.task_calls)
        self.on_task(system, user)
        field, rule = FIELD.search(user)[1], re.search(r"rule (\d)", user)[1]
        if field == "next_thought":
            tool, arguments = ("finish", {}) if "observation_0" in user else ("lookup", {"rule": rule})
            return fields(next_thought="Hm.", next_tool_name=tool, next_tool_args=json.dumps(arguments))
        if field == "reasoning":
            return fields(reasoning="Hm.", answer=self._right("answer", rule, system))
        return fields(**{field: self._right(field, rule, system)})

    def _right(self, field: str, rule: str, text: str) -> str:
        return "right" if rule == "0" or f"knows-{field}-{rule}" in text else "wrong"

    def _reflect(self, system: str, user: str) -> str:
        self._note(self.reflections)
        self.on_reflect(system, user)
        text = system if system == user else system + user
        learned, field = self.learn(text), FIELD.search(user)
        if field is not None:
            return fields(**{field[1]: SOURCE.format(learned) if field[1] == "revised_source" else learned})
        return json.dumps({"new_instruction": learned}) if "new_instruction" in text else f"```\n{learned}\n```"

    def learn(self, text: str) -> str:
        """The instruction that a text with an instruction and feedback teaches; without feedback it is a guess."""
        learned = set(re.findall(r"knows-\w+-\d", text))
        missing = sorted(set(re.findall(r"missing-(\w+-\d)", text)))
        if "got a score of 0.0" in text:
            missing.append(f"answer-{(len(learned) + 1) % RULES}")
        if missing and hashlib.sha256(text.encode()).digest()[0] >= 256 * HARDLY_ANY:
            learned.add(f"knows-{missing[0]}")
        return " ".join(["Answer.", *sorted(learned)])

    def metric(self, gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        """The share of fields that are right."""
        del trace, pred_trace
        self._note(self.metric_calls if pred_name is None else self.feedback_calls)
        self.lms.add(self.dspy.settings.lm.model)
        self.on_metric(gold, pred, pred_name)
        fields = [field for field in ("draft", "answer") if field in pred]
        wrong = [field for field in fields if pred[field] != "right"]
        told = {"draft": ["draft"], "final": ["answer"]}.get(pred_name, fields)
        feedback = " ".join(f"missing-{field}-{gold.rule}" for field in wrong if field in told) or "good"
        return self.dspy.Prediction(score=1 - len(wrong) / len(fields), feedback=feedback)

    def examples(self, count: int, first: int = 0, *, images: bool = False) -> list[Any]:
        """Examples that need rules 0, 1, 2, ... in turn."""
        numbers = range(first, first + count)
        made = [self.dspy.Example(question=f"case {n} rule {n % RULES}", rule=n % RULES) for n in numbers]
        if not images:
            return [each.with_inputs("question") for each in made]
        return [
            self.dspy.Example(**each, image=self.dspy.Image(PIXEL)).with_inputs("image", "question") for each in made
        ]

    def student(self) -> Any:
        """A program with one predictor."""
        return self.dspy.Predict(self.dspy.Signature("question -> answer", "Answer."))

    def pair(self) -> Any:
        """A program with two predictors."""
        dspy = self.dspy

        class Pair(dspy.Module):
            def __init__(self) -> None:
                super().__init__()
                self.draft = dspy.Predict(dspy.Signature("question -> draft", "Answer."))
                self.final = dspy.Predict(dspy.Signature("question, draft -> answer", "Answer."))

            def forward(self, question: str) -> Any:
                draft = self.draft(question=question).draft
                return dspy.Prediction(draft=draft, answer=self.final(question=question, draft=draft).answer)

        return Pair()

    def agent(self) -> Any:
        """A program that uses a tool."""

        def lookup(rule: str) -> str:
            """Say something about a rule."""
            with self.lock:
                self.lookups.append(rule)
            return f"It is rule {rule}."

        return self.dspy.ReAct(self.dspy.Signature("question -> answer", "Answer."), tools=[lookup], max_iters=3)

    def flex(self) -> Any:
        """A program of code, whose interpreter is a stand-in: what the code knows is in its text."""
        task = self

        class Interpreter:
            def __init__(self) -> None:
                self.tools: dict[str, Any] = {}
                self._source = ""

            def start(self) -> None:
                """Nothing."""

            shutdown = start

            def execute(self, code: str, variables: Any = None) -> str:
                """Remember a module's source, and answer when it is given inputs."""
                self._source = code if code.startswith("class ") else self._source
                inputs = (variables or {}).get("__dspy_flex_inputs")
                if inputs is None:
                    return ""
                task._note(task.task_calls)
                task.on_task(self._source, inputs["question"])
                rule = re.search(r"rule (\d)", inputs["question"])[1]
                return json.dumps({"answer": task._right("answer", rule, self._source)})

        return self.dspy.Flex(self.dspy.Signature("question -> answer", "Answer."), interpreter_factory=Interpreter)

    def mixed(self) -> Any:
        """A program of a predictor and of code."""
        dspy, flex = self.dspy, self.flex()

        class Mixed(dspy.Module):
            def __init__(self) -> None:
                super().__init__()
                self.draft = dspy.Predict(dspy.Signature("question -> draft", "Answer."))
                self.final = flex

            def forward(self, question: str) -> Any:
                return dspy.Prediction(
                    draft=self.draft(question=question).draft, answer=self.final(question=question).answer
                )

        return Mixed()

    def seeing(self) -> Any:
        """A program that is shown an image."""
        return self.dspy.Predict(self.dspy.Signature("image: dspy.Image, question -> answer", "Answer."))

    def gepa(self, **options: Any) -> Any:
        """A ``dspy.GEPA`` on this task: 100 metric calls and 4 threads, unless the options say otherwise."""
        if not {"auto", "max_full_evals", "max_metric_calls"} & set(options):
            options["max_metric_calls"] = 100
        settings = {"metric": self.metric, "reflection_lm": self.reflection_lm, "num_threads": 4, "track_stats": True}
        return self.dspy.GEPA(**{**settings, **options})

    def compile(self, executor: Any, *, student: Any = None, train: int = 6, val: int | None = 8, **options: Any):
        """Compile, and return the program that dspy.GEPA returns."""
        valset = None if val is None else self.examples(val, first=100)
        return self.gepa(executor=executor, **options).compile(
            student or self.student(), trainset=self.examples(train), valset=valset
        )


def fields(**values: str) -> str:
    """An answer of a chat."""
    said = [f"[[ ## {name} ## ]]\n{value}" for name, value in values.items()]
    return "\n\n".join([*said, "[[ ## completed ## ]]"])


def summarize(program: Any) -> dict[str, Any]:
    """What a compiled program's results say, comparable between runs."""
    results = program.detailed_results.to_dict()
    best = results["best_outputs_valset"]
    if best is not None:  # predictions compare by identity
        best = {name: [(index, dict(output.items())) for index, output in pairs] for name, pairs in best.items()}
    instructions = {name: each.signature.instructions for name, each in program.named_predictors()}
    return {**results, "best_outputs_valset": best, "chosen": instructions}


def assert_consistent(task: Task, program: Any, budget: int, *, calls: bool = True) -> None:
    """Assert what holds of every finished run: complete scores, parents before children, and no call too many.

    Args:
        task: its task.
        program: what it compiled.
        budget: metric calls at most.
        calls: whether each metric call is seen by the task.
    """
    found = program.detailed_results
    count, ids = len(found.candidates), set(found.val_subscores[0])
    assert found.total_metric_calls <= budget
    assert not calls or len(task.metric_calls) == found.total_metric_calls
    for list_ in (found.parents, found.val_aggregate_scores, found.val_subscores, found.discovery_eval_counts):
        assert len(list_) == count
    assert found.parents[0] == [None]
    for index, (parents, scores) in enumerate(zip(found.parents, found.val_subscores, strict=True)):
        assert set(scores) == ids
        assert found.val_aggregate_scores[index] == sum(scores.values()) / len(scores)
        assert index == 0 or (parents and all(0 <= parent < index for parent in parents))
    assert found.val_aggregate_scores[found.best_idx] == max(found.val_aggregate_scores)
    chosen = found.candidates[found.best_idx]
    assert program.dump_state() == chosen.dump_state()
    for example, front in found.per_val_instance_best_candidates.items():
        best = max(scores[example] for scores in found.val_subscores)
        assert front == {n for n, scores in enumerate(found.val_subscores) if scores[example] == best}
    assert found.discovery_eval_counts == sorted(found.discovery_eval_counts)
