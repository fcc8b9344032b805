"""The contract suite: what every policy keeps to, run on yours from a test of your own.

A whole test module::

    from flashevolve_plugins.testing import check_policy
    from my_policy import Young

    def test_young_keeps_the_contract():
        check_policy(Young)

It needs no host, no model and no test framework: what a policy breaks is told by an ``AssertionError`` that names the
policy, the hook and the rule. The rules are listed in ``docs/how-to/write-a-policy.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn
from zlib import crc32

import pluggy

from flashevolve_plugins._histories import Artifact, History, Invention
from flashevolve_plugins._model import ItemRecord, ItemView, Progress, Verdict
from flashevolve_plugins._ordering import wrong_order
from flashevolve_plugins._policies import Batch, Judgement, Plan, Release, Work, Workers
from flashevolve_plugins._pool import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from flashevolve_plugins._model import Change, PoolEntry
    from flashevolve_plugins._policies import Ask, ExampleView
    from flashevolve_plugins._snapshot import Snapshot

__all__ = ["check_policy"]

MOST_WORK = 10  # times in a row that one judgement may ask for work
CROWDS = (1, 2, 3, 7, 40)
SECOND_RUN = 1000  # added to a seed


def check_policy(make: Callable[[], object], *, seeds: Iterable[int] = range(20), ask: Ask | None = None) -> None:
    """Run a policy through invented histories, and through each once more, and check that it keeps every rule.

    Args:
        make: makes a fresh policy, for example its class: a ``StalenessPolicy``, a ``QueuePolicy``, or any object with
            hook implementations.
        seeds: one history for each.
        ask: stands in for the host's reflection model, prompt in, answer out; it must answer a prompt always alike.
            Default: answers of many forms, few of which can be read.

    Raises:
        AssertionError: a rule is broken, in one sentence that names the policy, the hook and what is wrong.
    """
    ask = ask or _answer
    _require(callable(make), f"check_policy takes what makes a policy, not the policy {make!r:.100}: pass its class.")
    first, second = make(), make()
    _require(not isinstance(first, type), f"make() gave the class {first!r:.100}; it must make an object of it.")
    _require(first is not second, f"{_name(first)}: make() gave the same object twice; it must make a fresh policy.")
    for seed in seeds:
        subject = _Subject(make(), ask, f"history {seed}", seed)
        History(subject, seed).run()
        _replay(subject.calls, _Subject(make(), ask, f"history {seed}, replayed", seed))
        subject.where = f"a second run of the same object, history {seed}"
        History(subject, seed + SECOND_RUN).run()
        _check_crowds(make, ask, seed)


def _require(holds: bool, sentence: str) -> None:  # noqa: FBT001 - reads as an assertion
    if not holds:
        raise AssertionError(sentence)


def _name(policy: object) -> str:
    return f"Policy {type(policy).__name__!r}"


def _answer(prompt: str) -> str:
    """Stand in for a reflection model; the same prompt always gets the same answer."""
    form = crc32(prompt.encode())
    fence = "`" * max(3, *(len(line.strip()) for line in prompt.splitlines() if set(line.strip()) == {"`"}), 0)
    text = f"{fence}\nAnswer well. {form % 7}\n{fence}"
    forms = (
        "",
        "I would rather not say.",
        text,
        "VERDICT: accept\nREASON: it helps",
        "VERDICT: discard\nREASON: it is old",
        f"VERDICT: patch\nREASON: half of it helps\nCOMPONENT: answer\n{text}",
        '{"verdict": "accept"}',
        "yes",
        "no",
    )
    return forms[form % len(forms)]


@dataclass(frozen=True)
class _Call:
    """One decision of a history: what it was made on, how the model fared, and what came of it."""

    hook: str
    arguments: Mapping[str, Any]
    mode: str
    answers: Sequence[Any]


class _Subject:
    """The policy under test, asked through its hooks as a run asks; checks every answer.

    Args:
        policy: the policy.
        ask: stands in for the reflection model.
        where: which history, for messages.
        seed: repeats it.
    """

    def __init__(self, policy: object, ask: Ask, where: str, seed: int) -> None:
        from flashevolve_plugins.hooks import StalenessPolicy, specs  # noqa: PLC0415 - a plugin room

        self.name, self.where, self._seed, self._ask = _name(policy), where, seed, ask
        self._always_answers = isinstance(policy, StalenessPolicy)
        self._hooks = pluggy.PluginManager(specs.PROJECT)
        self._hooks.add_hookspecs(specs)
        try:
            self._hooks.register(policy)
            self._hooks.check_pending()
        except pluggy.PluginValidationError as error:
            raise AssertionError(f"{self.name} implements a hook that does not exist so: {error}.") from error
        if not self._hooks.get_hookcallers(policy):
            raise AssertionError(f"{self.name} implements no hook: mark its methods with @hookimpl.")
        self.holds, self.plans, self.orders, self.controls, self.releases, self.admits = (
            self._implements(f"flashevolve_{name}")
            for name in ("merge_batch", "plan", "order_samples", "control", "release_stage", "admit_provisional")
        )
        self.calls: list[_Call] = []
        self._entries: dict[int, PoolEntry] = {}

    def _implements(self, hook: str) -> bool:
        return bool(getattr(self._hooks.hook, hook).get_hookimpls())

    def fail(self, hook: str, about: str, wrong: str, error: BaseException | None = None) -> NoReturn:
        """Say what is wrong."""
        repeat = f"check_policy(..., seeds=[{self._seed}]) repeats it"
        raise AssertionError(f"{self.name} {wrong} ({hook} for {about}, {self.where}: {repeat}).") from error

    # -- decisions ----------------------------------------------------------------------------------------------------

    def judge(self, item: ItemView, pool: Pool, mode: str) -> Judgement:
        """Ask for a judgement, with its work if it wants any."""
        hook, about, answers = "flashevolve_judge_stale", f"item {item.number}", list[Any]()
        arguments = {"item": item, "pool": _copy(pool)}
        kept = deepcopy(item)
        for _ in range(MOST_WORK):
            said = self._call(hook, about, item=item, pool=pool)
            if not isinstance(said, Work):
                break
            answers.append(Work)
            answer = self._run(said.call, mode, "the call of its Work", hook, about)
            if item != replace(kept, answer=item.answer) or not self._unchanged(pool):
                self.fail(hook, about, "changed what it was given while its Work ran: it may only read")
            item = replace(item, answer=answer)
        else:
            wrong = f"asked for work {MOST_WORK} times in a row: with its result in item.answer it must decide"
            self.fail(hook, about, wrong)
        judgement = self._judgement(said, item, pool, about)
        answers.append((judgement.verdict, judgement.reason, deepcopy(judgement.artifact)))
        self.calls.append(_Call(hook, arguments, mode, answers))
        return judgement

    def _judgement(self, said: Any, item: ItemView, pool: Pool, about: str) -> Judgement:
        hook = "flashevolve_judge_stale"
        if said is None and not self._always_answers:
            return Judgement(Verdict.ACCEPT)
        if not isinstance(said, Judgement) or not isinstance(said.verdict, Verdict):
            self.fail(hook, about, f"answered {said!r:.100}, not a Judgement or Work")
        self._check_reason(said.reason, hook, about, needed=said.verdict is Verdict.DISCARD)
        if said.artifact is None:
            return said
        if said.verdict is not Verdict.PATCH:
            self.fail(hook, about, f"gave an artifact with the verdict {said.verdict.value}: only a patch has one")
        if item.evidence is None:
            self.fail(hook, about, "patched an item that has no evidence yet")
        self._check_artifact(said.artifact, pool.entries[0].artifact, "patched with", hook, about)
        return said

    def merge(self, waiting: Sequence[ItemView], pool: Pool, *, last: bool) -> Batch:
        """Ask what leaves the queue."""
        hook, about = "flashevolve_merge_batch", f"items {', '.join(str(item.number) for item in waiting)}"
        arguments = {"waiting": [*waiting], "pool": _copy(pool), "last": last}
        said = self._call(hook, about, waiting=waiting, pool=pool, last=last)
        if said is None and not self._always_answers:
            said = Batch()
        if not isinstance(said, Batch):
            self.fail(hook, about, f"answered {said!r:.100}, not a Batch")
        for wrong in _wrong_batch(said, [item.number for item in waiting], pool, last=last):
            self.fail(hook, about, wrong)
        for reason in said.discard.values():
            self._check_reason(reason, hook, about, needed=True)
        batch = tuple(said.members), said.write is None, said.onto, dict(said.discard)
        self.calls.append(_Call(hook, arguments, "", [batch]))
        return said

    def write(self, batch: Batch, onto: Artifact, changes: Sequence[Change], mode: str) -> Artifact | None:
        """Let a batch's function write."""
        hook, about = "flashevolve_merge_batch", f"items {', '.join(map(str, batch.members))}"
        kept, write = deepcopy((onto, changes)), batch.write
        assert write is not None  # noqa: S101 - a history asks only then
        written = self._run(lambda ask: write(ask, onto, changes), mode, "its Batch's write", hook, about)
        if (onto, changes) != kept:
            self.fail(hook, about, "changed what its Batch's write was given: it may only read")
        failed = isinstance(written, Exception)
        if not failed:
            self._check_artifact(written, onto, "wrote", hook, about)
        arguments = dict(zip(("onto", "changes"), kept, strict=True))
        self.calls.append(_Call("write", arguments, mode, [type(written) if failed else deepcopy(written)]))
        return None if failed else written

    def plan(self, snapshot: Snapshot) -> Plan | None:
        """Ask for a plan."""
        hook, about = "flashevolve_plan", "the run"
        said = self._call(hook, about, snapshot=snapshot)
        if said is not None and not isinstance(said, Plan):
            self.fail(hook, about, f"answered {said!r:.100}, not a Plan or None")
        if said is not None:
            for field, value in (("max_items", said.max_items), ("validations", said.validations)):
                none = field == "max_items" and value is None
                if not none and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                    self.fail(hook, about, f"planned {field}={value!r}, not a whole number of at least 1")
        self.calls.append(_Call(hook, {"snapshot": snapshot}, "", [said]))
        return said

    def control(self, snapshot: Snapshot) -> Workers | None:
        """Ask for workers."""
        hook, about = "flashevolve_control", "the run"
        said = self._call(hook, about, snapshot=snapshot)
        if said is not None and not (isinstance(said, Workers) and isinstance(said.most, Mapping)):
            self.fail(hook, about, f"answered {said!r:.100}, not Workers of a mapping, or None")
        most: Mapping[Any, Any] = {} if said is None else said.most
        for stage, value in most.items():
            if stage not in snapshot.workers:
                known = ", ".join(snapshot.workers)
                self.fail(hook, about, f"answered for {stage!r}, which is no stage of snapshot.workers ({known})")
            if isinstance(value, bool) or not (value is None or (isinstance(value, int) and value >= 1)):
                self.fail(hook, about, f"gave {stage} {value!r:.100} workers, not a whole number of at least 1 or None")
        self.calls.append(_Call(hook, {"snapshot": snapshot}, "", [said and Workers(dict(most))]))
        return said

    def look(self, item: ItemView, progress: Progress, pool: Pool) -> Release | None:
        """Ask about a stage that runs: whether its artifact is admitted, and what becomes of it."""
        about, arguments = f"item {item.number}", {"item": item, "progress": progress, "pool": _copy(pool)}
        hook, answers = "flashevolve_admit_provisional", list[Any]()
        if self.admits and progress.validates:
            admitted = self._call(hook, about, item=item, progress=progress, pool=pool)
            if admitted is not None and not isinstance(admitted, bool):
                self.fail(hook, about, f"answered {admitted!r:.100}, not True, False or None")
            answers.append(admitted)
        hook, release = "flashevolve_release_stage", None
        if self.releases:
            release = self._call(hook, about, item=item, progress=progress, pool=pool)
            if release is not None and not isinstance(release, Release):
                self.fail(hook, about, f"answered {release!r:.100}, not a Release or None")
            if release is not None and not (release.stops or progress.hands_on):
                self.fail(hook, about, "handed on a stage of which every result is needed: there it can only stop")
            if release is not None:
                self._check_reason(release.reason, hook, about, needed=release.stops)
            answers.append(release)
        self.calls.append(_Call(hook, arguments, "", answers))
        return release

    def order(self, examples: Sequence[ExampleView], pool: Pool) -> None:
        """Ask in which order the samples of a validation start."""
        hook, about = "flashevolve_order_samples", f"{len(examples)} examples"
        arguments = {"examples": [*examples], "pool": _copy(pool)}
        said = self._call(hook, about, stage="validate", examples=examples, pool=pool)
        if said is not None:
            if not isinstance(said, Sequence):
                self.fail(hook, about, f"answered {said!r:.100}, not a sequence of positions")
            if wrong := wrong_order(said, len(examples)):
                self.fail(hook, about, f"answered {said!r:.100}: {wrong}")
            said = [*said]
        self.calls.append(_Call(hook, arguments, "", [said]))

    def tell(self, event: str, about: str, **arguments: Any) -> None:
        """Let it observe."""
        hook = f"flashevolve_{event}"
        if self._implements(hook):
            self._call(hook, about, **arguments)
            self.calls.append(_Call(event, arguments, about, []))

    # -- rules --------------------------------------------------------------------------------------------------------

    def _call(self, hook: str, about: str, **arguments: Any) -> Any:
        kept = {name: deepcopy(_comparable(value)) for name, value in arguments.items() if not isinstance(value, Pool)}
        pools = [value for value in arguments.values() if isinstance(value, Pool)]
        for pool in pools:
            self._keep(pool)
        try:
            said = getattr(self._hooks.hook, hook)(**arguments)
        except Exception as error:  # noqa: BLE001 - whatever it raises breaks a rule
            self.fail(hook, about, f"raised {type(error).__name__}: {error}", error)
        changed = [name for name, value in kept.items() if _comparable(arguments[name]) != value]
        changed += ["pool" for pool in pools if not self._unchanged(pool)]
        if changed:
            self.fail(hook, about, f"changed {changed[0]!r}, which it was given: it may only read")
        return said

    def _keep(self, pool: Pool) -> None:
        """Remember what the entries hold; an entry never changes, so each is copied once."""
        known = self._entries
        known.update({id(each): deepcopy(each) for each in pool.entries if id(each) not in known})
        self._order = pool.entries  # also keeps the ids of its entries in use

    def _unchanged(self, pool: Pool) -> bool:
        same = len(pool.entries) == len(self._order) and all(map(_is, pool.entries, self._order))
        return same and all(each == self._entries[id(each)] for each in pool.entries)

    def _run(self, call: Any, mode: str, what: str, hook: str, about: str) -> Any:
        if not callable(call):
            self.fail(hook, about, f"gave {call!r:.100} as {what}, which cannot be called")
        if mode == "raised":
            return RuntimeError("the reflection model did not answer")
        try:
            return call(self._ask if mode == "asked" else None)
        except Exception as error:  # noqa: BLE001 - as in a run, where the policy is told
            return error

    def _check_reason(self, reason: Any, hook: str, about: str, *, needed: bool) -> None:
        if not isinstance(reason, str) or (needed and not reason.strip()):
            self.fail(hook, about, f"gave {reason!r:.100} as a reason: users read it, and a discard needs one")

    def _check_artifact(self, artifact: Any, like: Artifact, verb: str, hook: str, about: str) -> None:
        if not isinstance(artifact, dict) or set(artifact) - set(like):
            self.fail(hook, about, f"{verb} {artifact!r:.100}, not a dict with components of {[*like]}")
        if not all(isinstance(text, str) for text in artifact.values()):
            self.fail(hook, about, f"{verb} {artifact!r:.100}, whose values are not all text")


def _wrong_batch(batch: Batch, waiting: Sequence[int], pool: Pool, *, last: bool) -> Iterator[str]:
    """What is wrong with a batch, if anything."""
    members, discard = [*batch.members], batch.discard
    onto: object = batch.onto
    if not isinstance(discard, Mapping):
        yield f"discards {discard!r:.100}, not a mapping of item number to reason"
    for verb, numbers in (("took", members), ("discarded", [*discard])):
        yield from (f"{verb} item {number!r}, which does not wait" for number in numbers if number not in waiting)
    yield from (f"took item {number} twice" for number in members if members.count(number) > 1)
    yield from (f"took item {number} and discarded it as well" for number in members if number in discard)
    if len(members) > 1 and batch.write is None:
        yield f"took {len(members)} items without write: only one can go on alone"
    if onto is not None and not (isinstance(onto, int) and 1 <= onto <= pool.version):
        yield f"merges onto {onto!r}, which is no version of the pool (1 to {pool.version})"
    if last and not members:
        left = (number for number in waiting if number not in discard)
        yield from (f"left item {number} in the queue although last=True: take or discard it" for number in left)


def _comparable(value: Any) -> Any:
    """What of an argument is compared; an exception is equal to itself alone."""
    if isinstance(value, ItemView):
        return replace(value, answer=None)
    if isinstance(value, ItemRecord):
        return replace(value, error=None)
    if isinstance(value, (list, tuple)):
        return [_comparable(each) for each in value]
    return value


def _is(one: object, other: object) -> bool:
    return one is other


def _copy(pool: Pool) -> Pool:
    copy = Pool()
    copy.append(pool.entries)
    return copy


def _replay(calls: Sequence[_Call], fresh: _Subject) -> None:
    """Put what one policy was asked and told to a fresh one: it must answer alike."""
    batch = Batch()
    for call in calls:
        given = call.arguments
        if call.hook == "flashevolve_judge_stale":
            fresh.judge(given["item"], given["pool"], call.mode)
        elif call.hook == "flashevolve_merge_batch":
            batch = fresh.merge([*given["waiting"]], given["pool"], last=given["last"])
        elif call.hook == "write":
            fresh.write(batch, given["onto"], given["changes"], call.mode)
        elif call.hook == "flashevolve_release_stage":
            fresh.look(given["item"], given["progress"], given["pool"])
        elif call.hook == "flashevolve_order_samples":
            fresh.order([*given["examples"]], given["pool"])
        elif call.hook == "flashevolve_plan":
            fresh.plan(given["snapshot"])
        elif call.hook == "flashevolve_control":
            fresh.control(given["snapshot"])
        else:
            fresh.tell(call.hook, call.mode, **given)
        again = fresh.calls[-1]
        if again.answers != call.answers:
            hook = "write of flashevolve_merge_batch" if call.hook == "write" else call.hook
            wrong = f"answered {_shown(call.answers)} and then, to the same history, {_shown(again.answers)}"
            fresh.fail(hook, "a fresh policy", wrong)


def _shown(answers: Sequence[Any]) -> str:
    return " then ".join("Work" if each is Work else f"{each!r:.120}" for each in answers)


def _check_crowds(make: Callable[[], object], ask: Ask, seed: int) -> None:
    """Ask fresh policies about queues and validations of every length."""
    for count in CROWDS:
        for last in (False, True):
            subject, invention = _Subject(make(), ask, f"{count} waiting, last={last}", seed), Invention(seed)
            pool = invention.pool(1 + seed % 4)
            if subject.holds:
                subject.merge(invention.waiting(pool, count), pool, last=last)
            if subject.orders:
                subject.where = f"{count} examples"
                subject.order(invention.views(pool, count), pool)
