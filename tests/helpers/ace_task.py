"""A model and a task for ace-playbook whose every answer follows from the question's number and the playbook shown."""

import json
import re
import threading

from ace import ACE, ACEConfig, Sample, Task

ROLES = ("Generator", "Reflector", "Curator")


class NumberModel:
    """Finds the number of a question, learns ``rule <number>``, and adds it to the playbook.

    Args:
        rules: so many rules; a question's rule is its number modulo this.
        operations: what the curator answers, from the rules to integrate and the playbook shown; else an ADD each.
        fails: numbers whose generation raises.
        reached: called as each call begins, with its role and the text of the request.
    """

    prompt_tokens = completion_tokens = cached_prompt_tokens = 0

    def __init__(self, rules=1000, operations=None, fails=(), reached=None):
        self.rules, self.operations, self.fails, self.reached = rules, operations, frozenset(fails), reached
        self.num_calls = 0
        self.calls = []
        self._lock = threading.Lock()

    def flashevolve_seconds(self, stage):
        """Virtual seconds of a call: always the same for a stage."""
        return {"generate": 3.0, "reflect": 5.0, "curate": 2.0}[stage]

    def complete(self, system, user):
        """Judge a stale operation: discard it."""
        with self._lock:
            self.calls.append(("Judge", user))
        return "VERDICT: discard\nREASON: it was sharpened meanwhile"

    def complete_json(self, system, user):
        role = next(role for role in ROLES if f"the {role} in" in system)
        with self._lock:
            self.num_calls += 1
            self.calls.append((role, user))
        if self.reached is not None:
            self.reached(role, user)
        return getattr(self, f"_{role.lower()}")(user)

    def _generator(self, user):
        number = int(re.search(r"QUERY:\nquestion (\d+)", user).group(1))
        if number in self.fails:
            raise LookupError(f"question {number} has no answer")
        helpful = re.findall(rf"\[(ctx-\w+)\] rule {number % self.rules}\b", user)
        return {"answer": str(number), "reasoning": f"of {number}", "helpful_ids": helpful[:1], "harmful_ids": []}

    def _reflector(self, user):
        number = int(re.search(r"QUERY:\nquestion (\d+)", user).group(1))
        helpful = re.findall(rf"\[(ctx-\w+)\] rule {number % self.rules}\b", user)
        insight = {"content": f"rule {number % self.rules}", "section": "strategies", "tags": []}
        return {"diagnosis": f"about {number}", "insights": [] if helpful else [insight], "helpful_ids": helpful[:1]}

    def _curator(self, user):
        shown, insights = user.split("NEW INSIGHTS TO INTEGRATE:")
        rules = re.findall(r"rule \d+", insights)
        if self.operations is not None:
            return {"operations": self.operations(rules, shown)}
        return {"operations": [{"op": "ADD", "section": "strategies", "content": rule} for rule in rules]}

    def count(self, role):
        return sum(each == role for each, _ in self.calls)


def make_task(size, first=0):
    samples = [Sample(id=f"s{first + n}", question=f"question {first + n}", answer=str(first + n)) for n in range(size)]
    return Task("numbers", samples, lambda prediction, sample: prediction == sample.answer)


def make_ace(model, *, epochs=1, rounds=1, executor=..., playbook=None, **config):
    config.setdefault("dedup_threshold", 1.1)  # "rule 1" and "rule 11" are no duplicates
    settings = ACEConfig(epochs=epochs, reflector_max_rounds=rounds, auto_embedder=False, **config)
    given = {} if executor is ... else {"executor": executor}
    return ACE(model, config=settings, playbook=playbook, **given)


def told(result):
    """What a run told, without what a clock says."""
    return [{**vars(record), "latency_s": 0} for record in result.history]


def contents(ace):
    return sorted(bullet.content for bullet in ace.playbook)


def dumped(ace):
    return json.dumps(ace.playbook.to_dict(), sort_keys=True)
