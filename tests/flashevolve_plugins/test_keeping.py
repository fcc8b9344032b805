"""What is counted of the samples whose results are kept."""

from flashevolve_plugins._keeping import Keeper, Pickled
from flashevolve_plugins._model import Sample
from flashevolve_plugins._store import Store


def test_an_abandoned_call_that_returns_when_its_item_is_over_counts_for_nothing(tmp_path):
    store = Store(tmp_path)
    keeper = Keeper(store)
    keeper.open(1, b"recipe")
    first, second = (
        keeper.keeping(1, Sample(lambda: "found", "task", cost=3, kept=Pickled(key))) for key in (b"a", b"b")
    )
    first.call()
    assert keeper.open_calls == 3
    keeper.told([1], {"i": 0, "trace": ""}, goes_on=False)
    assert keeper.open_calls == 0
    keeper.saved()
    second.call()
    assert keeper.open_calls == 0  # the host's state has not counted it either
    store.close()


def test_a_result_that_is_known_from_before_says_nothing_of_how_long_its_sample_takes(tmp_path):
    took = []
    sample = Sample(lambda: "found", "task", kept=Pickled(b"a"), took=took.append)
    with_result = Store(tmp_path)
    first = Keeper(with_result)
    first.open(1, b"recipe")
    kept = first.keeping(1, sample)
    assert (kept.call(), kept.took) == ("found", took.append)
    with_result.close()
    store = Store(tmp_path)
    again = Keeper(store)
    again.open(1, b"recipe")
    kept = again.keeping(1, sample)
    assert (kept.call(), kept.took) == ("found", None)
    store.close()


def test_each_item_is_given_what_it_has_paid_for_itself(tmp_path):
    before = Store(tmp_path)
    first = Keeper(before)
    for item in (1, 2):
        first.open(item, b"recipe")
        first.keeping(item, Sample(lambda: "found", "task", cost=3, kept=Pickled(b"the same"))).call()
    before.close()
    store = Store(tmp_path)
    again = Keeper(store)
    for item, row in enumerate((row.number for row in store.items), start=1):
        again.open(item, b"", row)
    again.keeping(2, Sample(lambda: "paid twice", "task", cost=3, kept=Pickled(b"the same")))
    assert (again.unserved_of(1), again.unserved_of(2), again.unserved) == (3, 0, 3)
    store.close()
