"""The rows are complete, and the page of the documentation says what they say."""

import inspect

import gepa
import gepa_options
import pytest
from options import Option
from page import PAGE, rows, text


def test_every_parameter_of_gepa_optimize_has_a_row_and_every_row_a_parameter():
    assert {each.name for each in gepa_options.OPTIONS} == set(inspect.signature(gepa.optimize).parameters) - {
        "executor"
    }


def test_every_row_says_something_of_its_own():
    names = [(each.host, each.name, label) for each in rows() for label in each.cases]
    assert len(names) == len(set(names))


def test_the_page_is_made_of_the_rows(source_root):
    assert (source_root / PAGE).read_text(encoding="utf-8") == text(rows()), "run tests/compatibility/page.py"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"host": "gepa"}, "must be one of"),
        ({"cases": {}}, "must not be empty"),
        ({"unchanged": ("another",)}, "every label"),
    ],
)
def test_a_row_that_cannot_be_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Option(**{"host": "gepa.optimize", "name": "seed", "cases": {"7": {"seed": 7}}, **wrong})
