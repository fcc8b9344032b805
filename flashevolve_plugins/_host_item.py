"""An item whose stages the host asks for, one by one: the seed's validation, and everything in lockstep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flashevolve_plugins._model import Outcome, Terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flashevolve_plugins._driver import Driver
    from flashevolve_plugins._model import PoolEntry, Stage


class HostItem:
    """Made by :meth:`Driver.host_item`.

    Args:
        driver: the driver that runs its stages.
        number: the item's number.
    """

    def __init__(self, driver: Driver, number: int) -> None:
        self.number = number
        self._driver = driver
        self._begun = False

    def run(self, stage: Stage, meanwhile: Callable[[], None] | None = None) -> list[Any]:
        """Run one stage and wait for it.

        Args:
            stage: what to run.
            meanwhile: called once it has begun, to offer what is made from what this item brings, before that is in
                the pool. Nobody leaves the merge queue until this item has ended.

        Returns:
            The samples' results, in sample order.

        Raises:
            Exception: what the first failing sample raised.
        """
        return self._driver.run_host_stage(self.number, stage, first=not self._take_begun(), meanwhile=meanwhile)

    def _take_begun(self) -> bool:
        begun, self._begun = self._begun, True
        return begun

    def end(
        self, terminal: Terminal, reason: str = "", entries: Sequence[PoolEntry] = (), *, counted: bool = True
    ) -> None:
        """End the item and record it. Does nothing if it never ran a stage.

        Args:
            terminal: how it ended.
            reason: why.
            entries: what entered the pool with it.
            counted: whether statistics count it as a proposal; the seed is none.
        """
        if self._begun:
            self._driver.end_host_item(self.number, Outcome(terminal, reason), entries, counted=counted)
