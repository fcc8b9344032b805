"""What the tests of this folder share."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def task() -> Iterator[Any]:
    """A task of dspy's, whose model is in force."""
    import dspy
    from dspy_task import Task

    made = Task()
    with dspy.context(lm=made.task_lm):
        yield made
