"""A task whose prompts have a computable quality: a landscape of hidden rules."""

from __future__ import annotations

import hashlib
import math
import random
import re
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = ["Example", "Landscape", "Rule"]

Split = Literal["train", "val", "test"]

_CODE = re.compile(r"\[([A-Z]\d[A-Z]\d)\]")
_CASE = re.compile(r"\bcase ([0-9a-f]{12})\b")
_PART = re.compile(r"\bPart (\d+) of (\d+): ")
_NAMED = re.compile(r"Broken rule \[([A-Z]\d[A-Z]\d)\]")
_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
_DIGITS = "23456789"
_NORMAL = NormalDist()

_ACTIONS = (
    "Mention", "Repeat", "Confirm", "Spell out", "Shorten", "Round", "Date", "Number",
    "Translate", "Underline", "Leave out", "Check", "Sort", "Thank for", "Ask about", "Quote",
)  # fmt: skip
_OBJECTS = (
    "the order total", "the delivery address", "the contract term", "the warranty period",
    "the customer's name", "the invoice lines", "the return window", "the serial number",
    "the branch office", "the payment method", "the tax rate", "the due date",
    "the discount", "the contact hours", "the exchange rate", "the reference letter",
)  # fmt: skip
_REMARK = "In general, "
_REMARKS = (
    "stay close to the question", "read the case twice", "be precise", "keep an even tone", "check every detail",
    "avoid long words", "think before writing", "be brief", "be thorough", "put the reader first",
)  # fmt: skip
_PLACES = (
    "in the first sentence", "before the greeting", "at the very end", "in a line of its own",
    "after every amount", "when the case is urgent", "unless it is zero", "once per paragraph",
    "in the subject line", "next to the signature", "only for new customers",
)  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """One sentence that a prompt may state.

    Args:
        code: four characters, unique in its landscape; a prompt states the rule when it holds ``[code]``.
        text: the sentence, in plain words.
        helps: false for a distractor, which no example needs.
    """

    code: str
    text: str
    helps: bool

    @property
    def statement(self) -> str:
        """The line by which a prompt states this rule."""
        return f"[{self.code}] {self.text}"


@dataclass(frozen=True)
class Example:
    """One task of the landscape.

    Args:
        id: twelve hexadecimal digits, different in every split.
        question: what the program is asked; it holds the id and nothing about the rules.
    """

    id: str
    question: str


@dataclass(frozen=True)
class Landscape:
    """Hidden rules, the tasks that need them, and how well a prompt serves those tasks.

    An answer keeps each rule its example needs with a probability that is high if the prompt states the rule
    and low if not. With the defaults the landscape is additive: every rule stated adds the same to the score.

    Args:
        seed: everything below is drawn from it.
        rules: how many rules help, 1 or more.
        distractors: how many sentences look like rules and only do harm.
        needed: fewest and most rules that one example needs, both included.
        keep_stated: chance that an answer keeps a needed rule which the prompt states.
        keep_unstated: the same for a rule which the prompt does not state.
        distractor_harm: share of every chance that is lost per distractor stated.
        length_limit: how many sentences a prompt may state before all of them weaken; None for no limit.
        length_harm: share of every chance that is lost per sentence above the limit.
        conflicts: pairs of rules of which stating both is as good as stating neither.
        steadiness: correlation, 0 to 1, of an answer's luck on one example between different prompts.
        named: most broken rules that one feedback names.
        wrong_name: chance that a name in the feedback is a rule kept or not needed, or a distractor.
        distractor_name: share of the wrong names that are distractors.
        added: most sentences that one reflection adds.
        missed: chance that a reflection finds only a general remark, which helps nothing.
        forgotten: chance, per sentence already stated, that a reflection drops it.
        lost: chance, per sentence that a merged change adds or drops, that the merge loses it.
        lost_per_change: what is added to ``lost`` for every change of a merge beyond the first.

    Raises:
        ValueError: a parameter is out of its range.
    """

    seed: int = 0
    rules: int = 20
    distractors: int = 8
    needed: tuple[int, int] = (3, 6)
    keep_stated: float = 0.95
    keep_unstated: float = 0.25
    distractor_harm: float = 0.06
    length_limit: int | None = None
    length_harm: float = 0.06
    conflicts: int = 0
    steadiness: float = 0.98
    named: int = 3
    wrong_name: float = 0.15
    distractor_name: float = 0.3
    added: int = 2
    missed: float = 0.7
    forgotten: float = 0.0
    lost: float = 0.3
    lost_per_change: float = 0.0
    _book: tuple[Rule, ...] = field(init=False, repr=False, compare=False)
    _by_code: dict[str, Rule] = field(init=False, repr=False, compare=False)
    _places: dict[str, int] = field(init=False, repr=False, compare=False)
    _rivals: dict[str, str] = field(init=False, repr=False, compare=False)
    _known: dict[tuple[str, int, int], dict[str, float]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Check the ranges and draw the rules."""
        self._check()
        draw = random.Random(self._seed_of("book"))
        total = self.rules + self.distractors
        sentences = [f"{a} {o} {p}." for a in _ACTIONS for o in _OBJECTS for p in _PLACES]
        codes: dict[str, None] = {}
        while len(codes) < total:
            codes["".join(draw.choice(part) for part in (_LETTERS, _DIGITS, _LETTERS, _DIGITS))] = None
        texts = draw.sample(sentences, total)
        book = tuple(
            Rule(code, text, helps=index < self.rules)
            for index, (code, text) in enumerate(zip(codes, texts, strict=True))
        )
        rivals: dict[str, str] = {}
        for pair in range(self.conflicts):
            one, other = book[2 * pair].code, book[2 * pair + 1].code
            rivals[one], rivals[other] = other, one
        object.__setattr__(self, "_book", book)
        object.__setattr__(self, "_by_code", {rule.code: rule for rule in book})
        object.__setattr__(self, "_places", {rule.code: place for place, rule in enumerate(book)})
        object.__setattr__(self, "_rivals", rivals)

    @property
    def book(self) -> tuple[Rule, ...]:
        """Every rule, then every distractor."""
        return self._book

    def examples(self, split: Split, n: int) -> list[Example]:
        """Return the first ``n`` examples of a split; the ids of two splits never meet.

        Args:
            split: "train", "val" or "test".
            n: how many, 0 or more.
        """
        ids = (f"{self._seed_of('case', split, str(index)):012x}"[-12:] for index in range(n))
        return [Example(name, f"Write the reply to case {name}.") for name in ids]

    @staticmethod
    def part_question(question: str, part: int, parts: int) -> str:
        """Return what the ``part``-th of the ``parts`` predictors of a program is asked; parts count from 1.

        The rules are dealt out to the parts in turn, and a part can only state and keep its own.
        """
        return f"Part {part} of {parts}: {question}" if parts > 1 else question

    def needed_rules(self, question: str) -> tuple[str, ...] | None:
        """Return the codes that the example, or part of one, in ``question`` needs, or None if it names no case."""
        drawn = self._drawn(question)
        return None if drawn is None else tuple(drawn)

    def _drawn(self, question: str) -> dict[str, float] | None:
        """Return each code that ``question`` needs, with the luck of its example; kept, since both never change."""
        found = _CASE.search(question)
        if found is None:
            return None
        asked = _PART.search(question)
        key = (found.group(1), *(map(int, asked.groups()) if asked else (1, 1)))
        if key not in self._known:
            case, part, parts = key
            needs, luck = (random.Random(self._seed_of(word, case)) for word in ("needs", "luck"))
            rules = needs.sample(self._book[: self.rules], needs.randint(*self.needed))
            drawn = {rule.code: luck.gauss(0, 1) for rule in rules}
            self._known[key] = {code: luck for code, luck in drawn.items() if self._places[code] % parts == part - 1}
        return self._known[key]

    def stated(self, instruction: str) -> frozenset[str]:
        """Return the codes, of rules and distractors, that ``instruction`` states."""
        return frozenset(code for code in _CODE.findall(instruction) if code in self._by_code)

    def keep_probability(self, code: str, stated: Collection[str]) -> float:
        """Return the chance that an answer keeps the needed rule ``code`` under a prompt stating ``stated``."""
        effective = code in stated and self._rivals.get(code) not in stated
        base = self.keep_stated if effective else self.keep_unstated
        distractors = sum(not self._by_code[other].helps for other in stated)
        surplus = 0 if self.length_limit is None else max(0, len(stated) - self.length_limit)
        harm = (1 - self.distractor_harm) ** distractors * (1 - self.length_harm) ** surplus
        return base * harm

    def true_score(self, *instructions: str) -> float:
        """Return the expected score, 0 to 1, over all tasks: exact, without noise.

        Every rule is needed equally often, so this is the mean chance over the rules.

        Args:
            instructions: one for each part of the program.
        """
        stated = [self.stated(each) for each in instructions]
        rules = enumerate(self._book[: self.rules])
        chances = [self.keep_probability(rule.code, stated[index % len(stated)]) for index, rule in rules]
        return math.fsum(chances) / len(chances)

    def answer(self, instruction: str, question: str, luck: int) -> str:
        """Answer ``question`` as a model prompted with ``instruction`` would.

        Args:
            instruction: the prompt; only which rules it states matters.
            question: text that names a case.
            luck: seed of everything that is not tied to the example itself.
        """
        drawn = self._drawn(question)
        if drawn is None:
            return "There is no case in this question, so no rule applies."
        stated = self.stated(instruction)
        own = random.Random(luck)
        alone, common = math.sqrt(1 - self.steadiness), math.sqrt(self.steadiness)
        kept = []
        for code, shared in drawn.items():
            draw = common * shared + alone * own.gauss(0, 1)
            if _NORMAL.cdf(draw) < self.keep_probability(code, stated):
                kept.append(f"[{code}]")
        return f"The reply keeps {' '.join(kept) or 'no rule'}."

    def score(self, question: str, answer: str) -> float:
        """Return the share, 0 to 1, of the needed rules that ``answer`` keeps: 0 without a case, 1 without a rule."""
        needed = self.needed_rules(question)
        if not needed:
            return 0.0 if needed is None else 1.0
        kept = set(_CODE.findall(answer))
        return sum(code in kept for code in needed) / len(needed)

    def feedback(self, question: str, answer: str) -> tuple[float, str]:
        """Return the score of ``answer`` and a text that names some of the rules it broke.

        The same question and answer always give the same text. Some names are wrong, as the landscape says.
        """
        score = self.score(question, answer)
        needed = self.needed_rules(question)
        kept = set(_CODE.findall(answer))
        broken = [code for code in needed or () if code not in kept]
        draw = random.Random(self._seed_of("feedback", question, answer))
        lines = [f"The reply earns {score:.2f} of 1."]
        for code in draw.sample(broken, min(self.named, len(broken))):
            name = self._misname(broken, draw) if draw.random() < self.wrong_name else code
            lines.append(f"Broken rule {self._by_code[name].statement}")
        if not broken:
            lines.append("The question names no case." if needed is None else "Nothing is to be improved.")
        return score, "\n".join(lines)

    def named_rules(self, text: str) -> list[str]:
        """Return the codes named as broken in ``text``, in order, each as often as it is named."""
        return [code for code in _NAMED.findall(text) if code in self._by_code]

    def reflect(self, instruction: str, named: Sequence[str], luck: int) -> str:
        """Return ``instruction`` as a reflecting model would improve it.

        Args:
            instruction: the current text.
            named: codes named as broken by the feedback, from ``named_rules``.
            luck: seed of this reflection.
        """
        draw = random.Random(luck)
        lines = []
        for line in instruction.split("\n"):
            states = bool(self.stated(line)) and line.lstrip().startswith("[")
            if not (states and draw.random() < self.forgotten):
                lines.append(line)
        stated = self.stated(instruction)
        fresh = [code for code in dict.fromkeys(named) if code not in stated]
        if not fresh or draw.random() < self.missed:
            first, second = draw.sample(_REMARKS, 2)
            lines = [line for line in lines if not line.startswith(_REMARK)]
            return "\n".join([*lines, f"{_REMARK}{first} and {second}."])
        wanted = min(draw.randint(1, self.added), len(fresh))
        lines.extend(self._by_code[code].statement for code in draw.sample(fresh, wanted))
        return "\n".join(lines)

    def merge(self, current: str, changes: Sequence[tuple[str, str]], luck: int) -> str:
        """Return ``current`` with changes merged in, as a merging model would: some sentences get lost.

        Args:
            current: the text to merge onto.
            changes: (text before, text after) of each change.
            luck: seed of this merge.
        """
        draw = random.Random(luck)
        lost = min(1.0, self.lost + self.lost_per_change * (len(changes) - 1))
        lines = current.split("\n")
        for before, after in changes:
            old, new = (
                dict.fromkeys(line for line in text.split("\n") if self.stated(line)) for text in (before, after)
            )
            added = [line for line in new if line not in old and draw.random() >= lost]
            dropped = [line for line in old if line not in new and draw.random() >= lost]
            lines = [line for line in lines if line not in dropped]
            lines += [line for line in dict.fromkeys(added) if line not in lines]
        return "\n".join(lines)

    def _misname(self, broken: Sequence[str], draw: random.Random) -> str:
        """Return the code of a distractor or of a rule that is not broken."""
        if self.distractors and draw.random() < self.distractor_name:
            return draw.choice(self._book[self.rules :]).code
        others = [rule.code for rule in self._book[: self.rules] if rule.code not in broken]
        return draw.choice(others or list(broken))

    def _seed_of(self, *words: str) -> int:
        """Return a 64-bit number that depends on the landscape's seed and on ``words`` alone."""
        text = "\x1f".join((str(self.seed), *words)).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")

    def _check(self) -> None:
        """Raise ValueError for a parameter out of its range."""
        low, high = self.needed
        if not 1 <= low <= high <= self.rules:
            msg = f"needed must lie within 1 and the number of rules ({self.rules}), not {self.needed}"
            raise ValueError(msg)
        if self.distractors < 0 or not 0 <= 2 * self.conflicts <= self.rules:
            msg = "distractors must be 0 or more, and conflicts at most half the number of rules"
            raise ValueError(msg)
        if self.named < 1 or self.added < 1 or (self.length_limit is not None and self.length_limit < 0):
            msg = "named and added must be 1 or more, length_limit 0 or more"
            raise ValueError(msg)
        shares = ("keep_stated", "keep_unstated", "distractor_harm", "length_harm", "steadiness")
        for name in (*shares, "wrong_name", "distractor_name", "missed", "forgotten", "lost", "lost_per_change"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                msg = f"{name} must lie within 0 and 1, not {value}"
                raise ValueError(msg)
