"""A model for ace-framework whose every answer follows from the prompt alone, and what tests compare of a run."""

import json
import random
import re
import threading

from ace import (
    Agent,
    AgentOutput,
    LLMClient,
    OfflineACE,
    Reflector,
    ReflectorOutput,
    Sample,
    SimpleEnvironment,
    Skillbook,
    SkillManager,
    SkillManagerOutput,
)
from ace.deduplication import DeduplicationConfig, DeduplicationManager
from ace.llm import LLMResponse

AGENT = "QUESTION {question}\nCONTEXT {context}\nWINDOW {reflection}\nBOOK\n{skillbook}"
REFLECTOR = "{question}\n{reasoning}\n{prediction}\n{ground_truth}\n{feedback}\nUSED\n{skillbook_excerpt}"
MANAGER = "PROGRESS {progress}\nSTATS {stats}\nLEARNED {reflection}\nQUESTIONS {question_context}\nBOOK\n{skillbook}"
ID = r"\b[a-z]+-\d{5}\b"


class NumberModel(LLMClient):
    """Learns ``rule <number>`` of each question, unless a skill says so, which it then cites.

    Args:
        operations: what the skill manager answers, from the rules learned and the prompt; else an ADD for each.
        fails: numbers whose generation raises.
        reached: called as each call begins, with the role and the prompt.
        verdict: what it says of stale operations; a patch makes the first skill ``sharper and sharpest``.
    """

    def __init__(self, operations=None, fails=(), reached=None, verdict="discard"):
        super().__init__("numbers")
        self.operations, self.fails, self.reached = operations or add_all, frozenset(fails), reached
        self.verdict = verdict
        self.calls = []
        self._lock = threading.Lock()

    def flashevolve_seconds(self, stage):
        """Virtual seconds of a call: always the same for a stage."""
        return {"generate": 3.0, "reflect": 5.0, "curate": 2.0}[stage]

    def complete(self, prompt, **kwargs):
        """Judge a stale operation."""
        with self._lock:
            self.calls.append(("judge", prompt))
        fence = max((line for line in prompt.splitlines() if line.startswith("```") and not line.strip("`")), key=len)
        patch = f"\nCOMPONENT: strategies-00001\n{fence}\nsharper and sharpest\n{fence}"
        words = f"VERDICT: {self.verdict}\nREASON: it was sharpened meanwhile"
        return LLMResponse(words + patch * (self.verdict == "patch"))

    def complete_structured(self, prompt, response_model, **kwargs):
        role = {AgentOutput: "agent", ReflectorOutput: "reflector", SkillManagerOutput: "manager"}[response_model]
        with self._lock:
            self.calls.append((role, prompt))
        if self.reached is not None:
            self.reached(role, prompt)
        return response_model.model_validate(getattr(self, f"_{role}")(prompt))

    def _agent(self, prompt):
        number = number_of(prompt)
        if number in self.fails:
            raise LookupError(f"question {number} has no answer")
        cited = [each for each in shown(prompt) if f"rule {number}\t" in line_of(prompt, each)]
        words = " ".join(f"[{each}]" for each in cited)
        return {"reasoning": f"of {number} {words}", "final_answer": str(number) if cited else "unknown"}

    def _reflector(self, prompt):
        number = number_of(prompt)
        used = re.findall(ID, prompt.split("USED\n")[1])
        learned = [] if used else [{"learning": f"rule {number}"}]
        return {
            "reasoning": f"about {number}",
            "correct_approach": "know it",
            "key_insight": f"insight {number}",
            "extracted_learnings": learned,
            "skill_tags": [{"id": each, "tag": "helpful"} for each in used],
            "raw": {"number": number, "prompt": prompt},
        }

    def _manager(self, prompt):
        learned = re.findall(r"rule \d+", prompt.split("LEARNED ")[1].split("QUESTIONS ")[0])
        answer = self.operations(learned, prompt)
        if isinstance(answer, list):
            answer = {"update": {"reasoning": "", "operations": answer}}
        return answer

    def count(self, role):
        return sum(each == role for each, _ in self.calls)


def number_of(prompt):
    return int(re.search(r"question (\d+)", prompt).group(1))


def shown(prompt):
    """Ids of the skills in a prompt's skillbook."""
    return list(dict.fromkeys(re.findall(ID, prompt.split("BOOK\n")[1])))


def line_of(prompt, skill):
    return next(line for line in prompt.split("BOOK\n")[1].splitlines() if skill in line)


def add_all(learned, prompt):
    return [{"type": "ADD", "section": "strategies", "content": rule} for rule in learned]


def anything(seed):
    """Operations of every kind, drawn from the prompt: also such that the host cannot apply, and consolidations."""

    def operations(learned, prompt):
        drawn = random.Random(f"{seed} {prompt}")
        there, answer = shown(prompt), add_all(learned, prompt)
        for skill in drawn.sample(there, min(len(there), 2)):
            kind = drawn.choice(["UPDATE", "TAG", "TAG", "REMOVE", "ADD"])
            operation = {"type": kind, "section": "other things", "skill_id": skill}
            if kind in {"UPDATE", "ADD"}:
                operation["content"] = f"new {drawn.randrange(100)}"
            if kind != "REMOVE":
                operation["metadata"] = {drawn.choice(["helpful", "harmful", "neutral"]): drawn.randrange(4)}
            answer.append(operation)
        if drawn.random() < 0.1:
            answer.append({"type": "ADD", "section": " ", "content": "of no section"})
        return {"update": {"reasoning": "", "operations": answer}, "consolidation_operations": _folds(drawn, prompt)}

    return operations


def _folds(drawn, prompt):
    similar = re.findall(rf"\*\*Skill [AB]\*\* \[({ID})\]", prompt)
    folds = []
    for first, second in [similar[:2], similar[2:4]][: len(similar) // 2]:
        folds.append(
            drawn.choice(
                [
                    {"type": "MERGE", "source_ids": [first, second], "keep_id": first, "merged_content": "both"},
                    {"type": "MERGE", "source_ids": [second], "keep_id": first},
                    {"type": "DELETE", "skill_id": second},
                    {"type": "KEEP", "skill_ids": [first, second], "differentiation": "differ"},
                    {"type": "UPDATE", "skill_id": first, "new_content": "apart"},
                ]
            )
        )
    return folds


class Calls:
    """What a role was asked, one entry for each call."""

    def __init__(self, method):
        self.method, self.seen = method, []

    def __call__(self, **kwargs):
        plain = {name: _plain(value) for name, value in kwargs.items()}
        self.seen.append(json.dumps(plain, default=str))
        return self.method(**kwargs)


def _plain(value):
    if isinstance(value, Skillbook):
        return timeless(value)
    return value.model_dump() if hasattr(value, "model_dump") else value


def embedding(text):
    """Texts with the same last character are alike."""
    drawn = random.Random(text[-1])
    return [drawn.uniform(-1, 1) for _ in range(8)]


def make_dedup(embedded=None, **settings):
    """A host's deduplication whose embeddings come from no server."""
    manager = DeduplicationManager(DeduplicationConfig(**settings))

    def batch(texts):
        if embedded is not None:
            embedded.extend(texts)
        return [embedding(text) for text in texts]

    manager.detector.compute_embeddings_batch = batch
    return manager


def make_ace(model, *, executor=..., dedup=None, reflects_with=None, **settings):
    given = {} if executor is ... else {"executor": executor}
    return OfflineACE(
        agent=Agent(model, AGENT),
        reflector=Reflector(reflects_with or model, REFLECTOR),
        skill_manager=SkillManager(reflects_with or model, MANAGER, dedup_manager=dedup),
        **settings,
        **given,
    )


def make_samples(size, first=0):
    return [Sample(f"question {n}", f"context {n}", str(n), {"n": n}) for n in range(first, first + size)]


def book_of(*contents, section="strategies"):
    book = Skillbook()
    for content in contents:
        book.add_skill(section, content)
    return book


def run(ace, samples, **settings):
    return ace.run(samples, SimpleEnvironment(), **settings)


def timeless(book):
    """A skillbook's dump without its dates."""
    return json.dumps(without_dates(book.to_dict()))


def without_dates(dump):
    for skill in dump["skills"].values():
        skill["created_at"] = skill["updated_at"] = ""
    for decision in dump["similarity_decisions"].values():
        decision["decided_at"] = ""
    return dump


def contents(ace):
    return sorted(skill.content for skill in ace.skillbook.skills())


def counters(ace):
    return {skill.content: (skill.helpful, skill.harmful, skill.neutral) for skill in ace.skillbook.skills()}
