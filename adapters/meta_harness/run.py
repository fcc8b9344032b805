"""Runs a host's proposals under flash: in lockstep, or with full slots."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._audit import with_item_file
from flashevolve_plugins._model import Limits
from flashevolve_plugins._pool import Pool
from flashevolve_plugins._run_dir import Lock, require_writable
from flashevolve_plugins._stopping import Stopping
from flashevolve_plugins.adapters.meta_harness.host import CHECK, EVALUATE, EVALUATOR, PROPOSE, PROPOSER, TEST
from flashevolve_plugins.adapters.meta_harness.judging import policy_for
from flashevolve_plugins.adapters.meta_harness.processes import scoped_processes
from flashevolve_plugins.adapters.meta_harness.session import Session
from flashevolve_plugins.adapters.meta_harness.taking_up import opened
from flashevolve_plugins.adapters.meta_harness.watching import refuse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flashevolve_plugins._driver import Driver
    from flashevolve_plugins._flash import Flash
    from flashevolve_plugins.adapters.meta_harness.host import HarnessHost, Proposal

logger = logging.getLogger("flashevolve_plugins")

#: Later ones first: what is nearest to the pool.
STAGES = (PROPOSE, TEST, CHECK, EVALUATE)
#: Options of the other hosts, and what this one does instead.
UNUSED = {
    "rollouts": "evaluates once",
    "speculate": "has no gates and copies what has its score",
    "remember_rejected": "has no gates",
}


def run_under_flash(host: HarnessHost, flash: Flash, run_dir: str) -> Any:
    """Run a host's proposals.

    Args:
        host: the run.
        flash: the settings.
        run_dir: the host's directory, which one run at a time may use.

    Returns:
        What the host's own function returns.

    Raises:
        BackendError: nothing but proposals that bring nothing to try.
        UsageError: the directory cannot be written, or is in use; an option that the host has no use for.
        RunStopped: the run was stopped, and is to raise then.
    """
    flash.refuse(host.name, UNUSED)
    refuse(flash.plugins, host.name)
    require_writable(run_dir)
    proposals: dict[int, Proposal] = {}
    recorded = with_item_file(flash, run_dir, host=host.name)
    settings = policy_for(recorded, lambda item: host.carried(proposals[item]))
    with (
        Stopping(flash, run_dir, drain=False) as stopping,
        Lock(run_dir),
        scoped_processes() as family,
        opened(host, flash, run_dir) as kept,
    ):
        spent = 0 if kept is None else kept.spent
        driver = settings.open_driver(_limits(host, settings, spent), pool=Pool(), spent=spent)
        driver.keeper = None if kept is None else kept.keeper
        try:
            with driver:
                if not flash.lockstep:
                    stopping.watch(driver)
                _run(Session(host, driver, family, flash, proposals, kept=kept))
        finally:
            flash.last_run = driver.snapshot()
        stopping.require_none(lambda: _best(driver))
    return host.result()


def _run(session: Session) -> None:
    driver, whole = session.driver, False
    try:
        session.begin()
        driver.offer_from(session.source)
        while (ended := driver.next_ended()) is not None:
            driver.recorded(ended, counted=session.tell(ended))
        whole = True
        session.over()
    finally:
        session.family.kill()  # before the host's state is closed: nobody writes there any more
        session.close(whole=whole)


def _best(driver: Driver) -> tuple[Mapping[str, str], float | None]:
    """The files of the best candidate that a proposer has changed, and its score."""
    entries = driver.pool.entries
    return (entries[-1].artifact, entries[-1].score) if entries else ({}, None)


def _limits(host: HarnessHost, flash: Flash, spent: int) -> Limits:
    lockstep = flash.lockstep
    at_once = flash.evaluate == "example"
    proposers = flash.reflection_concurrency or (4 if at_once else host.proposers)
    evaluators = flash.max_concurrency or (4 if at_once else host.evaluators)
    unsaid = not (at_once or (flash.reflection_concurrency and flash.max_concurrency))
    if host.advice and unsaid and not lockstep:
        logger.warning("%s", host.advice)
    return Limits(
        slots={PROPOSER: 1 if lockstep else proposers, EVALUATOR: 1 if lockstep else evaluators},
        stages=STAGES,
        entry=PROPOSER,
        budget=max(host.total, spent),
        offer_cost=0,
        max_items=1 if lockstep else flash.max_items,
        may_hold=False,
    )
