"""What the tests of the dspy adapter share: a task that dspy.GEPA can climb."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import Any

import pytest

pytest.register_assert_rewrite("dspy_task")
from dspy_task import Task, assert_consistent, summarize  # noqa: E402 - rewritten

if find_spec("dspy") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def task() -> Any:
    """A fresh :class:`Task`, with its task LM in dspy's settings, and dspy's loggers below warnings quiet."""
    made = Task()
    quiet = [logging.getLogger("dspy"), logging.getLogger("dspy.teleprompt.gepa.gepa")]
    levels = [each.level for each in quiet]
    for each in quiet:
        each.setLevel(logging.WARNING)
    with made.dspy.context(lm=made.task_lm):
        yield made
    for each, level in zip(quiet, levels, strict=True):
        each.setLevel(level)


@pytest.fixture
def summary() -> Any:
    """What a compiled program's results say, comparable between runs."""
    return summarize


@pytest.fixture
def consistent() -> Any:
    """Assert what holds of every finished run."""
    return assert_consistent


@pytest.fixture
def in_slots() -> Any:
    """Tell which of thread names are those of slots."""
    return lambda names: [name.startswith("flashevolve-slot") for name in names]
