"""A task whose playbooks have a computable quality: hidden rules of a domain, and advice that states them."""

from __future__ import annotations

import hashlib
import math
import random
import re
from dataclasses import dataclass, field, fields
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Advice", "PlaybookLandscape"]

_CODE = re.compile(r"\b([B-DF-HJ-NP-TV-Z]{2}-\d{3})\b")
_CONSONANTS = "BCDFGHJKLMNPQRSTVWXZ"
_NORMAL = NormalDist()
_VAGUE = "where it matters"
_ACTIONS = (
    "Convert", "Round", "Average", "Subtract", "Annualize", "Deflate", "Spread", "Reverse",
    "Leave out", "Carry forward", "Weight", "Translate", "Offset", "Restate", "Discount", "Accrue",
)  # fmt: skip
_OBJECTS = (
    "the opening balance", "a minority interest", "deferred tax", "the lease term", "prepaid expenses", "a stock split",
    "the exchange rate", "goodwill", "accrued interest", "the risk-free rate", "a bullet repayment", "returned goods",
    "the dividend yield", "restricted cash", "the vesting period", "an impairment",
)  # fmt: skip
_PLACES = (
    "before the ratio is taken", "unless the period is a full year", "only where the filing says so",
    "after all amounts share one unit", "at the rate of the closing date", "once per reporting segment",
    "as soon as the sign changes", "whenever two figures disagree", "but never below zero",
)  # fmt: skip
#: Ways to say the same: a lexical comparison does not find two of them alike.
_FRAMES = (
    "{rule} (rule {code}).",
    "Keep to rule {code} in every answer like this one: {rule}, even if the question hides it.",
    "Common slip, seen more than once and easy to avoid: forgetting rule {code}. {rule}.",
    "Check list for such a case. First read all figures, then apply {code}: {rule}.",
    "Rule {code} decides here; without that step results come out wrong. {rule}.",
    "{rule}; analysts call this {code}, and graders expect it.",
)
SECTIONS = ("strategies", "domain_concepts", "common_mistakes")


@dataclass(frozen=True)
class Advice:
    """What one entry of a playbook says.

    Args:
        code: the rule that it states, or ``None`` for advice that fits one example only.
        full: whether it states the rule in full, rather than vaguely.
    """

    code: str | None
    full: bool


@dataclass(frozen=True)
class PlaybookLandscape:
    """Hidden rules of a domain: which of them a question needs, and how well a playbook serves all questions.

    A question is right if every rule that it needs is kept. A rule is kept if the model knows it by itself, recalls it
    from the playbook, or by a lucky guess. Everything in a playbook costs a little: recall falls with every entry.

    Args:
        seed: everything below is drawn from it.
        rules: how many rules there are, 1 or more.
        known: share of the rules that the model knows by itself.
        distractors: how many sentences look like rules and only do harm.
        needed: fewest and most rules that a question needs, both included.
        skew: how unequally often rules are needed: the one of rank r with a weight of r to minus this power.
        keep_known: chance that an answer keeps a rule which the model knows.
        keep_unstated: the same for one which it does not know, and the playbook does not state.
        keep_stated: the same for one which the playbook states in full, if it had no other entry.
        vague: share of the last that is left where the playbook states the rule vaguely.
        crowding: share of every recall that is lost per entry of the playbook.
        distractor_harm: share of every chance that is lost per distractor stated.
        steadiness: correlation, 0 to 1, of an answer's luck on one question between different playbooks.
        found: chance that a reflection on a wrong answer finds a rule that was missed.
        misled: share of the other ones that find a distractor, rather than advice for this example alone.
        chatty: chance that a reflection on a right answer has something to say.
        half_said: chance that a reflection states a rule vaguely.
        second_thought: chance that a further round of reflection makes bad advice good, or vague advice full.
        blamed: chance that a reflection on a wrong answer names a distractor of the playbook as harmful.
        removed: chance that a curator removes a distractor that was named.
        lost: chance, per insight and per further insight beside it, that a curator loses it.

    Raises:
        ValueError: a parameter is out of its range.
    """

    seed: int = 0
    rules: int = 120
    known: float = 0.65
    distractors: int = 20
    needed: tuple[int, int] = (1, 2)
    skew: float = 0.5
    keep_known: float = 0.9
    keep_unstated: float = 0.15
    keep_stated: float = 0.97
    vague: float = 0.75
    crowding: float = 0.0015
    distractor_harm: float = 0.02
    steadiness: float = 0.9
    found: float = 0.6
    misled: float = 0.3
    chatty: float = 0.2
    half_said: float = 0.4
    second_thought: float = 0.3
    blamed: float = 0.3
    removed: float = 0.7
    lost: float = 0.02
    _texts: dict[str, tuple[str, str]] = field(init=False, repr=False, compare=False)
    _weights: dict[str, float] = field(init=False, repr=False, compare=False)
    _known: frozenset[str] = field(init=False, repr=False, compare=False)
    _read: dict[str, Advice] = field(default_factory=dict, init=False, repr=False, compare=False)
    _drawn: dict[str, dict[str, float]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the ranges and draw the rules."""
        self._check()
        draw = random.Random(self.seed_of("book"))
        total = self.rules + self.distractors
        codes: dict[str, None] = {}
        while len(codes) < total:
            codes[f"{draw.choice(_CONSONANTS)}{draw.choice(_CONSONANTS)}-{draw.randint(100, 999)}"] = None
        sentences = [(f"{a} {o}", p) for a in _ACTIONS for o in _OBJECTS for p in _PLACES]
        texts = dict(zip(codes, draw.sample(sentences, total), strict=True))
        rules = list(codes)[: self.rules]
        weights = {code: (rank + 1) ** -self.skew for rank, code in enumerate(rules)}
        object.__setattr__(self, "_texts", texts)
        object.__setattr__(self, "_weights", weights)
        object.__setattr__(self, "_known", frozenset(draw.sample(rules, round(self.known * self.rules))))

    # -- what a question needs --------------------------------------------------------------------------------------

    def needed_rules(self, question: str) -> dict[str, float]:
        """Return the codes that a question needs, each with the question's luck: a draw of the standard normal."""
        name = question.strip()
        if name not in self._drawn:
            draw = random.Random(self.seed_of("needs", name))
            rules, weights = list(self._weights), list(self._weights.values())
            count = draw.randint(*self.needed)
            chosen: dict[str, float] = {}
            while len(chosen) < count:
                chosen.setdefault(draw.choices(rules, weights)[0], draw.gauss(0, 1))
            self._drawn[name] = chosen
        return self._drawn[name]

    def truth(self, question: str) -> str:
        """Return the right answer, which is drawn as well: this model does no sums."""
        return f"{self.seed_of('truth', question.strip()) % 10**8 / 100:.2f}"

    # -- what a playbook is worth -----------------------------------------------------------------------------------

    def advice(self, text: str) -> Advice:
        """Return what an entry says: of several codes, the first one that is a rule or a distractor."""
        if text not in self._read:
            codes = self.codes(text)
            self._read[text] = Advice(codes[0] if codes else None, _VAGUE not in text)
        return self._read[text]

    def codes(self, text: str) -> list[str]:
        """Return the codes of rules and distractors in a text, in order."""
        return [code for code in _CODE.findall(text) if code in self._texts]

    def is_distractor(self, code: str | None) -> bool:
        """Return whether a code is a distractor's."""
        return code in self._texts and code not in self._weights

    def chances(self, entries: Iterable[str], codes: Iterable[str]) -> dict[str, float]:
        """Return for each code the chance that an answer keeps it under a playbook of these entries."""
        advice = [self.advice(text) for text in entries]
        full = {each.code for each in advice if each.full}
        stated = {each.code for each in advice}
        harm = (1 - self.distractor_harm) ** sum(map(self.is_distractor, stated))
        recall = self.keep_stated * (1 - self.crowding) ** len(advice)
        found = {}
        for code in codes:
            own = self.keep_known if code in self._known else self.keep_unstated
            share = 1.0 if code in full else self.vague if code in stated else 0.0
            found[code] = max(own, recall * share) * harm
        return found

    def true_score(self, entries: Iterable[str], questions: Iterable[str]) -> float:
        """Return the expected share of right answers, 0 to 1: exact, without noise.

        Args:
            entries: texts of the playbook's entries.
            questions: one or more.
        """
        chances = self.chances(entries, self._weights)
        scores = [math.prod(chances[code] for code in self.needed_rules(question)) for question in questions]
        return math.fsum(scores) / len(scores)

    def duplicate_share(self, entries: Iterable[str]) -> float:
        """Return the share of entries that state what an entry before them states."""
        advice = [self.advice(text).code for text in entries]
        coded = [code for code in advice if code is not None]
        return (len(coded) - len(set(coded))) / len(advice) if advice else 0.0

    def kept(self, entries: Iterable[str], question: str, luck: int) -> list[str]:
        """Return the needed codes that one answer keeps.

        Args:
            entries: texts of the playbook's entries.
            question: the question.
            luck: seed of everything that is not tied to the question itself.
        """
        needed = self.needed_rules(question)
        chances = self.chances(entries, needed)
        own = random.Random(luck)
        alone, common = math.sqrt(1 - self.steadiness), math.sqrt(self.steadiness)
        return [
            code
            for code, shared in needed.items()
            if _NORMAL.cdf(common * shared + alone * own.gauss(0, 1)) < chances[code]
        ]

    # -- what is said of rules --------------------------------------------------------------------------------------

    def say(self, code: str, draw: random.Random, *, full: bool) -> str:
        """Return a sentence that states a rule or a distractor, in one of several ways."""
        what, place = self._texts[code]
        return draw.choice(_FRAMES).format(code=code, rule=f"{what} {place if full else _VAGUE}")

    def section(self, code: str) -> str:
        """Return the section that a rule belongs to."""
        return SECTIONS[self.seed_of("section", code) % len(SECTIONS)]

    def any_distractor(self, draw: random.Random) -> str | None:
        """Return the code of a distractor, ``None`` if there is none."""
        return draw.choice([*self._texts][self.rules :]) if self.distractors else None

    # -- what a verdict needs, as of a Landscape --------------------------------------------------------------------

    def stated(self, text: str) -> frozenset[str]:
        """Return what a text states: codes, and again those that it states in full."""
        said = self.advice(text)
        if said.code is None:
            return frozenset()
        return frozenset({said.code, f"{said.code} in full"} if said.full else {said.code})

    def merge(self, current: str, changes: Sequence[tuple[str, str]], luck: int) -> str:
        """Return an entry with changes merged in: of all texts the last that says most.

        Args:
            current: the entry's text.
            changes: (text before, text after) of each change.
            luck: nothing is left to it.
        """
        del luck
        texts = [current, *(after for _, after in changes)]
        return max(reversed(texts), key=lambda text: len(self.stated(text)))

    def seed_of(self, *words: str) -> int:
        """Return a 64-bit number that depends on the landscape's seed and on ``words`` alone."""
        text = "\x1f".join((str(self.seed), *words)).encode("utf-8", "surrogatepass")
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")

    def _check(self) -> None:
        """Raise ValueError for a parameter out of its range."""
        low, high = self.needed
        most = len(_ACTIONS) * len(_OBJECTS) * len(_PLACES)
        if not 1 <= low <= high <= self.rules or self.distractors < 0 or self.rules + self.distractors > most:
            raise ValueError(f"needed must lie within 1 and the number of rules, and all rules within {most}: {self}")
        if self.skew < 0:
            raise ValueError(f"skew must be 0 or more, not {self.skew}")
        for each in fields(self):
            value = getattr(self, each.name, None)
            if each.type == "float" and each.name != "skew" and not 0 <= value <= 1:  # type: ignore[operator]
                raise ValueError(f"{each.name} must lie within 0 and 1, not {value}")
