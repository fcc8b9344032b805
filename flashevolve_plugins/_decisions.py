"""What the policies are asked, and the events that their answers become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from flashevolve_plugins import _events as ev
from flashevolve_plugins._errors import PluginError, UsageError
from flashevolve_plugins._item import State
from flashevolve_plugins._model import Check, ItemView, Sample, Stage, Terminal, Verdict
from flashevolve_plugins._policies import Batch, Work
from flashevolve_plugins._redact import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from flashevolve_plugins._bodies import Merger, OpenItems
    from flashevolve_plugins._policies import Ask, Judgement, Policies
    from flashevolve_plugins._pool import Pool
    from flashevolve_plugins._scheduler import Scheduler
    from flashevolve_plugins._snapshot import Snapshot

#: From the numbers of the items that wait, and whether nothing else is under way, to those the policy is asked about;
#: ``None``: it is not asked yet.
Regroup: TypeAlias = "Callable[[Sequence[int], bool], Sequence[int] | None]"

JUDGE = "judge"  # the stage of a decision's work
MOST_WORK = 16  # for one verdict


@dataclass(frozen=True)
class Reflector:
    """How a decision's work reaches the model that the host reflects with.

    Args:
        resource: whose slot it takes.
        ask: one call of the model, or ``None`` where the host has none.
        seconds: virtual seconds of a call; only virtual drivers read it.
    """

    resource: str
    ask: Ask | None = None
    seconds: Callable[[], float] | None = None


def view_of(scheduler: Scheduler, item: int, stage: Stage, answer: Any = None) -> ItemView:
    """What a policy sees of an item before or in a stage."""
    kept = scheduler.items[item]
    return ItemView(
        number=item,
        version=kept.version,
        staleness=scheduler.version - kept.version,
        stage=stage.name,
        story=tuple(kept.story),
        evidence=stage.evidence,
        answer=answer,
        patches=kept.patches,
        failed_with=kept.failed_with,
        unfounded=stage.unfounded,
    )


class Decisions:
    """Asks the policies of one run, on the caller's thread.

    Args:
        scheduler: whose items they decide about.
        policies: who decides.
        pool: the pool.
        items: the items under way.
    """

    def __init__(self, scheduler: Scheduler, policies: Policies, pool: Pool, items: OpenItems) -> None:
        self.reflector = Reflector(scheduler.entry)
        #: Makes the bodies of merges; without one, items that wait in the merge queue can only go on alone.
        self.merger: Merger | None = None
        self.regroup: Regroup | None = None
        self._scheduler, self._policies, self._pool, self._items = scheduler, policies, pool, items
        self._most_items = scheduler.max_items

    # -- stale items ------------------------------------------------------------------------------------------------

    def judge(self, item: int, stage: Stage, answer: Any = None, asked: int = 0) -> ev.Event:
        """Ask whether a stale item goes on with a stage; ``asked`` counts the work that this verdict has taken."""
        view = view_of(self._scheduler, item, stage, answer)
        try:
            judgement = self._policies.judge_stale(view, self._pool)
            if isinstance(judgement, Work):
                if asked == MOST_WORK:
                    raise _wrong_judgement(item, f"it asked for work {MOST_WORK} times and gave no verdict")
                return self._start_job(judgement, lambda result: self._judge_again(item, stage, result, asked + 1))
            _require_patchable(view, judgement, begun=self._scheduler.items[item].reserved)
        except PluginError as error:
            return self._fail(item, error)
        self._items[item].checks.append(Check(stage.name, view.staleness, judgement.verdict, judgement.reason))
        if judgement.verdict is Verdict.PATCH and judgement.artifact is not None:
            return ev.Patched(item, self._items.patch(item, judgement.artifact))
        return ev.Judged(item, judgement.verdict, judgement.reason)

    def _judge_again(self, item: int, stage: Stage, answer: Any, asked: int) -> Iterable[ev.Event]:
        kept = self._scheduler.items.get(item)
        if kept is None or kept.state is not State.JUDGING:
            return  # the run was cancelled meanwhile
        if answer is None:  # with which it would ask for the same work again, for ever
            yield self._fail(item, _wrong_judgement(item, "its work gave None: it must give something"))
        else:
            yield self.judge(item, stage, answer, asked)

    def _fail(self, item: int, error: PluginError) -> ev.Event:
        self._items[item].error = error
        return ev.Judged(item, Verdict.DISCARD, str(error), failed=True)

    # -- work -------------------------------------------------------------------------------------------------------

    def _start_job(self, work: Work, answered: Callable[[Any], Iterable[ev.Event]]) -> ev.Event:
        """Let a decision's work run in a slot."""
        reflector = self.reflector
        call = partial(work.call, reflector.ask)
        stage = Stage(JUDGE, (Sample(call, reflector.resource, seconds=reflector.seconds, catches=True),))
        number = self._scheduler.next_number()
        self._items.open(number, stage).answered = answered
        return ev.JobStarted(number, stage)

    def finish_job(self, job: int, answered: Callable[[Any], Iterable[ev.Event]]) -> Iterable[ev.Event]:
        """Go on with the decision that asked for the work."""
        opened = self._items[job]
        yield ev.ItemDecided(job, Terminal.SKIPPED)
        yield from answered(opened.error or next(iter(opened.results), None))

    # -- the merge queue --------------------------------------------------------------------------------------------

    def consult(self, items: tuple[int, ...], *, last: bool) -> Iterable[ev.Event]:
        """Ask who leaves the merge queue."""
        left = self._scheduler.merge_queue.waiting
        asked: Sequence[int] | None = [item for item in items if item in left]
        if asked and self.regroup is not None:
            asked = self.regroup(asked, last)
            if asked is None:
                yield ev.QueueWaits()
                return
            last = last or len(asked) < len(items)  # a group that was merged before has nothing to wait for
        waiting = [view_of(self._scheduler, item, self._scheduler.items[item].stage) for item in asked or ()]
        batch = self._policies.merge_batch(waiting, self._pool, last=last) if waiting else Batch()
        _require_possible(batch, [each.number for each in waiting], self._pool)
        for number, reason in batch.discard.items():
            if number not in batch.members:
                yield ev.Dropped(number, reason)
        if not batch.members:
            yield ev.QueueWaits()
        elif batch.write is None or self.merger is None:
            yield ev.Released(batch.members[0])
        else:
            number = self._scheduler.next_number()
            yield ev.MergeStarted(number, batch.members, self._items.open_body(number, self.merger(number, batch)))

    # -- plans ------------------------------------------------------------------------------------------------------

    def plan(self, snapshot: Snapshot) -> ev.PlanChanged | None:
        """Ask how much may be under way; ``None`` if nothing changes."""
        plan = self._policies.plan(snapshot)
        if plan is None:
            return None
        limits = [each for each in (plan.max_items, self._most_items) if each is not None]
        if min((*limits, plan.validations)) < 1:
            wrong = UsageError(f"it answered {plan}, with which nothing would ever run: both must be at least 1")
            raise PluginError("the planning policy", "flashevolve_plan", "the run", wrong)
        max_items = min(limits, default=None)
        if (max_items, plan.validations) == (self._scheduler.max_items, self._scheduler.merge_queue.validations):
            return None
        return ev.PlanChanged(max_items, plan.validations)

    # -- control ----------------------------------------------------------------------------------------------------

    def control(self, snapshot: Snapshot) -> ev.WorkersChanged | None:
        """Ask how many items may be at work in each stage; ``None`` if nothing changes."""
        answer = self._policies.control(snapshot)
        if answer is None:
            return None
        workforce = self._scheduler.workforce
        if not isinstance(answer.most, Mapping):
            wrong = UsageError(f"it answered {shown(answer)}, which is no mapping of stage name to workers")
            raise PluginError("the control policy", "flashevolve_control", "the run", wrong)
        asked: Mapping[str, object] = answer.most
        for stage, most in asked.items():
            if stage not in workforce.at_work:
                problem = f"this run has no stage {stage!r}: its stages are {', '.join(workforce.at_work)}"
            elif most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
                problem = f"the workers of {stage!r} must be a whole number of at least 1, or None for any number"
            else:
                continue
            wrong = UsageError(f"it answered {shown(answer)}, but {problem}")
            raise PluginError("the control policy", "flashevolve_control", "the run", wrong)
        caps = {stage: workers for stage, workers in answer.most.items() if workers is not None}
        return None if caps == workforce.caps else ev.WorkersChanged(caps)


def _wrong_judgement(item: int, problem: str) -> PluginError:
    return PluginError("the staleness policy", "flashevolve_judge_stale", f"item {item}", UsageError(problem))


def _require_patchable(item: ItemView, judgement: Judgement, *, begun: bool) -> None:
    if judgement.artifact is None:
        return
    if item.evidence is None:
        problem = "it patched an item that has no evidence yet: patch where item.evidence is not None"
        raise _wrong_judgement(item.number, problem)
    if begun:
        problem = f"it patched an item inside {item.stage}, which has begun: there it must not answer with an artifact"
        raise _wrong_judgement(item.number, problem)


def _require_possible(batch: Batch, waiting: Sequence[int], pool: Pool) -> None:
    left = [number for number in (*batch.members, *batch.discard) if number not in waiting]
    if left:
        problem = f"item {left[0]} does not wait in the queue"
    elif len(set(batch.members)) < len(batch.members):
        problem = "it names a member twice"
    elif len(batch.members) > 1 and batch.write is None:
        problem = "several members need a write function"
    elif batch.onto is not None and batch.onto not in range(1, pool.version + 1):
        problem = f"onto is no version of the pool, which are 1 to {pool.version}"
    elif batch.onto_item is not None and (batch.onto_item not in pool.provisional or batch.write is None):
        problem = "onto_item is no item whose artifact is provisional, or it has no write function"
    else:
        return
    about = f"items {', '.join(str(number) for number in waiting)}"
    wrong = UsageError(f"it answered {shown(batch)}, but {problem}")
    raise PluginError("the merging policy", "flashevolve_merge_batch", about, wrong)
