"""What becomes of the turns of ace-agent/ace that are over: rows, generations for metrics, files."""

from __future__ import annotations

import json
import shutil
from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashevolve_plugins.adapters.ace.ace_agent_roles import NO_ANSWER, done
from flashevolve_plugins.adapters.ace.host import Extra, Turn

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flashevolve_plugins.adapters.ace.ace_agent_roles import Roles

METRICS, VALIDATE = "metrics", "validate"


@dataclass(frozen=True)
class Paths:
    """Where the host's files of a run lie.

    Args:
        run: its folder.
        usage_log: which bullets were used in each turn.
        playbooks: the folder of its intermediate playbooks.
    """

    run: str
    usage_log: str
    playbooks: str


@dataclass
class Row:
    """A turn that is over.

    Args:
        number: the turn's.
        before: what the host's file says of its first answer.
        after: of the answer once its lesson was in the playbook; ``None`` as long as that is not known.
        text: the playbook then; empty once ``after`` is known.
    """

    number: int
    before: dict[str, Any]
    after: dict[str, Any] | None
    text: str


class Results(ABC):
    """What the two modes have in common.

    Args:
        ace: the user's ``ACE``.
        roles: its roles.
        paths: where the files lie.
        turns: all turns of the run.
        steps: how many of them the host counts as one epoch.
    """

    mode: str
    #: Samples of a window; 0 where there are none.
    window: int = 0

    def __init__(self, ace: Any, roles: Roles, paths: Paths, turns: Sequence[Turn], steps: int) -> None:
        self.ace, self.roles, self.paths, self.turns, self.steps = ace, roles, paths, turns, steps
        self.rows: dict[int, Row] = {}
        self.due: deque[Extra] = deque()
        #: What ``train_results.json`` holds.
        self.train_results: list[dict[str, Any]] = []

    @abstractmethod
    def step_id(self, turn: Turn) -> str:
        """How the host's calls of a turn are named."""

    @abstractmethod
    def over(self, turn: Turn) -> None:
        """A turn is over, whether or not it has a row."""

    @abstractmethod
    def advance(self) -> None:
        """More is known: write what is complete, in the host's order."""

    @abstractmethod
    def place(self, turn: Turn) -> dict[str, Any]:
        """How a turn's row begins."""

    def extras(self) -> Iterable[Extra]:
        """What is due, each once."""
        while self.due:
            yield self.due.popleft()

    def may_begin(self, turn: Turn) -> bool:
        """Always."""
        del turn
        return True

    # -- rows -------------------------------------------------------------------------------------------------------

    def told(self, turn: Turn, before: dict[str, Any], text: str) -> None:
        """A turn is over, and its lesson in the playbook, which then says ``text``."""
        row = self.rows[turn.number] = Row(turn.number, before, None, text)
        self._measure(row)

    def _measure(self, row: Row) -> None:
        """The generation after the curation, for the metrics alone."""
        roles, turn = self.roles, self.turns[row.number]

        def measure(_: Any) -> dict[str, Any]:
            answer = roles.answer(row.text, turn.sample, f"{self.step_id(turn)}_post_curate")
            return roles.result(row.text, answer.final, answer.correct)

        call = roles.call(METRICS, roles.generator, measure)
        self.due.append(Extra(f"{METRICS} of {self.step_id(turn)}", [call], partial(self._measured, row)))

    def _measured(self, row: Row, results: list[Any]) -> None:
        """Outside lockstep, where it failed there is no answer."""
        if self.roles.lockstep:
            done(results[0])
        failed = isinstance(results[0], BaseException)
        row.after = self.roles.result(row.text, NO_ANSWER, correct=False) if failed else results[0]
        row.text = ""
        self.advance()

    def measured(self, numbers: Iterable[int]) -> bool:
        """Whether all of these turns' rows are complete."""
        return all(self.rows[each].after is not None for each in numbers)

    def train_accuracies(self, numbers: Sequence[int]) -> dict[str, float]:
        """Of the answers before and after, of turns whose rows are complete."""
        rows = [self.rows[each] for each in numbers]
        targets = [self._target(self.turns[each]) for each in numbers]
        before = [row.before["final_answer"] for row in rows]
        after = [row.after["final_answer"] for row in rows if row.after is not None]
        return {
            "pre_train_accuracy": self._accuracy(before, targets),
            "post_train_accuracy": self._accuracy(after, targets),
        }

    def _accuracy(self, answers: list[Any], targets: list[Any]) -> float:
        if not answers and not self.roles.lockstep:  # every turn of a window has failed
            return 0.0
        return self.roles.processor.evaluate_accuracy(answers, targets)  # type: ignore[no-any-return]

    @staticmethod
    def _target(turn: Turn) -> Any:
        return turn.sample.get("target", "")

    def test(self, name: str, samples: Sequence[Any], text: str, then: Any) -> None:
        """Test samples with a playbook, and give ``then`` the host's results and error log."""
        calls = self.roles.tests(VALIDATE, samples, text)
        self.due.append(Extra(name, calls, lambda results: then(*self.roles.tested(samples, results))))

    def of_playbook(self, text: str) -> dict[str, Any]:
        """What the host's rows say of a playbook."""
        code = self.roles.code
        return {
            "playbook_num_tokens": code.count_tokens(text),
            "playbook_length": len(text),
            "playbook_stats": code.get_playbook_stats(text),
        }

    # -- files ------------------------------------------------------------------------------------------------------

    def write(self, name: str, content: Any) -> None:
        """A file of the run's folder, as JSON."""
        _write(Path(self.paths.run, name), json.dumps(content, indent=2))

    def write_text(self, name: str, text: str) -> None:
        """A file of the run's folder."""
        _write(Path(self.paths.run, name), text)

    def keep(self, name: str, text: str) -> None:
        """An intermediate playbook."""
        _write(Path(self.paths.playbooks, name), text)

    def save(self) -> None:
        """Write what there is, whether or not the run is complete."""
        rows = [
            {
                **self.place(self.turns[row.number]),
                "target": self._target(self.turns[row.number]),
                "pre_train_result": row.before,
                "post_train_result": row.after,
            }
            for _, row in sorted(self.rows.items())
            if row.after is not None
        ]
        self.write("pre_train_post_train_results.json", rows)
        self.write_text("final_playbook.txt", self.ace.playbook)

    @abstractmethod
    def finish(self) -> dict[str, Any]:
        """Write the files that come at the end, and return what the host returns."""

    # -- resume -----------------------------------------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "paths": asdict(self.paths),
            "rows": [asdict(row) for row in self.rows.values()],
            "train_results": self.train_results,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Take up what :meth:`dump` gave, and the files of the run that was interrupted."""
        self.due.clear()
        self.rows = {each["number"]: Row(**each) for each in state["rows"]}
        self.train_results = state["train_results"]
        self._take_files(Paths(**state["paths"]))
        for row in self.rows.values():
            if row.after is None:
                self._measure(row)

    def _take_files(self, old: Paths) -> None:
        """Intermediate playbooks, and what the usage log says of turns that are over."""
        over = {(turn.epoch, turn.step) for turn in map(self.turns.__getitem__, self.rows)}
        if old == self.paths:
            return
        with suppress(OSError):  # they may have been moved away, and the run needs none of them
            for path in Path(old.playbooks).iterdir():
                shutil.copy(path, self.paths.playbooks)
        with suppress(OSError):
            lines = Path(old.usage_log).read_text(encoding="utf-8").splitlines(keepends=True)
            kept = [line for line in lines if (entry := json.loads(line)) and (entry["epoch"], entry["step"]) in over]
            _write(Path(self.paths.usage_log), "".join(kept))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
