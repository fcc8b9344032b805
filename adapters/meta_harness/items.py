"""The bodies of items: a proposal from its private copy to the host's state, and what comes after all of them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._model import Discarded, Evidence, Outcome, Patch, Sample, Stage, Terminal
from flashevolve_plugins.adapters.meta_harness.host import CHECK, EVALUATE, PROPOSE, PROPOSER, TEST
from flashevolve_plugins.adapters.meta_harness.three_way import Carried
from flashevolve_plugins.adapters.meta_harness.watching import scores_of_one, watched

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from flashevolve_plugins._bodies import Body
    from flashevolve_plugins.adapters.meta_harness.host import Job, Proposal
    from flashevolve_plugins.adapters.meta_harness.session import Session

STOPPED = "its evaluation was stopped before its end"


def proposal_body(session: Session, number: int) -> Body:
    """Propose, check, evaluate, commit. A patch carries it onto what is best now, or sends it back to the proposer."""
    proposal = session.host.begin(number, session.driver.pool.version)
    session.opened(proposal)
    return (yield from _body(session, proposal, made=False))


def taken_up_body(session: Session, proposal: Proposal, row: int) -> Body:
    """The same for what was made before the run was taken up: it goes on with its checks."""
    session.opened(proposal, row)
    return (yield from _body(session, proposal, made=True))


def _body(session: Session, proposal: Proposal, *, made: bool) -> Body:
    try:
        return session.commit(proposal, (yield from _results(session, proposal, made=made)))
    except Discarded as why:
        # a reason to stop an evaluation tells its scores, which are no host's
        session.end(proposal, why.terminal, STOPPED if why.terminal is Terminal.REJECTED else why.reason)
        return Outcome(why.terminal, why.reason)


def _results(session: Session, proposal: Proposal, *, made: bool) -> Generator[Stage, list[Any], Sequence[Any]]:
    """What its evaluation gave; nothing where the host refuses it before."""
    host, cost = session.host, 0 if made else 1
    while True:
        if not made:
            yield Stage(PROPOSE, (_proposing(session, proposal, cost),), judged=False, version=proposal.version)
            cost = 0  # a run's budget counts proposals, however often one is sent back
            session.made(proposal)
        if proposal.refused:
            return ()
        try:
            checked = yield _stage(session, proposal, CHECK, host.checks(proposal))
            jobs = host.jobs(proposal, checked)
            return (yield from _evaluated(session, proposal, jobs)) if jobs else ()
        except Patch as patch:
            made = isinstance(patch.artifact, Carried)
            if made:
                session.carry(proposal, patch.artifact)
            else:
                session.begin_again(proposal)


def _proposing(session: Session, proposal: Proposal, cost: int) -> Sample:
    host = session.host
    seconds = partial(host.propose_seconds, proposal)
    return Sample(session.in_scope(partial(host.propose, proposal)), PROPOSER, cost=cost, seconds=seconds)


def _stage(session: Session, proposal: Proposal, name: str, jobs: Sequence[Job]) -> Stage:
    """A stage before which the policy judges the proposal; none once its evaluation has begun."""
    evidence = Evidence(dict(proposal.artifact), proposal.version, feedback=proposal.feedback)
    return Stage(
        name,
        session.samples(jobs),
        commits=name == EVALUATE,
        settles=name == EVALUATE,  # a stop waits a while for it: the session that led to it was dear
        evidence=evidence,
        version=proposal.version,
        judged=name == EVALUATE or len(jobs) == 1,  # nothing is patched between two checks
    )


def _evaluated(session: Session, proposal: Proposal, jobs: Sequence[Job]) -> Generator[Stage, list[Any], Sequence[Any]]:
    stage, placed = watched(session, proposal, _stage(session, proposal, EVALUATE, jobs), jobs)
    results = placed((yield stage))
    proposal.scores = scores_of_one(jobs, results)
    return results


def last_body(session: Session, jobs: Sequence[Job]) -> Body:
    """The host's held-out tests, all at once."""
    samples = session.samples(jobs, catches=True)
    session.host.take_last((yield Stage(TEST, samples, judged=False)))
    return Outcome(Terminal.SKIPPED, "held-out tests")
