"""Operations on a bullet that has changed since its curator read it: the policy decides, and the rest lands anyway."""

import threading

import pytest
from ace import Bullet, Playbook
from ace_task import NumberModel, contents, make_ace, make_task
from item_records import Records

from flashevolve_plugins import Flash


def run(policy, second, model=None):
    """Two curations of one playbook: the first sharpens ``old``; the second adds, and does what ``second`` says."""
    read, applied = threading.Barrier(2), threading.Event()
    first = {"op": "UPDATE", "target_id": "ctx-old", "content": "sharper"}

    def operations(rules, shown):
        assert "[ctx-old] old" in shown
        read.wait(60)
        if rules == ["rule 0"]:
            return [first]
        assert applied.wait(60)
        return [{"op": "ADD", "section": "strategies", "content": rules[0]}, second]

    ends = Records()
    playbook = Playbook()
    playbook.add(Bullet("old", id="ctx-old"))
    model = model or NumberModel()
    model.operations = operations
    flash = Flash(progress=False, plugins=[ends], evaluate="example", max_concurrency=2, staleness=policy)
    ace = make_ace(model, executor=flash, playbook=playbook)
    result = ace.adapt_offline(make_task(2), lambda record: record.merge["updated"] and applied.set())
    assert len(result.history) == 2
    (judged,) = [record for record in ends.all if record.number == 2]
    return ace, judged, result


UPDATE = {"op": "UPDATE", "target_id": "ctx-old", "content": "sharpest"}
REMOVE = {"op": "REMOVE", "target_id": "ctx-old"}


@pytest.mark.parametrize(("second", "left"), [(UPDATE, ["rule 1", "sharpest"]), (REMOVE, ["rule 1"])])
def test_full_lets_it_through(second, left):
    ace, record, _result = run("full", second)
    assert contents(ace) == left
    assert record.terminal.value == "committed"
    assert [(check.stage, check.staleness, check.verdict.value) for check in record.checks] == [("apply", 1, "accept")]


@pytest.mark.parametrize("second", [UPDATE, REMOVE])
def test_guarded_drops_it_and_the_addition_lands(second):
    ace, record, result = run("guarded", second)
    assert contents(ace) == ["rule 1", "sharper"]
    assert (record.terminal.value, record.staleness) == ("discarded", 1)
    assert record.reason == "stale by 1, more than max_staleness=0"
    assert record.entries == (3,)
    assert [each.merge["added"] != [] for each in result.history] == [False, True]


def test_the_reflective_policy_reads_it():
    model = NumberModel()
    ace, record, _ = run("reflective", UPDATE, model)
    assert contents(ace) == ["rule 1", "sharper"]
    assert record.reason == "read and discarded: it was sharpened meanwhile"
    (prompt,) = [user for role, user in model.calls if role == "Judge"]
    for text in ("old", "sharper", "sharpest", "about 1"):
        assert text in prompt


class Patching(NumberModel):
    def complete(self, system, user):
        super().complete(system, user)
        fence = max((line for line in user.splitlines() if line.startswith("```") and not line.strip("`")), key=len)
        return f"VERDICT: patch\nREASON: both\nCOMPONENT: ctx-old\n{fence}\nsharper and sharpest\n{fence}"


def test_a_patch_is_what_the_bullet_becomes():
    ace, record, result = run("reflective", UPDATE, Patching())
    assert contents(ace) == ["rule 1", "sharper and sharpest"]
    assert record.terminal.value == "committed"
    assert [check.verdict.value for check in record.checks] == ["patch"]
    assert result.history[-1].merge["updated"] == ["ctx-old"]


def test_what_nobody_has_changed_is_not_judged():
    ends = Records()
    playbook = Playbook()
    for n in range(4):
        playbook.add(Bullet(f"old {n}", id=f"ctx-{n}"))

    def operations(rules, shown):
        return [{"op": "UPDATE", "target_id": f"ctx-{rules[0].split()[1]}", "content": f"new {rules[0]}"}]

    flash = Flash(progress=False, plugins=[ends], evaluate="example", staleness="guarded", clock="virtual")
    ace = make_ace(NumberModel(operations=operations), executor=flash, playbook=playbook)
    ace.adapt_offline(make_task(4))
    assert contents(ace) == [f"new rule {n}" for n in range(4)]
    assert all(record.checks == () for record in ends.all)


def test_embedding_what_is_added_does_not_hide_what_changed_before():
    """Between a curation and its application the new texts are embedded: what changes then is judged all the same."""
    embedded = threading.Event()

    def embed(texts):
        if "rule 1" in texts:
            assert embedded.wait(60)
        return [[1.0, float(len(text))] for text in texts]

    read = threading.Barrier(2)

    def operations(rules, shown):
        assert "[ctx-old] old" in shown
        read.wait(60)
        content = "sharper" if rules == ["rule 0"] else "sharpest"
        return [{"op": "ADD", "section": rules[0], "content": rules[0]}, {**UPDATE, "content": content}]

    ends, playbook = Records(), Playbook()
    playbook.add(Bullet("old", id="ctx-old"))
    flash = Flash(progress=False, plugins=[ends], evaluate="example", max_concurrency=2, staleness="guarded")
    ace = make_ace(NumberModel(operations=operations), executor=flash, playbook=playbook)
    ace.embedder = embed
    ace.adapt_offline(make_task(2), lambda record: record.merge["updated"] and embedded.set())
    assert contents(ace) == ["rule 0", "rule 1", "sharper"]
    assert [record.terminal.value for record in ends.all] == ["committed", "discarded"]
