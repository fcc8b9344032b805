"""``ACE.run("offline", ...)``: training in epochs, with validations beside it."""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from flashevolve_plugins.adapters.ace.ace_agent_results import Paths, Results
from flashevolve_plugins.adapters.ace.host import Turn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashevolve_plugins.adapters.ace.ace_agent_roles import Roles

logger = logging.getLogger("flashevolve_plugins")


@dataclass
class Check:
    """One validation.

    Args:
        epoch: the epoch.
        step: how many of its samples were in the playbook.
        text: the playbook then.
        numbers: the turns of these samples, in the order in which they were told.
        train: their accuracies, once all their rows are complete.
        result: the host's results and error log, once there.
    """

    epoch: int
    step: int
    text: str
    numbers: list[int] = field(default_factory=list)
    train: dict[str, float] | None = None
    result: list[Any] | None = None


class Offline(Results):
    """The results of offline training.

    Args:
        ace: the user's ``ACE``.
        roles: its roles.
        paths: where the files lie.
        train: the training samples.
        validation: the validation samples.
    """

    mode = "offline"

    def __init__(self, ace: Any, roles: Roles, paths: Paths, train: Sequence[Any], validation: Sequence[Any]) -> None:
        params, size = roles.params, len(train)
        turns = [
            Turn(epoch * size + index, epoch + 1, index + 1, sample)
            for epoch in range(params["num_epochs"])
            for index, sample in enumerate(train)
        ]
        super().__init__(ace, roles, paths, turns, size)
        self._validation = validation
        self._told: defaultdict[int, list[int]] = defaultdict(list)  # epoch -> its turns, in the order they were told
        self._failed: defaultdict[int, int] = defaultdict(int)  # epoch -> how many of its turns gave nothing
        self._checked: set[int] = set()  # epochs with a validation
        self._checks: list[Check] = []  # those that are not written yet, in order
        self._error_logs: list[dict[str, Any]] = []
        self._best = 0.0
        ace.best_playbook = ace.playbook

    def step_id(self, turn: Turn) -> str:
        """As the host has it."""
        return f"train_e_{turn.epoch}_s_{turn.step}"

    def place(self, turn: Turn) -> dict[str, Any]:
        """Epoch and step."""
        return {"epoch": turn.epoch, "step": turn.step}

    def told(self, turn: Turn, before: dict[str, Any], text: str) -> None:
        """Save and validate where that is due."""
        super().told(turn, before, text)
        told, params = self._told[turn.epoch], self.roles.params
        told.append(turn.number)
        if len(told) % params["save_steps"] == 0:
            self.keep(f"epoch_{turn.epoch}_step_{len(told)}_playbook.txt", text)
        if len(told) % params["eval_steps"] == 0:
            self._check(turn.epoch, text)
        self._end_epoch(turn.epoch)

    def over(self, turn: Turn) -> None:
        """It gave nothing."""
        self._failed[turn.epoch] += 1
        self._end_epoch(turn.epoch)

    def _end_epoch(self, epoch: int) -> None:
        """Once all its turns are over. The host validates no epoch that has fewer samples than ``eval_steps``."""
        if len(self._told[epoch]) + self._failed[epoch] < self.steps:
            return
        if self._told[epoch] and epoch not in self._checked and not self.roles.lockstep:
            self._check(epoch, self.ace.playbook)
        self.keep(f"epoch_{epoch}_final_playbook.txt", self.ace.playbook)

    # -- validations ------------------------------------------------------------------------------------------------

    def _check(self, epoch: int, text: str) -> None:
        check = Check(epoch, len(self._told[epoch]), text, list(self._told[epoch]))
        self._checked.add(epoch)
        self._checks.append(check)
        self._validate(check)

    def _validate(self, check: Check) -> None:
        name = f"validation of epoch {check.epoch}, step {check.step}"
        self.test(name, self._validation, check.text, partial(self._validated, check))

    def _validated(self, check: Check, result: Any, errors: Any) -> None:
        check.result = [result, errors]
        logger.info("Epoch %s, step %s: validation accuracy %.3f.", check.epoch, check.step, result["accuracy"])
        self.advance()

    def advance(self) -> None:
        """Write validations in the order of their steps."""
        for check in self._checks:
            if check.train is None and self.measured(check.numbers):
                check.train = self.train_accuracies(check.numbers)
        while self._checks and self._checks[0].result is not None and self._checks[0].train is not None:
            self._write_check(self._checks.pop(0))

    def _write_check(self, check: Check) -> None:
        result, errors = check.result or (None, None)
        place = {"epoch": check.epoch, "step": check.step}
        of_playbook = self.of_playbook(check.text)
        self.train_results.append({**place, "train_result": check.train, "val_result": result, **of_playbook})
        self._error_logs.append({**place, "val_results": result, "error_log": errors})
        for rows in (self.train_results, self._error_logs):  # epochs may overlap
            rows.sort(key=lambda row: (row["epoch"], row["step"]))
        if result and result["accuracy"] > self._best:
            self._best, self.ace.best_playbook = result["accuracy"], check.text
        self._write_train_results()
        self.write("val_results.json", self._error_logs)

    def _write_train_results(self) -> None:
        self.write("train_results.json", {"best_accuracy": self._best, "results": self.train_results})

    # -- the end ----------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Rows and playbooks."""
        self._write_train_results()
        super().save()
        self.write_text("best_playbook.txt", self.ace.best_playbook)

    def finish(self) -> dict[str, Any]:
        """The best accuracy."""
        self.save()
        return {"best_validation_accuracy": self._best}

    def dump(self) -> dict[str, Any]:
        """With what is validated."""
        return {
            **super().dump(),
            "told": list(self._told.items()),
            "failed": list(self._failed.items()),
            "checked": sorted(self._checked),
            "checks": [asdict(check) for check in self._checks],
            "error_logs": self._error_logs,
            "best": [self._best, self.ace.best_playbook],
        }

    def load(self, state: dict[str, Any]) -> None:
        """Validations that were under way begin anew."""
        super().load(state)
        self._told.update(state["told"])
        self._failed.update(state["failed"])
        self._checked = set(state["checked"])
        self._checks = [Check(**each) for each in state["checks"]]
        self._error_logs = state["error_logs"]
        self._best, self.ace.best_playbook = state["best"]
        for check in self._checks:
            if check.result is None:
                self._validate(check)
