"""The budget's books."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from flashevolve_plugins._events import EndItem, Instruction, ItemOffered, OfferItem, StartSample
from flashevolve_plugins._ledger import Ledger
from flashevolve_plugins._model import Limits, Sample, Stage
from flashevolve_plugins._scheduler import OUT_OF_BUDGET, Scheduler


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


def test_what_was_paid_for_before_is_not_free_and_will_never_be() -> None:
    ledger = Ledger(10, earlier=Earlier({1: 4}))
    assert ledger.free == 6
    assert ledger.affords(6)
    assert not ledger.could_ever_afford(7)


def validating(paid: dict[int, int]) -> tuple[Scheduler, list[Instruction]]:
    """What follows when item 1 is to begin a validation of 7 calls, with 10 in all, of which these are paid for."""
    limits = Limits(slots={"task": 9}, stages=("validate",), entry="task", budget=10, offer_cost=7)
    scheduler = Scheduler(limits)
    scheduler.ledger.earlier = Earlier(paid)
    assert scheduler.begin() == [OfferItem(1)]
    stage = Stage("validate", tuple(Sample(str, "task", cost=1) for _ in range(7)), commits=True)
    return scheduler, scheduler.handle(ItemOffered(1, stage))


def test_an_item_need_not_pay_again_and_nobody_else_gets_what_it_has_paid() -> None:
    scheduler, out = validating({1: 4})
    assert sum(isinstance(each, StartSample) for each in out) == 7
    assert not scheduler.may_offer()


def test_an_item_ends_where_what_others_have_paid_leaves_too_little() -> None:
    _, out = validating({2: 4})
    assert [each.reason for each in out if isinstance(each, EndItem)] == [OUT_OF_BUDGET]


class Earlier(SimpleNamespace):
    """Items, and the calls that they have paid for."""

    def __init__(self, paid: dict[int, int]) -> None:
        self.paid, self.unserved = paid, sum(paid.values())

    def unserved_of(self, item: int) -> int:
        return self.paid.get(item, 0)
