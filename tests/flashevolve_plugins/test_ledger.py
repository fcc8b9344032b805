"""The budget's books."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flashevolve_plugins._ledger import Ledger


def test_what_is_reserved_is_no_longer_free() -> None:
    ledger = Ledger(10)
    ledger.reserve(7)
    assert ledger.free == 3
    assert ledger.affords(3)
    assert not ledger.affords(4)


def test_a_settled_reservation_gives_back_what_was_not_spent() -> None:
    ledger = Ledger(10, spent=1)
    ledger.reserve(7)
    ledger.settle(5, 2)
    assert (ledger.spent, ledger.reserved, ledger.free) == (3, 2, 5)
    ledger.settle(2, 0)
    assert (ledger.spent, ledger.reserved, ledger.free) == (3, 0, 7)


def test_what_is_reserved_may_come_back_but_what_is_spent_may_not() -> None:
    ledger = Ledger(10, spent=4)
    ledger.reserve(6)
    assert not ledger.affords(1)
    assert ledger.could_ever_afford(6)
    assert not ledger.could_ever_afford(7)


def test_no_limit_affords_everything() -> None:
    ledger = Ledger(None)
    ledger.reserve(10**12)
    assert ledger.affords(10**12)
    assert ledger.could_ever_afford(10**12)


def test_a_spent_budget_still_affords_what_costs_nothing() -> None:
    ledger = Ledger(5, spent=5)
    assert ledger.affords(0)
    assert not ledger.affords(1)


@given(st.integers(0, 50), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30))
def test_a_ledger_that_is_asked_first_never_passes_its_limit(limit: int, stages: list[tuple[int, int]]) -> None:
    ledger, promised = Ledger(limit), []
    for cost, spent in stages:
        if ledger.affords(cost):
            ledger.reserve(cost)
            promised.append((cost, min(cost, spent)))
        elif promised:
            ledger.settle(*promised.pop(0))
        assert 0 <= ledger.spent + ledger.reserved <= limit
    for cost, spent in promised:
        ledger.settle(cost, spent)
    assert ledger.reserved == 0
    assert ledger.spent <= limit
