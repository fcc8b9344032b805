"""``Flash``: everything a user can set, checked when it is made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, get_args

from flashevolve_plugins import _activation
from flashevolve_plugins._errors import UnknownNameError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashevolve_plugins._driver import Driver
    from flashevolve_plugins._model import Limits
    from flashevolve_plugins._pool import Pool
    from flashevolve_plugins._snapshot import Snapshot
    from flashevolve_plugins.hooks.manager import RunHooks

Granularity = Literal["example", "batch", "serial"]
Clock = Literal["local", "virtual"]


@dataclass(eq=False)
class Flash:
    """Runs an optimizer's loop asynchronously.

    Pass it as ``executor=`` to ``dspy.GEPA`` or ``gepa.optimize``, or use it as a ``with`` block around any call that
    ends in one of them. It holds settings only, so one object can serve many runs, also at once.

    Args:
        max_concurrency: task slots, that is examples evaluated at once. Default: the host's own number of threads.
        reflection_concurrency: reflection calls at once. Default: as ``max_concurrency``.
        staleness: the staleness policy: a name (``flashevolve plugins`` lists them) or a ``StalenessPolicy``.
        max_staleness: pool versions an item may lag behind; for the policies that ask for it.
        lockstep: run one step after the other in whole batches, exactly as the host does, through the same executor.
        plugins: further plugins for this run: objects with hook implementations, or names of entry points.
        evaluate: what the host's adapter can do at once: ``"example"`` (one example at a time, many at once),
            ``"batch"`` (whole batches, many at once) or ``"serial"`` (one batch at a time). Default: as declared for
            known adapters, else ``"serial"``.
        max_items: proposals in flight at most. Default: as many as the slots need.
        run_dir: a directory for the items' records, and for what a resumed run needs where the host keeps nothing
            itself (ACE). Default: the host's own.
        epoch_barrier: ACE: whether an epoch begins only when the one before has ended. Default: its first samples wait
            until they would lag behind no more than the policy's ``max_staleness``; at once for policies without one.
        progress: show the progress line. Default: ``True``.
        check_connection: try to connect to the models' servers before anything is spent.
        clock: ``"local"`` for threads and real time, ``"virtual"`` for a simulation (see the benchmarks).

    Raises:
        UsageError: a value that cannot work.
        UnknownNameError: a policy or plugin that is not installed.
    """

    max_concurrency: int | None = None
    reflection_concurrency: int | None = None
    staleness: Any = "merge"
    max_staleness: int | None = None
    lockstep: bool = False
    plugins: Sequence[object] = ()
    evaluate: Granularity | None = None
    max_items: int | None = None
    run_dir: str | None = None
    epoch_barrier: bool | None = None
    progress: bool = True
    check_connection: bool = True
    clock: Clock = "local"
    #: The last statistics of the run that finished last.
    last_run: Snapshot | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Check every value, before anything is spent."""
        for name in ("max_concurrency", "reflection_concurrency", "max_items"):
            _require_count(name, getattr(self, name), least=1)
        _require_count("max_staleness", self.max_staleness, least=0)
        self._check_run()
        for name, known in (("evaluate", get_args(Granularity)), ("clock", get_args(Clock))):
            value = getattr(self, name)
            if value not in known and not (name == "evaluate" and value is None):
                raise UnknownNameError(name, value, known)
        for name in ("lockstep", "progress", "check_connection"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name}={getattr(self, name)!r} must be True or False.")
        if isinstance(self.plugins, (str, bytes)) or not isinstance(self.plugins, Iterable):
            raise UsageError(f"plugins={self.plugins!r} must be a list of plugins: write plugins=[{self.plugins!r}].")
        self.plugins = tuple(self.plugins)
        for name in ("max_concurrency", "reflection_concurrency", "max_items", "max_staleness", "evaluate"):
            if self.lockstep and getattr(self, name) is not None:
                raise UsageError(
                    f"{name} does not go with lockstep=True, which runs one step after the other: drop one."
                )
        self.open_hooks()

    def _check_run(self) -> None:
        if self.epoch_barrier is not None and not isinstance(self.epoch_barrier, bool):
            raise UsageError(f"epoch_barrier={self.epoch_barrier!r} must be True, False, or None for the default.")
        if self.run_dir is not None and not isinstance(self.run_dir, (str, PathLike)):
            raise UsageError(f"run_dir={self.run_dir!r} must be the path of a directory, or None.")

    def open_hooks(self) -> RunHooks:
        """Fresh policies and plugins for one run."""
        from flashevolve_plugins._progress import ProgressLine  # noqa: PLC0415 - the import stays light
        from flashevolve_plugins.hooks import PolicySettings, StalenessPolicy  # noqa: PLC0415 - the import stays light
        from flashevolve_plugins.hooks.manager import RunHooks, make_policy  # noqa: PLC0415

        policy = self.staleness
        if isinstance(policy, str):
            policy = make_policy(policy, PolicySettings(self.max_staleness))
        elif isinstance(policy, type):
            raise UsageError(f"staleness={policy.__name__} is a class: write staleness={policy.__name__}().")
        elif not isinstance(policy, StalenessPolicy):
            raise UsageError(
                f"staleness={policy!r} must be a policy's name or a StalenessPolicy: "
                "flashevolve plugins lists the names."
            )
        elif self.max_staleness is not None:
            raise UsageError(
                "max_staleness goes with a policy's name: give it to the policy you made, or name the policy."
            )
        return RunHooks(policy, [*self.plugins, *([ProgressLine()] if self.progress else [])])

    def open_driver(self, limits: Limits, *, pool: Pool, spent: int = 0) -> Driver:
        """A driver for one run, with fresh policies."""
        from flashevolve_plugins._inline import InlineDriver  # noqa: PLC0415 - only what the run needs
        from flashevolve_plugins._local import LocalDriver  # noqa: PLC0415 - threads only when something runs
        from flashevolve_plugins._virtual import VirtualDriver  # noqa: PLC0415

        kind: type[Driver] = InlineDriver if self.lockstep else LocalDriver
        if self.clock == "virtual":
            kind = VirtualDriver
        return kind(limits, self.open_hooks(), pool=pool, spent=spent)

    def __enter__(self) -> Flash:  # noqa: PYI034 - not meant to be subclassed
        """Let every supported host run inside the block use this flash."""
        _activation.push(self)
        return self

    def __exit__(self, *exc: object) -> None:
        """Restore what was in force before."""
        _activation.pop(self)


def _require_count(name: str, value: object, *, least: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{name}={value!r} must be a whole number of at least {least}, or None for the default.")
