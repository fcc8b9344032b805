"""``ACE.run("online", ...)``: each window of samples is tested with the playbook, then trained on."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._errors import UsageError
from flashevolve_plugins.adapters.ace.ace_agent_results import Paths, Results
from flashevolve_plugins.adapters.ace.host import Turn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashevolve_plugins.adapters.ace.ace_agent_roles import Roles


@dataclass
class Window:
    """Samples that are tested, then trained on.

    Args:
        number: counted from 1.
        start: its first sample's place.
        end: the place after its last sample.
        before: the playbook before it.
        after: the playbook after it, once all its turns are over.
        told: its turns that have rows, in the order in which they were told.
        failed: how many gave nothing.
        train: the accuracies of its rows, once all are complete.
        result: the host's results and error log of its test, once there.
        written: whether its row is written.
    """

    number: int
    start: int
    end: int
    before: str
    after: str | None = None
    told: list[int] = field(default_factory=list)
    failed: int = 0
    train: dict[str, float] | None = None
    result: list[Any] | None = None
    written: bool = False

    @property
    def over(self) -> bool:
        """Whether all its turns are over."""
        return len(self.told) + self.failed == self.end - self.start


class Online(Results):
    """The results of online training.

    A window's test and its training may overlap, since the test keeps to the playbook from before; the next window
    waits for both.

    Args:
        ace: the user's ``ACE``.
        roles: its roles.
        paths: where the files lie.
        samples: the samples.
        size: samples of a window.

    Raises:
        UsageError: more than one epoch.
    """

    mode = "online"

    def __init__(self, ace: Any, roles: Roles, paths: Paths, samples: Sequence[Any], size: int) -> None:
        if roles.params["num_epochs"] != 1:
            raise UsageError(
                f"num_epochs={roles.params['num_epochs']} does not go with mode='online', which takes each sample "
                "once: set num_epochs=1."
            )
        turns = [Turn(index, 1, index + 1, sample) for index, sample in enumerate(samples)]
        super().__init__(ace, roles, paths, turns, len(samples))
        self._samples, self.window = samples, size
        self._windows: list[Window] = []  # up to the one that is under way
        self._open_next()

    def step_id(self, turn: Turn) -> str:
        """As the host has it."""
        return f"online_train_s_{turn.step}"

    def place(self, turn: Turn) -> dict[str, Any]:
        """Window and step."""
        return {"window": turn.number // self.window + 1, "global_step": turn.step}

    def may_begin(self, turn: Turn) -> bool:
        """Once its window is the one under way."""
        return turn.number < self._windows[-1].end

    # -- windows ----------------------------------------------------------------------------------------------------

    def _open_next(self) -> None:
        """Test the next window, if there is one."""
        start = len(self._windows) * self.window
        if start < self.steps:
            end = min(start + self.window, self.steps)
            window = Window(len(self._windows) + 1, start, end, self.ace.playbook)
            self._windows.append(window)
            self._test(window)

    def _test(self, window: Window) -> None:
        samples = self._samples[window.start : window.end]
        self.test(f"test of window {window.number}", samples, window.before, partial(self._tested, window))

    def _tested(self, window: Window, result: Any, errors: Any) -> None:
        window.result = [result, errors]
        self._close(window)
        self.advance()

    def _close(self, window: Window) -> None:
        """Go on with the next window, if this one is over and tested."""
        if window.over and window.result is not None:
            self._open_next()

    def told(self, turn: Turn, before: dict[str, Any], text: str) -> None:
        """Save where that is due."""
        super().told(turn, before, text)
        window = self._windows[-1]
        window.told.append(turn.number)
        if len(self.rows) % self.roles.params["save_steps"] == 0:
            self.keep(f"step_{len(self.rows)}_playbook.txt", text)
        self._end_window(window)

    def over(self, turn: Turn) -> None:
        """It gave nothing."""
        del turn
        self._windows[-1].failed += 1
        self._end_window(self._windows[-1])

    def _end_window(self, window: Window) -> None:
        if window.over:
            window.after = self.ace.playbook
            self.keep(f"window_{window.number}_final_playbook.txt", window.after)
            self.advance()
            self._close(window)

    def advance(self) -> None:
        """Write windows in order."""
        for window in self._windows:
            if window.train is None and window.after is not None and self.measured(window.told):
                window.train = self.train_accuracies(window.told)
        for window in self._windows:
            if window.train is None or window.result is None:
                return
            if not window.written:
                window.written = True
                self._write_window(window)

    def _write_window(self, window: Window) -> None:
        self.train_results.append(
            {
                "window": window.number,
                "global_step": window.end,
                "train_result": window.train,
                "cumulative_test_accuracy": self._test_accuracy(window.number),
                **self.of_playbook(window.after or ""),
            }
        )

    def _test_accuracy(self, number: int) -> float:
        """Of the first windows, as many."""
        results = [window.result[0] for window in self._windows[:number] if window.result is not None]
        right = 0.0
        for each in results:  # as the host adds up: sum() rounds otherwise
            right += each["accuracy"] * each["total"]
        return right / (sum(int(each["total"]) for each in results) or 1)  # none, if the run was stopped before

    # -- the end ----------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Rows and playbook."""
        self.write("train_results.json", {"train_results": self.train_results})
        super().save()

    def finish(self) -> dict[str, Any]:
        """The tests of all windows."""
        accuracy = self._test_accuracy(len(self._windows))
        windows, errors = [], []
        for window in self._windows:
            if window.result is None:  # the run was stopped before
                continue
            result, error_log = window.result
            windows.append(
                {
                    "window": window.number,
                    "start_idx": window.start,
                    "end_idx": window.end,
                    "window_accuracy": result["accuracy"],
                    "window_correct": result["correct"],
                    "window_total": result["total"],
                }
            )
            for error in error_log["errors"]:
                place = {"window": window.number, "global_index": window.start + error["index"]}
                errors.append({**place, "prediction": error["prediction"], "ground_truth": error["ground_truth"]})
        told = {
            "accuracy": accuracy,
            "correct": sum(each["window_correct"] for each in windows),
            "total": sum(each["window_total"] for each in windows),
        }
        test = {
            "test_accuracy": accuracy,
            "test_results": {**told, "window_results": windows},
            "test_error_log": {"accuracy": accuracy, "errors": errors},
        }
        self.write("test_results.json", test)
        self.save()
        return told

    def dump(self) -> dict[str, Any]:
        """With the windows."""
        return {**super().dump(), "windows": [asdict(window) for window in self._windows]}

    def load(self, state: dict[str, Any]) -> None:
        """A test that was under way begins anew."""
        super().load(state)
        self._windows = [Window(**each) for each in state["windows"]]
        for window in self._windows:
            if window.result is None:
                self._test(window)
