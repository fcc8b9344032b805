"""One run of a host: which proposal comes next, and the one place where the host's state changes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._driver import LATER
from flashevolve_plugins._errors import BackendError
from flashevolve_plugins._model import Outcome, PoolEntry, Sample, Stage, Terminal
from flashevolve_plugins._ordering import Examples
from flashevolve_plugins.adapters.meta_harness.host import CHECK, EVALUATE, EVALUATOR
from flashevolve_plugins.adapters.meta_harness.items import last_body, proposal_body, taken_up_body
from flashevolve_plugins.adapters.meta_harness.processes import Scope, interrupts_later
from flashevolve_plugins.adapters.meta_harness.texts import without_secrets
from flashevolve_plugins.adapters.meta_harness.under_way import UnderWay
from flashevolve_plugins.adapters.meta_harness.watching import arranged, scores_of_one

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flashevolve_plugins._bodies import Body, Ended
    from flashevolve_plugins._driver import Driver
    from flashevolve_plugins._flash import Flash
    from flashevolve_plugins.adapters.meta_harness.host import HarnessHost, Job, Proposal
    from flashevolve_plugins.adapters.meta_harness.processes import Family
    from flashevolve_plugins.adapters.meta_harness.taking_up import TakingUp
    from flashevolve_plugins.adapters.meta_harness.three_way import Carried

logger = logging.getLogger("flashevolve_plugins")

ALARM_AFTER = 10  # proposals in a row that brought nothing to try


class Session:
    """Offers proposals, commits what comes of them, tells the host.

    Args:
        host: the host's run.
        driver: the driver.
        family: the processes of the run.
        flash: the settings. In lockstep all is as in the host's own loop, and what its loop raises is raised.
        proposals: those under way, by the numbers of their items; empty at first.
        kept: what is kept so that the run can be taken up, if anything is.
    """

    def __init__(  # noqa: PLR0913 - what one run consists of
        self,
        host: HarnessHost,
        driver: Driver,
        family: Family,
        flash: Flash,
        proposals: dict[int, Proposal],
        *,
        kept: TakingUp | None,
    ) -> None:
        self.host, self.driver, self.family, self._kept = host, driver, family, kept
        self._prefix, self.lockstep = flash.command_prefix, flash.lockstep
        self._left = host.total if kept is None else max(0, host.total - kept.spent)
        self._open = proposals
        self._untried: list[str] = []  # why proposals brought nothing to try, since one that did
        self._last_begun = False
        #: What jobs' names stand for; their durations order the jobs.
        self.examples = Examples(driver.policies, driver.pool)
        self._others = None if flash.lockstep else UnderWay(host, proposals)

    # -- slots ------------------------------------------------------------------------------------------------------

    def in_scope(self, call: Callable[[], Any]) -> Callable[[], Any]:
        """A call whose processes end with it."""

        def scoped() -> Any:
            with Scope(self._prefix, self.family):
                try:
                    return call()
                except Exception as error:
                    error.args = tuple(without_secrets(each) if isinstance(each, str) else each for each in error.args)
                    raise

        return call if self.lockstep and not self._prefix else scoped

    def samples(self, jobs: Sequence[Job], *, catches: bool = False) -> tuple[Sample, ...]:
        """Jobs as samples; ``catches`` says that an exception is a result."""
        return tuple(
            Sample(
                self.in_scope(job.call),
                EVALUATOR,
                seconds=job.seconds,
                kept=None if self._kept is None else self._kept.kept(job),
                catches=catches,
            )
            for job in jobs
        )

    # -- offers -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Check and evaluate what comes first."""
        checks, jobs, score = self.host.seed()
        item = self.driver.host_item()
        evaluation = jobs(item.run(Stage(CHECK, self.samples(checks), judged=False)))
        stage, placed = arranged(self, Stage(EVALUATE, self.samples(evaluation), judged=False), evaluation)
        results = placed(item.run(stage))
        entry = PoolEntry(1, {}, score(results), scores=scores_of_one(evaluation, results))
        item.end(Terminal.COMMITTED, entries=[entry], counted=False)

    def source(self, number: int) -> Body | None:
        """The next item's body: what goes on, proposals, and the host's last tests once they are over."""
        if self._kept is not None and self._kept.goes_on:
            return taken_up_body(self, *self._kept.begin(number, self.driver.pool.version))
        if self._left:
            self._left -= 1
            return proposal_body(self, number)
        if self.driver.scheduler.items:
            return LATER  # type: ignore[no-any-return]
        if not self._last_begun:
            self._last_begun = True
            jobs = self.host.last()
            if jobs:
                return last_body(self, jobs)
        return None

    def opened(self, proposal: Proposal, row: int | None = None) -> None:
        """A proposal is under way; ``row`` says as what it was before, where it was."""
        self._open[proposal.number] = proposal
        if self._kept is not None:
            self._kept.begun(proposal, row)
        if self._others is not None:
            (self._others.begun if row is None else self._others.made)(proposal)

    def made(self, proposal: Proposal) -> None:
        """A proposer has made it, or it was carried."""
        if self._kept is not None:
            self._kept.changed(proposal)
        if self._others is not None:
            self._others.made(proposal)

    def carry(self, proposal: Proposal, carried: Carried) -> None:
        """Carry it onto what is best now."""
        if self._kept is not None:
            self._kept.changing(proposal)
        self.host.carry(proposal, self.driver.pool.version, carried)
        self.made(proposal)

    def begin_again(self, proposal: Proposal) -> None:
        """Send it back to the proposer."""
        if self._kept is not None:
            self._kept.changing(proposal)
        self.host.begin_again(proposal, self.driver.pool.version)
        if self._others is not None:
            self._others.begun(proposal)

    # -- the host's state -------------------------------------------------------------------------------------------

    def commit(self, proposal: Proposal, results: Sequence[Any]) -> Outcome:
        """Write what a proposal came to into the host's state, and let it enter the pool if the host keeps it."""
        with interrupts_later():
            ending = self.host.commit(proposal, results)
        del self._open[proposal.number]
        if self._kept is not None:
            self._kept.ended(proposal)
        if self._others is not None:
            self._others.over(proposal, evaluated=True)
        if ending.terminal is Terminal.COMMITTED:
            version = self.driver.pool.version + 1
            parents, scores = (proposal.version,), proposal.scores
            entry = PoolEntry(version, dict(proposal.artifact), ending.score, parents, proposal.number, scores)
            self.driver.publish(proposal.number, [entry])
        if ending.broken:
            self._untried.append(ending.reason)
        else:
            self._untried.clear()
        return Outcome(ending.terminal, without_secrets(ending.reason))

    def end(self, proposal: Proposal, terminal: Terminal, reason: str) -> None:
        """A proposal came to nothing."""
        if self._open.pop(proposal.number, None) is not None:
            self.host.end(proposal, terminal, without_secrets(reason))
            if self._kept is not None:
                self._kept.ended(proposal, goes_on=terminal is Terminal.CANCELLED)
            if self._others is not None and terminal is not Terminal.CANCELLED:
                self._others.over(proposal, evaluated=terminal is Terminal.REJECTED)

    def tell(self, ended: Ended) -> bool:
        """An item is over; whether statistics count it.

        Raises:
            BackendError: nothing but proposals that bring nothing to try.
        """
        proposal = self._open.get(ended.number)
        error = ended.record.error
        if proposal is not None:
            if error is not None and self.lockstep:
                raise error
            self.end(proposal, ended.record.terminal, ended.record.reason)
            if ended.record.terminal is Terminal.FAILED:
                self._untried.append(ended.record.reason)
        if len(self._untried) >= ALARM_AFTER and not self.lockstep:
            raise BackendError(
                f"{ALARM_AFTER} proposals in a row brought nothing to try, the last since: "
                f"{without_secrets(self._untried[-1])}: correct that, then run again. All that was evaluated is kept."
            ) from error
        return not self._last_begun

    def over(self) -> None:
        """All proposals are over, and the last tests."""
        if self._kept is not None and self.driver.scheduler.stop_reason is None:
            self._kept.over()

    def close(self, *, whole: bool) -> None:
        """The run is over: nothing is left half-written."""
        for proposal in list(self._open.values()):
            self.end(proposal, Terminal.CANCELLED, "the run ended before it did")
        self.host.close(whole=whole)
