"""A third party's policies, for the type checker: every hook with its types, and what it must refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashevolve_plugins.hooks import (
    Ask,
    Batch,
    Change,
    ControlPolicy,
    HostAdapter,
    Judgement,
    Plan,
    QueuePolicy,
    Release,
    SampleOrder,
    StalenessPolicy,
    Work,
    Workers,
    hookimpl,
)
from flashevolve_plugins.testing import check_policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashevolve_plugins.hooks import (
        AdapterRegistry,
        ExampleView,
        ItemRecord,
        ItemView,
        PolicyRegistry,
        PolicySettings,
        Pool,
        PoolEntry,
        Progress,
        Snapshot,
    )


class Patient(StalenessPolicy):
    """Asks the reflection model."""

    def judge(self, item: ItemView, pool: Pool) -> Judgement | Work:
        if item.evidence is None or item.staleness < 2:
            return self.accept()
        if item.answer is None:
            return Work(self.read)
        if isinstance(item.answer, Exception):
            return self.discard(f"nobody read it: {item.answer}")
        best = max(pool.entries, key=lambda entry: entry.score)
        return self.patch({**best.artifact, "answer": item.answer}, "rewritten")

    @staticmethod
    def read(ask: Ask | None) -> str:
        return ask("Write it anew.") if ask is not None else "nobody"


class Eager(QueuePolicy):
    """Takes all that waits."""

    def take(self, waiting: Sequence[ItemView], pool: Pool, *, last: bool) -> Batch:
        aged = {item.number: "old" for item in waiting if pool.since(item.version + 9) and not last}
        return Batch(tuple(item.number for item in waiting if item.number not in aged), self.write, discard=aged)

    def write(self, ask: Ask | None, onto: dict[str, str], changes: Sequence[Change]) -> dict[str, str]:
        return {**onto, "answer": " ".join(change.feedback for change in changes)} if ask is None else onto


class Narrow(ControlPolicy):
    """One validation at a time, once something has been validated."""

    period = 60.0

    def decide(self, snapshot: Snapshot) -> Workers | None:
        return Workers({"validate": 1}) if snapshot.finished.get("validate") else None


class Backwards(SampleOrder):
    """The last example first."""

    def order(self, examples: Sequence[ExampleView], pool: Pool) -> Sequence[int]:
        return [*reversed(range(len(examples)))] if pool.version else range(len(examples))


class Everything:
    """Every hook of a run."""

    @hookimpl
    def flashevolve_judge_stale(self, item: ItemView, pool: Pool) -> Judgement | Work | None:
        return None

    @hookimpl
    def flashevolve_merge_batch(self, waiting: Sequence[ItemView], pool: Pool, last: bool) -> Batch | None:
        return Batch((waiting[0].number,))

    @hookimpl
    def flashevolve_release_stage(self, item: ItemView, progress: Progress, pool: Pool) -> Release | None:
        return Release(stops=True, reason="hopeless") if progress.validates and sum(progress.known) < 0 else None

    @hookimpl
    def flashevolve_admit_provisional(self, item: ItemView, progress: Progress, pool: Pool) -> bool | None:
        return len(progress.known) > len(progress.scores) / 2 and not pool.provisional

    @hookimpl
    def flashevolve_plan(self, snapshot: Snapshot) -> Plan | None:
        return Plan(max_items=4 if snapshot.budget is not None else None)

    @hookimpl
    def flashevolve_control(self, snapshot: Snapshot) -> Workers | None:
        return Workers(dict.fromkeys(snapshot.workers, 4))

    @hookimpl
    def flashevolve_order_samples(
        self, stage: str, examples: Sequence[ExampleView], pool: Pool
    ) -> Sequence[int] | None:
        return None

    @hookimpl
    def flashevolve_run_started(self, snapshot: Snapshot) -> None: ...

    @hookimpl
    def flashevolve_stage_started(self, item: int, stage: str) -> None: ...

    @hookimpl
    def flashevolve_stage_finished(self, item: int, stage: str) -> None: ...

    @hookimpl
    def flashevolve_pool_updated(self, entry: PoolEntry) -> None: ...

    @hookimpl
    def flashevolve_item_ended(self, record: ItemRecord) -> None: ...

    @hookimpl
    def flashevolve_snapshot(self, snapshot: Snapshot) -> None: ...

    @hookimpl
    def flashevolve_run_finished(self, snapshot: Snapshot) -> None: ...


class Careless(StalenessPolicy):
    """What the type checker must refuse: each of these lines would be an unused ignore if it did not."""

    def judge(self, item: ItemView, pool: Pool) -> Judgement:
        item.staleness = 0  # type: ignore[misc]
        if pool.version > item.versoin:  # type: ignore[attr-defined]
            return True  # type: ignore[return-value]
        return self.discard()  # type: ignore[call-arg]


class Greedy(QueuePolicy):
    """As above."""

    def take(self, waiting: Sequence[ItemView], pool: Pool) -> Batch:  # type: ignore[override]
        return Batch([item.number for item in waiting])  # type: ignore[arg-type]


@hookimpl
def flashevolve_register_policies(registry: PolicyRegistry) -> None:
    registry.add("patient", make)
    registry.add("eager", lambda settings: Eager(max_items=4))
    registry.add("everything", lambda settings: Everything())  # type: ignore[arg-type,return-value]


def make(settings: PolicySettings) -> StalenessPolicy:
    return Patient() & Patient() if settings.max_staleness is None else Patient() | Eager()


@hookimpl
def flashevolve_register_adapters(registry: AdapterRegistry) -> None:
    registry.add(HostAdapter("myhost", extra="mine", supported="myhost 1", install=lambda: None))


def check() -> None:
    for kind in (Patient, Eager, Narrow, Backwards, Everything):
        check_policy(kind, seeds=range(3))
