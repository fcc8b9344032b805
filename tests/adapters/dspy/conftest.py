"""What the tests of the dspy adapter share: a task that dspy.GEPA can climb."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest

pytest.register_assert_rewrite("dspy_task")
from dspy_task import Task, assert_consistent, summarize  # noqa: E402 - rewritten

from flashevolve_plugins import BackendError  # noqa: E402
from flashevolve_plugins._driver import Driver  # noqa: E402
from flashevolve_plugins._local import LocalDriver  # noqa: E402

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
def heard(monkeypatch) -> Iterator[threading.Event]:
    """Set once the run's own thread has heard that a sample raised what ends the run.

    No further sample of its stage begins then, and those of others on threads wait until the test is over.
    """
    event, over, sample_over, start = threading.Event(), threading.Event(), Driver._sample_over, LocalDriver._start

    def hear(driver, call, result, error, *more) -> None:
        if isinstance(error, BackendError) or not isinstance(error, (Exception, type(None))):
            event.set()
        sample_over(driver, call, result, error, *more)

    def wait(driver, item, index, sample) -> None:
        late = event.is_set() and not sample.asynchronous
        start(driver, item, index, replace(sample, call=over.wait) if late else sample)

    monkeypatch.setattr(Driver, "_sample_over", hear)
    monkeypatch.setattr(LocalDriver, "_start", wait)
    yield event
    over.set()


@pytest.fixture
def in_slots() -> Any:
    """Tell which of thread names are those of slots."""
    return lambda names: [name.startswith("flashevolve-slot") for name in names]
