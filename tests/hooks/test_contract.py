"""The contract suite: our own policies keep it, and a policy that breaks one rule is told which."""

import random
import re
import subprocess
import sys

import pytest

from flashevolve_plugins.hooks import (
    Batch,
    ControlPolicy,
    Decided,
    Full,
    Guarded,
    Judgement,
    LongestFirst,
    Merge,
    Plan,
    PolicySettings,
    QueuePolicy,
    Reflective,
    Release,
    Reorder,
    SampleOrder,
    Speculative,
    StalenessPolicy,
    Trailing,
    Verdict,
    Work,
    Workers,
    hookimpl,
)
from flashevolve_plugins.hooks.manager import installed
from flashevolve_plugins.testing import check_policy

OURS = {
    **{name: lambda name=name: installed().policies.make(name, PolicySettings()) for name, _ in installed().policies},
    "guarded, 2": lambda: Guarded(2),
    "reflective, accept": lambda: Reflective(1, max_patches=1, fallback="accept", max_characters=4_000),
    "merge, small": lambda: Merge(max_batch=2, max_items=4, max_characters=80),
    "reorder": Reorder,
    "reorder, one half once": lambda: Reorder(1, 0.5),
    "longest first": LongestFirst,
    "reflective & guarded": lambda: Reflective() & Guarded(3),
}


@pytest.mark.parametrize("policy", OURS)
def test_our_own_policies_keep_the_contract(policy):
    check_policy(OURS[policy], seeds=range(12))


def patched(prompt):
    """A reflection model that patches whatever it is shown, or writes the text it is asked for."""
    fence = max((line for line in prompt.splitlines() if line.startswith("```") and not line.strip("`")), key=len)
    text = f"{fence}\nAnswer in one word.\n{fence}"
    return f"VERDICT: patch\nREASON: half of it helps\nCOMPONENT: answer\n{text}" if "VERDICT:" in prompt else text


@pytest.mark.parametrize("kind", [Reflective, Merge])
def test_our_own_policies_keep_the_contract_with_a_model_that_always_answers(kind):
    check_policy(kind, seeds=range(12), ask=patched)


class Judging(StalenessPolicy):
    """A staleness policy made of one function of itself, the item and the pool."""

    def __init__(self, function):
        self.function, self.seen = function, []

    def judge(self, item, pool):
        return self.function(self, item, pool)


class Taking(QueuePolicy):
    """A queue policy made of one function of the waiting items, the pool and whether it is the last call."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def take(self, waiting, pool, *, last):
        return self.function(waiting, pool, last)


class Ordering(SampleOrder):
    """An order made of one function of the examples and the pool."""

    def __init__(self, function):
        self.function = function

    def order(self, examples, pool):
        return self.function(examples, pool)


def backwards(examples):
    return [*reversed(range(len(examples)))]


def edit_example(examples, pool):
    examples[0].scores.clear()
    return backwards(examples)


def edit_examples(examples, pool):
    examples.reverse()
    return backwards(examples)


def edit_entries(examples, pool):
    pool.entries[0].scores.clear()
    return backwards(examples)


class Planning(Full):
    def __init__(self, plan):
        self.plan = plan

    @hookimpl
    def flashevolve_plan(self, snapshot):
        return self.plan


class Controlling(ControlPolicy):
    """A control policy made of one function of itself and the snapshot."""

    def __init__(self, function):
        self.function, self.said = function, []

    def decide(self, snapshot):
        return self.function(self, snapshot)


def recount(self, snapshot):
    snapshot.workers.clear()


def count_all(self, snapshot):
    self.said.append(snapshot.seconds)
    return Workers({"gate": 1 + hash(self) % 10**6 if len(self.said) > 1 else 1})


class Raising(Full):
    @hookimpl
    def flashevolve_item_ended(self, record):
        raise KeyError(record.number)


class Editing(Full):
    @hookimpl
    def flashevolve_pool_updated(self, entry):
        entry.artifact["answer"] = "mine"


class Misspelt(Full):
    @hookimpl
    def flashevolve_jugde_stale(self, item): ...


class Unmarked:
    def flashevolve_judge_stale(self, item, pool): ...


def first(waiting):
    return (waiting[0].number,)


def both(waiting):
    return tuple(item.number for item in waiting)


def write(ask, onto, changes):
    return {**onto, "answer": "merged"}


def edit_item(self, item, pool):
    if item.evidence:
        item.evidence.artifact["answer"] = "mine"
    return self.accept()


def edit_scores(self, item, pool):
    pool.entries[0].scores.clear()
    return self.accept()


def edit_pool(self, item, pool):
    pool.append(pool.entries[:1])
    return self.accept()


def edit_in_work(self, item, pool):
    return self.accept() if item.answer is not None else Work(lambda ask: pool.entries[0].artifact.clear() or "done")


def trust_the_answer(self, item, pool):
    return self.accept(item.answer.lower()) if item.answer is not None else Work(lambda ask: ask("?") if ask else "")


def need_a_model(self, item, pool):
    if isinstance(item.answer, TypeError):
        raise item.answer
    return self.accept() if item.answer is not None else Work(lambda ask: ask("?"))


def remember(self, item, pool):
    self.seen.append(item.number)
    return self.accept() if self.seen == sorted(self.seen) else self.discard(f"seen {hash(self) % 10**6}")


def edit_queue(waiting, pool, last):
    number = waiting[0].number
    waiting.sort(key=lambda item: -item.number)
    return Batch((number,))


def edit_onto(ask, onto, changes):
    onto["answer"] = "merged"
    return onto


def edit_changes(ask, onto, changes):
    changes[0].after["answer"] = "merged"
    return dict(onto)


BAD = {
    "no answer": (lambda: Judging(lambda self, item, pool: None), "answered None, not a Judgement or Work"),
    "wrong answer": (lambda: Judging(lambda self, item, pool: True), "answered True, not a Judgement or Work"),
    "raises": (lambda: Judging(lambda self, item, pool: 1 / 0), "raised ZeroDivisionError: division by zero"),
    "no reason": (lambda: Judging(lambda self, item, pool: self.discard("")), "gave '' as a reason"),
    "no verdict": (lambda: Judging(lambda self, item, pool: Judgement("accept")), "not a Judgement or Work"),
    "patch without evidence": (
        lambda: Judging(lambda self, item, pool: self.patch(dict(pool.entries[0].artifact), "better")),
        "patched an item that has no evidence yet",
    ),
    "patch that is no artifact": (
        lambda: Judging(lambda self, item, pool: self.patch("text", "better") if item.evidence else self.accept()),
        "patched with 'text', not a dict with components of",
    ),
    "patch with something else than text": (
        lambda: Judging(
            lambda self, item, pool: self.patch({"answer": 1}, "better") if item.evidence else self.accept()
        ),
        "whose values are not all text",
    ),
    "accepts with an artifact": (
        lambda: Judging(lambda self, item, pool: Judgement(Verdict.ACCEPT, "", {"answer": ""})),
        "gave an artifact with the verdict accept",
    ),
    "changes the item": (lambda: Judging(edit_item), "changed 'item', which it was given"),
    "changes an entry": (lambda: Judging(edit_scores), "changed 'pool', which it was given"),
    "changes the pool": (lambda: Judging(edit_pool), "changed 'pool', which it was given"),
    "changes an entry while working": (lambda: Judging(edit_in_work), "changed what it was given while its Work ran"),
    "changes what it observes": (Editing, "changed 'entry', which it was given"),
    "trusts the work": (lambda: Judging(trust_the_answer), "raised AttributeError: 'RuntimeError' object has no"),
    "needs a model": (lambda: Judging(need_a_model), "raised TypeError: 'NoneType' object is not callable"),
    "always wants work": (lambda: Judging(lambda self, item, pool: Work(str)), "asked for work 10 times in a row"),
    "work without a call": (lambda: Judging(lambda self, item, pool: Work("later")), "gave 'later' as the call"),
    "rolls a die": (
        lambda: Judging(lambda self, item, pool: self.accept() if random.random() < 0.5 else self.discard("luck")),
        "and then, to the same history,",
    ),
    "has an identity": (lambda: Judging(remember), "and then, to the same history,"),
    "no batch": (lambda: Taking(lambda waiting, pool, last: None), "answered None, not a Batch"),
    "takes what is not there": (lambda: Taking(lambda waiting, pool, last: Batch((99,))), "took item 99, which does"),
    "takes twice": (lambda: Taking(lambda waiting, pool, last: Batch(first(waiting) * 2, write)), r"item \d+ twice"),
    "discards what is not there": (
        lambda: Taking(lambda waiting, pool, last: Batch(first(waiting), discard={99: "old"})),
        "discarded item 99, which does not wait",
    ),
    "takes and discards": (
        lambda: Taking(lambda waiting, pool, last: Batch(first(waiting), discard={waiting[0].number: "old"})),
        "and discarded it as well",
    ),
    "discards without a reason": (
        lambda: Taking(lambda waiting, pool, last: Batch(discard=dict.fromkeys(both(waiting), ""))),
        "gave '' as a reason",
    ),
    "discards a list": (lambda: Taking(lambda waiting, pool, last: Batch(discard=[*both(waiting)])), "not a mapping"),
    "several alone": (lambda: Taking(lambda waiting, pool, last: Batch(both(waiting))), "items without write"),
    "onto what is not there": (
        lambda: Taking(lambda waiting, pool, last: Batch(first(waiting), write, onto=99)),
        "merges onto 99, which is no version of the pool",
    ),
    "waits for ever": (lambda: Taking(lambda waiting, pool, last: Batch()), "in the queue although last=True"),
    "waits for a full batch": (
        lambda: Taking(lambda waiting, pool, last: Batch(both(waiting)[:4], write) if len(waiting) >= 4 else Batch()),
        "in the queue although last=True",
    ),
    "wants more than waits": (
        lambda: Taking(lambda waiting, pool, last: Batch((waiting[3].number,))),
        "raised IndexError",
    ),
    "sorts the queue": (lambda: Taking(edit_queue), "changed 'waiting', which it was given"),
    "changes the best": (
        lambda: Taking(lambda waiting, pool, last: Batch(both(waiting), edit_onto)),
        "changed what its Batch's write was given",
    ),
    "changes a change": (
        lambda: Taking(lambda waiting, pool, last: Batch(both(waiting), edit_changes)),
        "changed what its Batch's write was given",
    ),
    "writes no artifact": (
        lambda: Taking(lambda waiting, pool, last: Batch(both(waiting), lambda *arguments: "text")),
        "wrote 'text', not a dict with components of",
    ),
    "writes by chance": (
        lambda: Taking(
            lambda waiting, pool, last: Batch(both(waiting), lambda *given: {"answer": f"{random.random()}"})
        ),
        "write of flashevolve_merge_batch for a fresh policy",
    ),
    "plans nothing": (lambda: Planning(Plan(max_items=0)), "planned max_items=0, not a whole number of at least 1"),
    "plans halves": (lambda: Planning(Plan(validations=0.5)), "planned validations=0.5"),
    "no plan": (lambda: Planning(4), "answered 4, not a Plan or None"),
    "no workers": (lambda: Controlling(lambda self, snapshot: 4), "answered 4, not Workers of a mapping, or None"),
    "workers without stages": (
        lambda: Controlling(lambda self, snapshot: Workers(4)),
        r"answered Workers\(most=4\), not Workers of a mapping, or None",
    ),
    "a stage that is not there": (
        lambda: Controlling(lambda self, snapshot: Workers({"rolout": 1})),
        r"answered for 'rolout', which is no stage of snapshot.workers \(rollout, propose, gate, validate\)",
    ),
    "a stage without a worker": (
        lambda: Controlling(lambda self, snapshot: Workers({"gate": 0 if snapshot.finished["gate"] else 1})),
        "gave gate 0 workers, not a whole number of at least 1 or None",
    ),
    "workers that are no number": (
        lambda: Controlling(lambda self, snapshot: Workers({"gate": True})),
        "gave gate True workers",
    ),
    "changes the statistics": (lambda: Controlling(recount), "changed 'snapshot', which it was given"),
    "counts as it likes": (lambda: Controlling(count_all), "and then, to the same history, Workers"),
    "leaves an example out": (lambda: Ordering(lambda examples, pool: backwards(examples)[1:]), "each position from 0"),
    "runs an example twice": (
        lambda: Ordering(lambda examples, pool: [0, *backwards(examples)[1:]]),
        "answered .*: it must hold each position from 0 to 7 once",
    ),
    "gives names": (
        lambda: Ordering(lambda examples, pool: [f"{each.name}" for each in examples]),
        "not all of its positions are whole numbers",
    ),
    "gives no sequence": (lambda: Ordering(lambda examples, pool: {0}), "answered .0., not a sequence of positions"),
    "shuffles": (
        lambda: Ordering(lambda examples, pool: random.sample(range(len(examples)), len(examples))),
        "and then, to the same history,",
    ),
    "needs the seconds": (
        lambda: Ordering(lambda examples, pool: sorted(backwards(examples), key=lambda place: examples[place].seconds)),
        "raised TypeError",
    ),
    "needs scores": (
        lambda: Ordering(lambda examples, pool: [place for place, each in enumerate(examples) if min(each.scores)]),
        "raised ValueError",
    ),
    "changes an example": (lambda: Ordering(edit_example), "changed 'examples', which it was given"),
    "changes the examples": (lambda: Ordering(edit_examples), "changed 'examples', which it was given"),
    "changes the pool for an order": (lambda: Ordering(edit_entries), "changed 'pool', which it was given"),
    "raises where it observes": (Raising, "raised KeyError"),
    "misspelt": (Misspelt, "implements a hook that does not exist so: .*flashevolve_jugde_stale"),
    "unmarked": (Unmarked, "implements no hook: mark its methods with @hookimpl"),
    "class": (lambda: Full, "must make an object"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_policy_that_breaks_a_rule_is_told_which(bad):
    make, wrong = BAD[bad]
    with pytest.raises(AssertionError, match=wrong) as caught:
        check_policy(make)
    assert "\n" not in str(caught.value)


def test_the_message_names_policy_hook_and_what_repeats_it():
    with pytest.raises(AssertionError) as caught:
        check_policy(lambda: Judging(lambda self, item, pool: None), seeds=[5])
    words = str(caught.value)
    wrong = "answered None, not a Judgement or Work"
    assert words.startswith(f"Policy 'Judging' {wrong} (flashevolve_judge_stale for item ")
    assert words.endswith("history 5: check_policy(..., seeds=[5]) repeats it).")


def test_an_object_instead_of_what_makes_one_is_refused():
    with pytest.raises(AssertionError, match="check_policy takes what makes a policy, not the policy"):
        check_policy(Full())
    policy = Full()
    with pytest.raises(AssertionError, match="make.. gave the same object twice"):
        check_policy(lambda: policy)


class Plain:
    """No base class, and often no answer: that is left to the next plugin."""

    @hookimpl
    def flashevolve_judge_stale(self, item):
        return Judgement(Verdict.DISCARD, "very old") if item.staleness > 3 else None

    @hookimpl
    def flashevolve_merge_batch(self, waiting):
        return Batch((waiting[-1].number,))


def test_any_object_with_hooks_can_keep_the_contract():
    check_policy(Plain)


def test_the_histories_show_a_staleness_policy_all_that_a_run_can():
    seen = set()

    def note(self, item, pool):
        seen.update({("evidence", item.evidence is not None), ("patched", item.patches > 0), item.stage})
        seen.update({("scores", bool(pool.entries[-1].scores)), type(item.answer)})
        if item.evidence is None:
            return self.accept()
        return self.patch({"answer": "better"}, "patched") if item.answer else Work(lambda ask: ask("what now?"))

    check_policy(lambda: Judging(note), ask=lambda prompt: "it depends")
    assert seen >= {(what, whether) for what in ("evidence", "patched", "scores") for whether in (True, False)}
    assert seen >= {"rollout", "propose", "gate", "validate", type(None), str, RuntimeError, TypeError}


def test_the_histories_show_a_queue_policy_all_that_a_run_can():
    seen = set()

    class Noting(Taking):
        @hookimpl
        def flashevolve_item_ended(self, record):
            seen.update({record.terminal.value, ("merge", bool(record.members))})

    def note(waiting, pool, last):
        seen.update({("last", last), ("many", len(waiting) > 3), ("failed", any(each.failed_with for each in waiting))})
        return Batch(both(waiting)[:3], write)

    check_policy(lambda: Noting(note))
    assert seen >= {(what, whether) for what in ("last", "many", "failed", "merge") for whether in (True, False)}
    assert seen >= {"committed", "merged", "rejected", "skipped", "failed"}


def test_the_histories_show_a_control_policy_all_that_a_run_can():
    seen = set()

    def note(self, snapshot):
        seen.update({("finished", stage) for stage, count in snapshot.finished.items() if count})
        seen.update({("at work", stage) for stage, count in snapshot.at_work.items() if count})
        seen.update({("waiting", stage) for stage, count in snapshot.waiting.items() if count})
        seen.add(("workers", snapshot.workers["gate"]))
        return Workers({"gate": 2}) if snapshot.seconds else None

    check_policy(lambda: Controlling(note))
    assert seen >= {(what, stage) for what in ("finished", "at work", "waiting") for stage in ("rollout", "validate")}
    assert seen >= {("workers", None), ("workers", 2)}


def test_it_is_imported_without_a_test_framework_or_a_host():
    code = "import sys, flashevolve_plugins.testing; print({'pytest', 'gepa', 'dspy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# -- stages that are left early -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Decided, Speculative, Trailing])
def test_the_built_in_policies_that_leave_stages_early_keep_the_contract(kind):
    check_policy(kind)


class Stopping:
    """Answers a stage that runs with what the tests say."""

    def __init__(self, answer):
        self.answer = answer

    @hookimpl
    def flashevolve_release_stage(self, progress):
        return self.answer(progress)


class Admitting:
    """As above."""

    @hookimpl
    def flashevolve_admit_provisional(self, progress):
        return len(progress.known)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Stopping(lambda _: True), "answered True, not a Release or None"),
        (lambda: Stopping(lambda _: Release(stops=True)), "gave '' as a reason"),
        (lambda: Stopping(lambda _: Release(stops=False)), "handed on a stage of which every result is needed"),
        (lambda: Stopping(lambda progress: progress.scores.sort(key=str)), "changed 'progress'"),
        (Admitting, "answered 1, not True, False or None"),
    ],
)
def test_what_a_policy_breaks_of_a_stage_that_runs_is_named(make, sentence):
    with pytest.raises(AssertionError, match=re.escape(sentence)):
        check_policy(make)
