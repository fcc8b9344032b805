"""Many turns at once: no operation and no counter is lost, no id comes twice, one sample is one record."""

import threading

import pytest
from ace import Playbook
from ace_task import NumberModel, contents, make_ace, make_task
from item_records import Records

from flashevolve_plugins import Flash, UsageError
from flashevolve_plugins.hooks import Aggregate, Fixed, Merge

POLICIES = ("full", "guarded", "reflective", "best-first", "merge", "aggregate")


def run(model, size=40, epochs=1, online=False, **settings):
    ends = Records()
    settings.setdefault("max_concurrency", 16)
    flash = Flash(progress=False, plugins=[ends], evaluate="example", **settings)
    ace = make_ace(model, epochs=epochs, executor=flash)
    task = make_task(size)
    result = (ace.adapt_online if online else ace.adapt_offline)(task)
    return ace, result, ends.all, flash


@pytest.mark.parametrize("clock", ["local", "virtual"])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_addition_lands_once_and_every_sample_is_told_once(policy, clock):
    ace, result, records, _ = run(NumberModel(), staleness=policy, clock=clock)
    assert contents(ace) == sorted(f"rule {n}" for n in range(40))
    assert len({bullet.id for bullet in ace.playbook}) == 40
    assert sorted(record.sample_id for record in result.history) == sorted(f"s{n}" for n in range(40))
    assert [record.step for record in result.history] == list(range(1, 41))
    assert sum(len(record.merge["added"]) for record in result.history) == 40
    assert len({record.number for record in records}) == len(records)


@pytest.mark.parametrize("control", ["adaptive", Fixed(generate=3, reflect=1, apply=1)])
@pytest.mark.parametrize("policy", ["full", "merge"])
def test_few_workers_per_stage_lose_nothing(policy, control):
    ace, result, _, flash = run(NumberModel(), staleness=policy, control=control, clock="virtual")
    assert contents(ace) == sorted(f"rule {n}" for n in range(40))
    assert len(result.history) == 40
    assert flash.last_run.finished["generate"] == 40
    assert flash.last_run.workers["generate"] == (8 if control == "adaptive" else 3)


def test_a_stage_that_ace_does_not_have_is_told_before_the_first_call():
    model = NumberModel()
    stages = "metrics, generate, validate, feedback, reflect, hold, curate, embed, apply, judge"
    with pytest.raises(UsageError, match=f"Fixed names the stage 'rollout', .*: its stages are {stages}"):
        run(model, control=Fixed(rollout=1))
    assert model.calls == []


@pytest.mark.parametrize("policy", POLICIES)
def test_every_counter_is_kept(policy):
    playbook = Playbook()
    from ace import Bullet

    for n in range(5):
        playbook.add(Bullet(f"rule {n}", id=f"ctx-{n}"))
    ends = Records()
    flash = Flash(progress=False, plugins=[ends], evaluate="example", max_concurrency=16, staleness=policy)
    ace = make_ace(NumberModel(rules=5), executor=flash, playbook=playbook, epochs=2)
    ace.adapt_offline(make_task(40))
    assert [bullet.helpful_count for bullet in ace.playbook] == [16] * 5
    assert ace.playbook is playbook


def test_two_curations_from_one_playbook_both_land():
    both = threading.Barrier(2)

    def reached(role, user):
        if role == "Curator":
            both.wait(60)  # neither can have seen the other's
            assert "rule" not in user.split("NEW INSIGHTS")[0]

    ace, result, _, _ = run(NumberModel(reached=reached), size=2, staleness="full")
    assert contents(ace) == ["rule 0", "rule 1"]
    assert len(result.history) == 2


def test_a_generation_reads_the_newest_playbook_and_no_half_applied_one():
    ace, _, _, _ = run(NumberModel(), size=60, staleness="full", max_concurrency=4, clock="virtual")
    model = ace.generator.llm
    shown = [user.count("rule ") for role, user in model.calls if role == "Generator"]
    assert shown == sorted(shown)
    assert shown[-1] >= 60 - 4 - 4


def test_the_pool_version_counts_applied_deltas():
    _ace, result, records, flash = run(NumberModel(rules=10), staleness="full", clock="virtual")
    changed = [record for record in result.history if record.merge["added"] or record.merge["helpful_marked"]]
    assert flash.last_run.version == 1 + len(changed)
    assert sorted(version for record in records for version in record.entries) == list(range(2, 2 + len(changed)))


def test_samples_begin_in_the_hosts_order():
    ace, _, _, _ = run(NumberModel(), epochs=2, clock="virtual", staleness="full")
    asked = [user.split("QUERY:\n")[1].split("\n")[0] for role, user in ace.generator.llm.calls if role == "Generator"]
    assert asked == [f"question {n}" for n in range(40)] * 2


@pytest.mark.parametrize(("policy", "calls"), [(Merge(max_batch=8), 24), (Aggregate(group=5), 10)])
def test_a_merge_queue_curates_several_lessons_in_one_call(policy, calls):
    ace, result, records, _flash = run(NumberModel(), staleness=policy, clock="virtual")
    assert contents(ace) == sorted(f"rule {n}" for n in range(40))
    assert ace.curator.llm.count("Curator") <= calls
    merges = [record for record in records if record.members]
    members = [number for record in merges for number in record.members]
    assert len(set(members)) == len(members) > 20
    into = {record.number: record.merged_into for record in records if record.terminal.value == "merged"}
    assert into == {number: record.number for record in merges for number in record.members}
    assert len(result.history) == 40


def test_an_epoch_barrier_lets_every_delta_land_first():
    for barrier, least in ((True, 40), (None, 25)):
        ace, _, _, _ = run(NumberModel(), epochs=2, clock="virtual", staleness="full", epoch_barrier=barrier)
        shown = [user.count("[ctx-") for role, user in ace.generator.llm.calls if role == "Generator"]
        assert min(shown[40:]) >= least
        assert (min(shown[40:]) == 40) == bool(barrier)


def test_a_staleness_bound_holds_the_next_epoch_back():
    ace, _, _, _ = run(
        NumberModel(), epochs=2, clock="virtual", staleness="guarded", max_staleness=2, max_concurrency=3
    )
    shown = [user.count("[ctx-") for role, user in ace.generator.llm.calls if role == "Generator"]
    assert 38 <= min(shown[40:]) < 40


def test_online_runs_too():
    ace, result, _, _ = run(NumberModel(), online=True, staleness="merge")
    assert {record.phase for record in result.history} == {"online"}
    assert len(ace.playbook) == 40


def test_an_id_that_is_drawn_twice_costs_no_bullet(same_ids, monkeypatch):
    import uuid

    drawn = iter([1, 1, *range(2, 99)])
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=next(drawn) << 96))
    ace, result, _, _ = run(NumberModel(), size=5, staleness="full", clock="virtual")
    assert contents(ace) == [f"rule {n}" for n in range(5)]
    assert sorted(name for record in result.history for name in record.merge["added"]) == sorted(
        bullet.id for bullet in ace.playbook
    )


def test_every_text_is_embedded_once():
    asked = []

    def embed(texts):
        asked.extend(texts)
        return [[float(text.split()[1] == str(n)) for n in range(40)] for text in texts]

    flash = Flash(progress=False, evaluate="example", max_concurrency=8, staleness="full", clock="virtual")
    ace = make_ace(NumberModel(), executor=flash, dedup_threshold=0.9)
    ace.embedder = embed
    ace.adapt_offline(make_task(40))
    assert sorted(asked) == contents(ace)
    assert ace.embedder is embed
    assert len(ace.playbook) == 40


def test_in_virtual_time_too_a_call_reads_the_playbook_as_it_is_when_it_begins():
    """Two slots, one epoch of two samples: both are curated at once, and neither curator sees what the other writes."""
    model = NumberModel()
    ace, _, _, _ = run(
        model, size=2, epochs=2, staleness="full", max_concurrency=2, clock="virtual", epoch_barrier=True
    )
    curated = [user.partition("NEW INSIGHTS")[0].count("[ctx-") for role, user in model.calls if role == "Curator"]
    assert curated == [0, 0]
    shown = [user.count("[ctx-") for role, user in model.calls if role == "Generator"]
    assert shown == [0, 0, 2, 2]
    assert len(ace.playbook) == 2
