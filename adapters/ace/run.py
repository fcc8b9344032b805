"""Runs a host's turns under flash: in lockstep, or with full slots."""

from __future__ import annotations

import logging
from math import nan
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._audit import with_item_file
from flashevolve_plugins._connection import require_connections
from flashevolve_plugins._decisions import Reflector
from flashevolve_plugins._errors import UsageError
from flashevolve_plugins._model import Limits, PoolEntry
from flashevolve_plugins._pool import Pool
from flashevolve_plugins._redact import register_secrets_of
from flashevolve_plugins._run_dir import Lock, require_writable
from flashevolve_plugins._stopping import Stopping
from flashevolve_plugins.adapters.ace.host import (
    APPLY,
    CURATE,
    EMBED,
    FEEDBACK,
    GENERATE,
    HOLD,
    LOCAL,
    REFLECT,
    REFLECTION,
    TASK,
)
from flashevolve_plugins.adapters.ace.resume import StateFile
from flashevolve_plugins.adapters.ace.session import Session

if TYPE_CHECKING:
    from flashevolve_plugins._driver import Driver
    from flashevolve_plugins._flash import Flash
    from flashevolve_plugins.adapters.ace.host import PlaybookHost

logger = logging.getLogger("flashevolve_plugins")

#: Later ones first: what is nearest to the playbook. Metrics wait for everything else.
STAGES = ("metrics", GENERATE, "validate", FEEDBACK, REFLECT, HOLD, CURATE, EMBED, APPLY)
#: Options of the other hosts, and what ACE does instead.
UNUSED = {
    "rollouts": "learns from each try",
    "speculate": "has no gates and no validations to leave early",
    "remember_rejected": "rejects nothing",
}
SLOTS = 16  # where the run names no number


def run_under_flash(host: PlaybookHost, flash: Flash) -> Any:
    """Run a host's turns.

    Args:
        host: the run.
        flash: the settings.

    Returns:
        What the host's own function returns.

    Raises:
        BackendError: a server that is not there, or nothing but failures.
        UsageError: a run directory that belongs to another run, or is in use; an option that ACE has no use for.
        RunStopped: the run was stopped, and is to raise then.
    """
    if flash.stop_score is not None:
        raise UsageError("stop_score does not go with ACE, which has no validation score to stop at: drop it.")
    flash.refuse(host.name, UNUSED)
    register_secrets_of(getattr(host, "ace", None))
    with Stopping(flash, None if flash.run_dir is None else str(flash.run_dir), drain=False) as stopping:
        if flash.check_connection:
            require_connections(host.urls)
        if flash.run_dir is None:
            result = _run_with(None, host, flash, stopping)
        else:
            run_dir = str(flash.run_dir)
            require_writable(run_dir)
            with Lock(run_dir):
                result = _run_with(StateFile(run_dir, host), host, flash, stopping)
        stopping.require_none(lambda: (host.entries(), None))
        return result


def _run_with(state: StateFile | None, host: PlaybookHost, flash: Flash, stopping: Stopping) -> Any:
    driver = with_item_file(flash, None, host=host.name).open_driver(_limits(host, flash, state), pool=_pool(host))
    try:
        with driver:
            if not flash.lockstep:
                stopping.watch(driver)
            _run(host, flash, driver, state)
    finally:
        flash.last_run = driver.snapshot()
    return host.finish()


def _run(host: PlaybookHost, flash: Flash, driver: Driver, state: StateFile | None) -> None:
    session = Session(
        host,
        driver,
        state,
        bound=_bound(flash, driver),
        lockstep=flash.lockstep,
        check_connection=flash.check_connection,
    )
    driver.decisions.reflector = Reflector(REFLECTION if host.reflects_elsewhere else TASK, host.ask)
    driver.tick = session.tick
    for entry in driver.pool.entries:
        driver.policies.pool_updated(entry)
    driver.offer_from(session.source, session.merge)
    try:
        while (ended := driver.next_ended()) is not None:
            driver.recorded(ended, counted=session.tell(ended))
        session.settle_failures()
        if driver.stopping is None or driver.stopping.reason is None:
            session.require_all_begun()
    finally:
        if state is not None and not session.applying:
            state.write(host)
    if session.failures:
        logger.warning(
            "%s of %s samples failed and taught nothing; the first: %s.",
            session.failures,
            len(host.turns),
            session.first_failure,
        )


def _pool(host: PlaybookHost) -> Pool:
    pool = Pool()
    pool.append([PoolEntry(1, host.entries(), nan)])
    return pool


def _limits(host: PlaybookHost, flash: Flash, state: StateFile | None) -> Limits:
    lockstep = flash.lockstep
    at_once = flash.evaluate == "example" or (flash.evaluate is None and host.concurrent)
    if not at_once and flash.evaluate is None and not lockstep:
        logger.warning(
            "The model is called once at a time, since it is an object of your own: pass Flash(evaluate='example') if "
            "several threads may call it, and your feedback function, at once."
        )
    slots = (flash.max_concurrency or SLOTS) if at_once and not lockstep else 1
    reflections = (flash.reflection_concurrency or slots) if host.reflects_elsewhere and not lockstep else 1
    return Limits(
        slots={TASK: slots, REFLECTION: reflections, LOCAL: slots if flash.evaluate == "example" else 1},
        stages=STAGES,
        entry=TASK,
        budget=len(host.turns) - (len(state.done) if state is not None else 0),
        offer_cost=0,
        max_items=1 if lockstep else flash.max_items,
        may_hold=not lockstep,
        validates=False,
    )


def _bound(flash: Flash, driver: Driver) -> int | None:
    """Deltas of earlier epochs that a sample may lag behind."""
    if flash.epoch_barrier is not None:
        return 0 if flash.epoch_barrier else None
    bound = getattr(driver.policies, "max_staleness", None)
    return None if bound is None else int(bound)
