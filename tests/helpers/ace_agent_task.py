"""A model and a task for ace-agent/ace whose every answer follows from the prompt.

Questions bear their number as ``Q<n>``. Question n is answered right if the playbook holds ``R<n>`` or, for n that 3
does not divide by with remainder 2, if the reflection holds ``H<n>``; those that 3 divides are answered right at once.
The reflector hints ``H<n>``, and tags the bullets that it is shown. The curator adds ``R<n>`` for each hint.
"""

import json
import re
import sys
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

BULLET = re.compile(r"\[([a-z]+-\d{5})\] helpful=(\d+) harmful=(\d+) :: (.*)")
SECTIONS = ("OTHERS", "formulas_and_calculations", "Unheard of", "common_mistakes_to_avoid")
SECONDS = {"generate": 3.0, "reflect": 5.0, "curate": 2.0, "metrics": 3.0, "validate": 3.0}


class Model:
    """What the three clients share.

    Args:
        unreadable: numbers for which the curator's answer cannot be read.
        silent: numbers for which the curator wants nothing.
        fails: numbers whose generation raises.
        reached: called as each call begins, with its role and its prompt.
        base_url: where its server is, if it has one.
        seconds: virtual seconds of stages.
    """

    def __init__(self, *, unreadable=(), silent=(), fails=(), reached=None, base_url=None, seconds=()):
        self.unreadable, self.silent, self.fails = frozenset(unreadable), frozenset(silent), frozenset(fails)
        self.reached = reached
        self.base_url = base_url
        self.seconds = {**SECONDS, **dict(seconds)}
        self.calls = []
        self._lock = threading.Lock()

    def clients(self, api_provider="own"):
        """In place of the host's ``initialize_clients``."""
        return tuple(self._client(getattr(self, f"_{role}")) for role in ("generator", "reflector", "curator"))

    def _client(self, answer):
        role = answer.__name__[1:]

        def create(messages, **settings):
            prompt = messages[0]["content"]
            with self._lock:
                self.calls.append((role, prompt))
            if self.reached is not None:
                self.reached(role, prompt)
            message = SimpleNamespace(content=answer(prompt))
            usage = SimpleNamespace(prompt_tokens=1, completion_tokens=1)
            return SimpleNamespace(choices=[SimpleNamespace(message=message)], usage=usage)

        client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
        client.flashevolve_seconds = self.seconds.__getitem__
        if self.base_url is not None:
            client.base_url = self.base_url
        return client

    def _generator(self, prompt):
        number = number_of(prompt)
        if number in self.fails:
            raise ValueError(f"question {number} has no answer")
        bullets = [found for found in BULLET.findall(prompt) if number_of(found[3], "R") % 5 == number % 5]
        known = any(content == f"R<{number}>" for *_, content in bullets)
        hinted = f"H<{number}>" in prompt and number % 3 != 2
        names = [found[0] for found in bullets]
        answer = f"answer {number}" if known or hinted or number % 3 == 0 else "a guess"
        return json.dumps(
            {"reasoning": " ".join(f"[{name}]" for name in names), "bullet_ids": names, "final_answer": answer}
        )

    def _reflector(self, prompt):
        number = number_of(prompt)
        tag = "harmful" if "does not match" in prompt else "helpful"
        tags = [{"id": found[0], "tag": tag} for found in BULLET.findall(prompt)]
        return json.dumps({"key_insight": f"H<{number}>", "bullet_tags": tags})

    def _curator(self, prompt):
        numbers = [int(each) for each in dict.fromkeys(re.findall(r"H<(\d+)>", prompt))]
        if any(number in self.unreadable for number in numbers):
            return "no operations today"
        if any(number in self.silent for number in numbers):
            return json.dumps({"reasoning": "nothing new", "operations": []})
        known = {content for *_, content in BULLET.findall(prompt)}
        operations = [
            {"type": "ADD", "section": SECTIONS[number % 4], "content": f"R<{number}>"}
            for number in numbers
            if f"R<{number}>" not in known
        ]
        operations.append({"type": "UPDATE", "bullet_id": "misc-00001", "content": "nothing"})
        return json.dumps({"reasoning": "because", "operations": operations})

    def count(self, role):
        return sum(each == role for each, _ in self.calls)


class Processor:
    """The user's data processor."""

    def answer_is_correct(self, predicted, ground_truth):
        return predicted == ground_truth

    def evaluate_accuracy(self, answers, targets):
        return sum(map(self.answer_is_correct, answers, targets)) / len(answers)


def number_of(text, letter="Q"):
    found = re.search(rf"{letter}<(\d+)>", text)
    return -1 if found is None else int(found.group(1))


def samples(size, first=0):
    numbers = range(first, first + size)
    return [{"question": f"Q<{n}>", "context": f"context of {n}", "target": f"answer {n}"} for n in numbers]


def make_ace(model, monkeypatch, *, executor=..., **settings):
    """An ``ACE`` of the checkout whose clients are the model's."""
    monkeypatch.setattr(sys.modules["ace.ace"], "initialize_clients", model.clients)
    given = {} if executor is ... else {"executor": executor}
    return sys.modules["ace.ace"].ACE("openai", "generator", "reflector", "curator", **settings, **given)


def config(**settings):
    return {"num_epochs": 1, "eval_steps": 4, "save_steps": 3, "save_dir": "results", "test_workers": 1, **settings}


def folder():
    """The last run's, in the working directory."""
    return max(Path("results").iterdir(), key=lambda path: path.stat().st_mtime_ns)


def read(name):
    return json.loads((folder() / name).read_text(encoding="utf-8"))


def files(root):
    """Name to content of all files of a run, without moments in time and without its logs of calls."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.parent.name != "detailed_llm_logs":
            text = path.read_text(encoding="utf-8")
            text = re.sub(r'"timestamp": "[^"]*"', '"timestamp": ""', text)
            found[path.relative_to(root).as_posix()] = re.sub(r"Timestamp: .*", "", text)
    return found


def bullets(text):
    """Id, counts and content of each bullet."""
    return [(name, int(helpful), int(harmful), content) for name, helpful, harmful, content in BULLET.findall(text)]


def contents(text):
    return Counter(content for *_, content in bullets(text))
