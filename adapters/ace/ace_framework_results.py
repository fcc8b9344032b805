"""What ``OfflineACE.run`` gives and writes: results, checkpoints, words about failed samples."""

from __future__ import annotations

import json
import logging
from dataclasses import is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._redact import redact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashevolve_plugins.adapters.ace.host import Turn

logger = logging.getLogger("ace.adaptation")  # where the host's own run speaks


class Results:
    """The results of one run, in the order in which its turns end.

    Args:
        turns: the run's turns.
        every: results from one checkpoint to the next, if there are to be any.
        folder: the checkpoints' directory.
    """

    def __init__(self, turns: Sequence[Turn], every: int | None, folder: str | None) -> None:
        self._turns, self._every, self._folder = turns, every, folder
        self._kept: list[tuple[int, Any]] = []
        self._failures: list[tuple[int, int, str]] = []
        self._records: list[tuple[int, Any]] = []
        self._lines: dict[str, int] = {}

    def add(self, turn: Turn, result: Any, book: Any) -> None:
        """Keep a result; a checkpoint is the live skillbook after so many."""
        self._kept.append((turn.number, result))
        number = len(self._kept)
        if not self._every or not self._folder or number % self._every:
            return
        try:
            for name in (f"ace_checkpoint_{number}.json", "ace_latest.json"):
                book.save_to_file(str(Path(self._folder) / name))
            logger.info("Checkpoint after %s samples, in %s.", number, self._folder)
        except Exception as error:  # noqa: BLE001 - as the host, to whom the sample has failed then
            self.failed(turn, error)

    def failed(self, turn: Turn, error: BaseException | str) -> None:
        """Warn, and count it."""
        why = redact(error if isinstance(error, str) else f"{type(error).__name__}: {redact(str(error))[:200]}")
        logger.warning("Sample %s of epoch %s failed: %s", turn.step, turn.epoch, why)
        self._failures.append((turn.epoch, turn.step, redact(str(error))[:100]))

    def dropped(self, error: Exception) -> None:
        """Warn of an operation that could not be applied, of a curation for several samples."""
        why = redact(str(error))[:200]
        logger.warning("An operation for several samples was dropped: %s: %s", type(error).__name__, why)

    def finish(self) -> list[Any]:
        """All results."""
        if self._failures:
            logger.info("%s of %s samples failed.", len(self._failures), len(self._turns))
            logger.debug("Epoch, sample and error of each that failed: %s", self._failures)
        return [result for _, result in self._kept]

    def dump(self) -> dict[str, Any]:
        """For JSON. Each result repeats the skillbook: its lines are kept once."""
        for number, result in self._kept[len(self._records) :]:
            record = json.loads(json.dumps({**vars(result), "sample": None}, default=_plain, skipkeys=True))
            lines = result.skillbook_snapshot.split("\n")
            record["skillbook_snapshot"] = [self._lines.setdefault(line, len(self._lines)) for line in lines]
            self._records.append((number, record))
        return {"records": self._records, "lines": list(self._lines), "failures": self._failures}

    def load(self, state: dict[str, Any], package: Any) -> None:
        """Take up what :meth:`dump` gave."""
        for number, record in state["records"]:
            result = package.ACEStepResult(**record)
            result.sample = self._turns[number].sample
            result.agent_output = package.AgentOutput.model_validate(result.agent_output)
            result.environment_result = package.EnvironmentResult(**result.environment_result)
            result.reflection = package.ReflectorOutput.model_validate(result.reflection)
            result.skill_manager_output = package.SkillManagerOutput.model_validate(result.skill_manager_output)
            result.skillbook_snapshot = "\n".join(state["lines"][line] for line in result.skillbook_snapshot)
            self._kept.append((number, result))
        self._failures = [(epoch, step, why) for epoch, step, why in state["failures"]]


def _plain(value: Any) -> Any:
    """What the host's classes hold; of anything else only its words."""
    return vars(value) if hasattr(type(value), "model_fields") or is_dataclass(value) else str(value)
