"""What the two policies take from the queue, and what the merge queue learns."""

import pytest

from flashevolve_plugins.hooks import (
    BestFirst,
    Evidence,
    ItemRecord,
    ItemView,
    Merge,
    Pool,
    PoolEntry,
    Snapshot,
    Terminal,
)
from flashevolve_plugins.hooks.depth import FIRST_BATCH, LEAST_SURVIVAL, MAX_BATCH, MAX_ITEMS, SEEN
from flashevolve_plugins.hooks.prompts import MalformedAnswerError

SEED = {"a": "one"}


@pytest.fixture
def pool():
    """The seed, and a better candidate made from it."""
    made = Pool()
    made.append([PoolEntry(1, SEED, 0.25, scores={1: 0.25}), PoolEntry(2, {"a": "one\ntwo"}, 0.5, (1,), 1, {1: 0.5})])
    return made


def waiting(number, gain=1.0, parent=2, text=None, failed_with=()):
    text = f"one\ntwo\nline {number}" if text is None else text
    evidence = Evidence({"a": text}, parent, (0.0,), (gain,))
    return ItemView(number, parent, 0, "queue", evidence=evidence, failed_with=failed_with)


def merged(members, terminal=Terminal.COMMITTED, text=None):
    """The record of a merge."""
    evidence = None if text is None else Evidence({"a": text}, 2, (0.0,), (1.0,))
    return ItemRecord(99, terminal, "", 2, 0, 0, (), evidence=evidence, members=tuple(members))


def all_lines(items):
    return "\n".join(["one", "two", *(f"line {each.number}" for each in items)])


def test_best_first_takes_the_largest_gain_of_what_was_made_from_the_best(pool):
    items = [waiting(3, 1.0), waiting(4, 3.0, parent=1), waiting(5, 2.0)]
    batch = BestFirst().take(items, pool, last=False)
    assert (batch.members, batch.write) == ((5,), None)
    assert batch.discard == {4: "made from what is no longer the best"}


def test_best_first_waits_where_only_old_work_waits(pool):
    assert BestFirst().take([waiting(4, parent=1)], pool, last=True).members == ()


def test_one_that_was_made_from_the_best_needs_no_merge(pool):
    batch = Merge().take([waiting(3)], pool, last=False)
    assert (batch.members, batch.write) == ((3,), None)
    assert Merge().take([waiting(3, parent=1)], pool, last=False).write is not None


def test_a_merge_takes_the_largest_gains_first(pool):
    items = [waiting(number, gain=number % 7) for number in range(3, 20)]
    batch = Merge().take(items, pool, last=False)
    assert batch.members == (6, 13, 5, 12)
    assert len(batch.members) == FIRST_BATCH


@pytest.mark.parametrize(
    ("examples", "options", "least"),
    [
        (39, {}, 1),
        (100, {}, 2),
        (300, {}, 8),
        (900, {}, 8),
        (320, {"max_batch": 3}, 3),
        (320, {"least": 5}, 5),
        (9, {"least": 20}, 8),
    ],
)
def test_the_dearer_a_validation_the_more_wait_for_it(examples, options, least):
    pool = Pool()
    pool.append([PoolEntry(1, SEED, 0.25, scores=dict.fromkeys(range(examples), 0.25))])
    items = [waiting(number, parent=1) for number in range(3, 3 + least)]
    assert len(Merge(**options).take(items, pool, last=False).members) == least
    if least > 1:
        assert Merge(**options).take(items[:-1], pool, last=False).members == ()
        assert len(Merge(**options).take(items[:-1], pool, last=True).members) == least - 1
        failed = [waiting(2, parent=1, failed_with=(2,))]
        assert Merge(**options).take(failed, pool, last=False).members == (2,)


@pytest.mark.parametrize(
    ("examples", "options", "items"),
    [
        (100, {}, MAX_ITEMS),
        (300, {}, 24),
        (900, {}, 24),
        (900, {"max_batch": 3}, MAX_ITEMS),
        (100, {"least": 7}, 21),
        (300, {"max_items": 5}, 5),
    ],
)
def test_where_many_must_wait_more_are_in_flight(examples, options, items):
    policy = Merge(**options)
    policy.flashevolve_pool_updated(PoolEntry(1, SEED, 0.25, scores=dict.fromkeys(range(examples), 0.25)))
    policy.flashevolve_pool_updated(PoolEntry(2, SEED, 0.25, scores={1: 0.25}))
    assert policy.flashevolve_plan(Snapshot(validates=True)).max_items == items


@pytest.mark.parametrize(("examples", "items"), [(0, MAX_ITEMS), (100, MAX_ITEMS), (300, 24)])
def test_until_the_seed_is_validated_the_host_says_how_dear_a_validation_is(examples, items):
    assert Merge().flashevolve_plan(Snapshot(validates=True, examples=examples)).max_items == items


@pytest.mark.parametrize(
    ("examples", "slots", "budget", "options", "least", "items"),
    [
        (100, 8, 780, {}, 6, 18),
        (100, 8, 2_500, {}, 2, 16),  # many validations
        (100, 8, None, {}, 2, 16),
        (100, 25, 780, {}, 2, 16),  # few rounds
        (101, 25, 780, {}, 6, 18),
        (300, 32, 3_000, {}, 12, 36),
        (300, 32, 3_000, {"max_batch": 5}, 5, 16),
        (300, 32, 3_000, {"least": 7}, 7, 21),
        (600, 32, 3_000, {}, 12, 36),
        (601, 32, 3_000, {}, 8, 24),  # hardly any validation
        (9, 1, 100, {}, 1, 16),
    ],
)
def test_where_a_budget_pays_for_few_validations_of_many_rounds_more_wait(
    examples, slots, budget, options, least, items
):
    policy, pool = Merge(**options), Pool()
    snapshot = Snapshot(slots={"task": slots, "reflection": 99}, entry="task", budget=budget, validates=True)
    policy.flashevolve_plan(snapshot)  # before the seed is validated
    pool.append([PoolEntry(1, SEED, 0.25, scores=dict.fromkeys(range(examples), 0.25))])
    policy.flashevolve_pool_updated(pool.entries[0])
    queue = [waiting(number, parent=1) for number in range(3, 3 + least)]
    assert least == 1 or policy.take(queue[1:], pool, last=False).members == ()
    assert len(policy.take(queue, pool, last=False).members) == least
    assert policy.flashevolve_plan(snapshot).max_items == items


def test_merges_grow_to_as_many_as_must_wait_for_one():
    policy, pool = Merge(), Pool()
    pool.append([PoolEntry(1, SEED, 0.25, scores=dict.fromkeys(range(300), 0.25))])
    policy.flashevolve_pool_updated(pool.entries[0])
    policy.flashevolve_plan(Snapshot(slots={"task": 32}, entry="task", budget=3_000, validates=True))
    items, sizes = [waiting(number, parent=1) for number in range(3, 40)], []
    for terminal in (Terminal.COMMITTED, Terminal.REJECTED, Terminal.COMMITTED, Terminal.COMMITTED):
        taken = policy.take(items, pool, last=False).members
        sizes.append(len(taken))
        policy.flashevolve_item_ended(merged(taken, terminal, all_lines(items)))
    assert sizes == [12, 12, 6, 12]


def test_what_the_best_holds_already_is_discarded(pool):
    batch = Merge().take([waiting(3, parent=1, text="one\ntwo"), waiting(4)], pool, last=False)
    assert batch.discard == {3: "what it would be merged onto holds its change already"}
    assert batch.members == (4,)


def test_merges_that_pass_grow_and_one_that_fails_halves_the_next(pool):
    policy, sizes = Merge(), []
    items = [waiting(number) for number in range(3, 40)]
    for terminal in (Terminal.COMMITTED, Terminal.COMMITTED, Terminal.REJECTED, Terminal.REJECTED, Terminal.REJECTED):
        taken = policy.take(items, pool, last=False).members
        sizes.append(len(taken))
        policy.flashevolve_item_ended(merged(taken, terminal, all_lines(items)))
    assert sizes == [FIRST_BATCH, MAX_BATCH, MAX_BATCH, MAX_BATCH // 2, MAX_BATCH // 4]


def test_members_of_a_failed_merge_come_back_in_halves_and_alone_at_last(pool):
    items = [waiting(number, number, failed_with=(4,)) for number in (3, 4, 5, 6)] + [waiting(7, 9.0)]
    assert Merge().take(items, pool, last=False).members == (6, 5)
    items = [waiting(3, failed_with=(4, 2)), waiting(4, 2.0, failed_with=(4, 2))]
    assert Merge().take(items, pool, last=False).members == (4,)
    batch = Merge().take([waiting(3, failed_with=(4, 2, 1))], pool, last=False)
    assert batch.discard == {3: "its change does not help the current best"}


def test_a_member_whose_merge_could_not_be_paid_says_so(pool):
    policy = Merge()
    taken = policy.take([waiting(3, parent=1)], pool, last=False).members
    policy.flashevolve_item_ended(merged(taken, Terminal.DISCARDED))
    batch = policy.take([waiting(3, parent=1, failed_with=(1,))], pool, last=False)
    assert batch.discard == {3: "the budget cannot pay for its merge"}


@pytest.mark.parametrize(("kept", "merges"), [(1.0, True), (0.5, True), (0.25, False), (0.0, False)])
def test_where_too_little_survives_it_goes_on_as_best_first(pool, kept, merges):
    policy = Merge(max_batch=4)
    for _ in range(SEEN // 2):
        assert policy.merges
        items = [waiting(number) for number in range(3, 7)]
        taken = policy.take(items, pool, last=False).members
        policy.flashevolve_item_ended(merged(taken, text=all_lines(items[: round(4 * kept)])))
    assert policy.merges is merges is (kept >= LEAST_SURVIVAL)
    batch = policy.take([waiting(3), waiting(4, 2.0), waiting(5, 3.0, parent=1)], pool, last=False)
    assert (len(batch.members) == 3) is merges
    assert (batch.write is None) is not merges


def test_a_model_whose_answers_cannot_be_read_is_not_asked_for_ever(pool):
    policy = Merge()
    for _ in range(SEEN // 2):
        batch = policy.take([waiting(3, parent=1), waiting(4, parent=1)], pool, last=False)
        with pytest.raises(MalformedAnswerError):
            batch.write(lambda _: "no", {"a": "one\ntwo"}, changes(3, 4))
        policy.flashevolve_item_ended(merged(batch.members, Terminal.SKIPPED))
    assert not policy.merges


def changes(*numbers):
    from flashevolve_plugins.hooks import Change

    return [Change(SEED, {"a": f"one\nline {number}"}) for number in numbers]


def test_a_merge_whose_text_holds_nothing_new_says_nothing_of_the_next(pool):
    policy = Merge()
    for _ in range(SEEN):
        batch = policy.take([waiting(3, parent=1), waiting(4, parent=1)], pool, last=False)
        text = batch.write(lambda _: "````\none\ntwo\n````", {"a": "one\ntwo"}, changes(3, 4))
        assert text == {"a": "one\ntwo"}
        policy.flashevolve_item_ended(merged(batch.members, Terminal.SKIPPED))
    assert policy.merges


def test_a_text_longer_than_allowed_is_no_merge(pool):
    batch = Merge(max_characters=20).take([waiting(3, parent=1), waiting(4, parent=1)], pool, last=False)
    said = "````\none\ntwo\nline 3\nline 4\n````"
    with pytest.raises(MalformedAnswerError, match="max_characters=20"):
        batch.write(lambda _: said, {"a": "one\ntwo"}, changes(3, 4))


def test_no_component_hides_behind_a_longer_one_that_stays_as_it_is(pool):
    policy, long = Merge(max_characters=20), "x" * 100
    batch = policy.take([waiting(3, parent=1), waiting(4, parent=1)], pool, last=False)
    both = [type(each)({"a": "one", "b": long}, {**each.after, "b": long}) for each in changes(3, 4)]
    said = "````\none\ntwo\nline 3\nline 4\n````"
    with pytest.raises(MalformedAnswerError, match="text of a would be longer than max_characters=20"):
        batch.write(lambda _: said, {"a": "one\ntwo", "b": long}, both)


def test_without_a_model_only_what_needs_one_stops_the_merging(pool):
    policy = Merge()
    batch = policy.take([waiting(3), waiting(4)], pool, last=False)
    one = changes(3)
    assert batch.write(None, SEED, one) == one[0].after
    assert policy.merges
    with pytest.raises(Exception, match="reflection model"):
        batch.write(None, {"a": "other"}, one)
    assert not policy.merges


def test_it_merges_onto_the_best_mean_or_onto_the_best_of_most_examples():
    pool = Pool()
    pool.append(
        [
            PoolEntry(1, SEED, 0.6, scores={1: 0.6, 2: 0.6, 3: 0.6}),
            PoolEntry(2, {"a": "one\ntwo"}, 0.55, (1,), 1, {1: 0.8, 2: 0.8, 3: 0.05}),
        ]
    )
    items = [waiting(3), waiting(4)]
    assert Merge().take(items, pool, last=False).onto == 1
    assert Merge(onto="frontier").take(items, pool, last=False).onto == 2
