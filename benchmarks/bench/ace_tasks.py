"""Questions for ACE: those of real files, or short ones of our own. Right and wrong are the landscape's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flashevolve_plugins._errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashevolve_plugins.benchmarks.bench.ace_cells import AceCell
    from flashevolve_plugins.benchmarks.playbook_landscape import PlaybookLandscape

#: Where the questions of each kind of data lie: training, then validation; the two halves where that is one file.
FILES = {
    "formula": ("formula_train_subset_500.jsonl", "formula_val_subset_300.jsonl"),
    "finer": ("finer_val_100.jsonl", "finer_val_100.jsonl"),
    "landscape": (),
}
#: How many training samples and validation questions there are.
SIZES = {"formula": (500, 300), "finer": (50, 50), "landscape": (500, 300)}


class Questions(NamedTuple):
    """What is asked: for training in the host's order, and for validation."""

    train: list[str]
    val: list[str]


def questions(cell: AceCell, folder: str | None) -> Questions:
    """The questions of a setting.

    Args:
        cell: the setting.
        folder: where the real files lie; not needed for the landscape's own questions.

    Raises:
        UsageError: a file that is not there, or has too few questions.
    """
    if not FILES[cell.data]:
        return Questions(_own("Training", cell.samples), _own("Validation", cell.val))
    if folder is None:
        raise UsageError(
            f"--data {cell.data} needs --data-dir, the folder with {FILES[cell.data][0]}; --data landscape needs none."
        )
    train, val = (_read(Path(folder) / name) for name in FILES[cell.data])
    if len(set(FILES[cell.data])) == 1:
        half = len(train) // 2
        train, val = train[:half], train[half:]
    if len(train) < cell.samples or len(val) < cell.val:
        raise UsageError(
            f"--data {cell.data} has {len(train)} training samples and {len(val)} validation questions, fewer than "
            f"--samples={cell.samples} and --val={cell.val}."
        )
    return Questions(train[: cell.samples], val[: cell.val])


def _own(split: str, count: int) -> list[str]:
    return [f"{split} case {number}: which figure goes into the report?" for number in range(count)]


def _read(path: Path) -> list[str]:
    try:
        return [str(json.loads(line)["context"]) for line in path.read_text("utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): name its folder with --data-dir.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} has a line without a context ({error}): it is not the file it should be.") from error


def host_task(name: str, asked: Sequence[str], landscape: PlaybookLandscape) -> Any:
    """The host's ``Task`` for these questions, with the landscape's answers.

    Args:
        name: of the task, and of its samples.
        asked: the questions.
        landscape: knows the right answers.
    """
    import ace  # noqa: PLC0415 - only with the host

    samples = [ace.Sample(f"{name}-{n}", question, landscape.truth(question)) for n, question in enumerate(asked)]
    return ace.Task(name, samples, lambda answer, sample: answer.strip() == sample.answer)
