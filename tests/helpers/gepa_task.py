"""A small deterministic task for gepa: an adapter and a reflection model without any model behind them."""

import contextvars
import random
import re
import sys
import threading
from functools import cache
from zlib import crc32

from gepa.core.adapter import EvaluationBatch

WORDS = ["ant", "bee", "cat", "doe", "elk", "fox", "gnu", "hen", "ibis", "jay", "koi", "lynx"]
LONG = 6  # words
VIRTUAL_SECONDS = {"dataset": 0.0, "propose": 2.0}
ONE = {"a": "start"}
TWO = {"a": "start", "b": "begin"}

inside = contextvars.ContextVar("inside a sample", default=False)


def chance(*key):
    """A generator that depends on nothing but its key, in every process."""
    return random.Random(crc32(repr(key).encode()))


@cache
def needs(example):
    return chance("needs", example).sample(range(len(WORDS)), 3)


def score(example, candidate):
    """How many of the example's three words the candidate has, each in its component; one less if it is long."""
    names = sorted(candidate)
    kept = [set(candidate[name].split()) for name in names]
    found = sum(WORDS[each] in kept[each % len(names)] for each in needs(example))
    return (1 + max(0, found - (sum(map(len, kept)) > LONG))) / 4


class Words:
    """Evaluates without any model. Counts what it does, and what of it happens at once."""

    propose_new_texts = None
    flashevolve_evaluate = "example"

    def __init__(self):
        self.lock = threading.Lock()
        self.batches = []  # (examples, candidate) of every evaluate
        self.at_once = self.most_at_once = 0
        self.datasets = 0
        self.outside = 0  # evaluations that no sample asked for
        self.errors = {}  # stage or hook -> function of the number of the call, true where it raises
        self.here = threading.local()  # number: of the evaluation that this thread is in

    @property
    def calls(self):
        return sum(len(examples) for examples, _ in self.batches)

    def evaluate(self, batch, candidate, capture_traces=False):
        with self.lock:
            self.batches.append((list(batch), dict(candidate)))
            number = self.here.number = len(self.batches)
            self.outside += not inside.get()
            self.at_once += len(batch)
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            self.working(batch, candidate)
            self._maybe_raise("evaluate", number)
            scores = [score(each, candidate) for each in batch]
        finally:
            with self.lock:
                self.at_once -= len(batch)
        return EvaluationBatch(
            outputs=[(each, [text for _, text in sorted(candidate.items())]) for each in batch],
            scores=scores,
            trajectories=[{"x": each, "score": it} for each, it in zip(batch, scores, strict=True)]
            if capture_traces
            else None,
            objective_scores=[{"score": it, "length": 1.0 / (1 + len(candidate))} for it in scores],
        )

    def working(self, batch, candidate):
        """What tests override to see or hold evaluations."""

    def _maybe_raise(self, hook, number):
        if hook in self.errors and self.errors[hook](number):
            raise RuntimeError(f"{hook} {number} fails")

    def make_reflective_dataset(self, candidate, evaluation, components):
        with self.lock:
            self.datasets += 1
            number = self.datasets
        self._maybe_raise("dataset", number)
        records = [
            {"Inputs": str(trace["x"]), "Generated Outputs": "-", "Feedback": f"{trace['score']:.2f}"}
            for trace in evaluation.trajectories
        ]
        return dict.fromkeys(components, records)

    def flashevolve_seconds(self, stage, *what):
        return VIRTUAL_SECONDS.get(stage, 0.5 + chance(stage, *what).random())


class Batched:
    """Mixed into an adapter: evaluates many pairs in one call."""

    def batch_evaluate(self, items):
        return [self.evaluate(batch, candidate, capture_traces=True) for candidate, batch in items]


class Reflection:
    """The reflection model: adds a word or two, and sometimes loses one."""

    def __init__(self):
        self.lock = threading.Lock()
        self.calls = self.at_once = self.most_at_once = 0
        self.errors = None

    def __call__(self, prompt):
        with self.lock:
            self.calls += 1
            number = self.calls
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            self.working()
            if self.errors is not None and self.errors(number):
                raise RuntimeError(f"reflection {number} fails")
            return self.answer(prompt)
        finally:
            with self.lock:
                self.at_once -= 1

    def working(self):
        """What tests override to see or hold reflections."""

    def answer(self, prompt):
        luck = chance("reflect", prompt)
        prompts = sys.modules.get("flashevolve_plugins.hooks.prompts")  # some runs are the host's alone
        if prompts is not None and prompt.startswith(prompts.MERGE_TASK):
            return self.merge(prompt, luck)
        if prompts is not None and prompt.startswith(prompts.VERDICT_TASK):
            return self.judge(prompt, luck)
        words = set(re.search(r"```\n(.*?)\n```", prompt, re.DOTALL).group(1).split()) & set(WORDS)
        words = {each for each in sorted(words) if luck.random() < 0.6} | set(luck.sample(WORDS, 2))
        return "```\n" + " ".join(sorted(words)) + "\n```"

    def merge(self, prompt, luck):
        """Most of the words that it is shown, and sometimes no answer that can be read."""
        words = [each for each in dict.fromkeys(re.findall("[a-z]+", prompt)) if each in WORDS and luck.random() < 0.8]
        return f"````\n{' '.join(words)}\n````" if luck.random() < 0.9 else "That depends."

    def judge(self, prompt, luck):
        """Any verdict, and sometimes none."""
        names = re.findall("^Current text of component (.*)", prompt, re.MULTILINE)
        texts = "\n".join(f"COMPONENT: {name}\n{self.merge(prompt, luck)}" for name in names)
        verdict = luck.choice(["accept", "discard", "patch", "patch", "hm"])
        return f"VERDICT: {verdict}\nREASON: why not\n{texts if verdict == 'patch' else ''}"


class Named:
    """A data loader with ids of its own."""

    def __init__(self, examples, prefix):
        self._examples = {f"{prefix}{number}": each for number, each in enumerate(examples)}

    def all_ids(self):
        return list(self._examples)

    def fetch(self, ids):
        return [self._examples[each] for each in ids]

    def __len__(self):
        return len(self._examples)
