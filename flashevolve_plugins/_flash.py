"""``Flash``: everything a user can set, checked when it is made."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isnan
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, get_args

from flashevolve_plugins import _activation
from flashevolve_plugins._errors import UnknownNameError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flashevolve_plugins._driver import Driver
    from flashevolve_plugins._model import Limits
    from flashevolve_plugins._pool import Pool
    from flashevolve_plugins._snapshot import Snapshot
    from flashevolve_plugins.hooks.manager import RunHooks

Granularity = Literal["example", "batch", "serial"]
Clock = Literal["local", "virtual"]
Recorded = Literal["full", "scores"]
Resume = Literal["same", "any"]
OnStop = Literal["return", "raise"]

_COUNTS = ("max_concurrency", "reflection_concurrency", "max_items")
_NOT_IN_LOCKSTEP = (*_COUNTS, "max_staleness", "evaluate", "sample_timeout")


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
        control: how many items may be at work in a stage at once: ``"pull"`` for as many as there are slots,
            ``"adaptive"`` for the paper's rate rule, or a ``ControlPolicy``, as ``Fixed(propose=16, validate=8)``.
        lockstep: run one step after the other in whole batches, exactly as the host does, through the same executor.
        plugins: further plugins for this run: objects with hook implementations, or names of entry points.
        evaluate: what the host's adapter can do at once: ``"example"`` (one example at a time, many at once),
            ``"batch"`` (whole batches, many at once) or ``"serial"`` (one batch at a time). Default: as declared for
            known adapters, else ``"serial"``.
        speculate: gepa, dspy: leave stages before their last sample has ended, as the plugins ``Decided()`` and
            ``Speculative()`` with their defaults do: gates once they are decided, validations once most of one speaks
            for its candidate, which is then built on. Default, ``None``: where it has been measured to pay, with the
            merge queue, when the budget pays for many validations and the slots do one in a few rounds.
        rollouts: gepa, dspy: how often every example is evaluated, in a rollout, a gate and a validation; its score is
            the mean. For metrics that say something else each time.
        remember_rejected: gepa, dspy: whether a text that its gate rejected in this run is rejected at once when it is
            proposed again from the same candidate, instead of being evaluated on other examples.
        max_items: proposals in flight at most. Default: as many as the slots need.
        run_dir: where the run is kept so that it can be taken up, if the host has no directory of its own (ACE) or
            names none. Default: the host's own.
        record: what the items' records hold: ``"full"``; ``"scores"`` for no word of prompts, feedback, reasons, errors
            or examples; ``False`` for no records at all.
        resume: what a run directory may be taken up by: ``"same"``, a run with the same data, program, metric and
            models, or ``"any"``.
        trust_run_dir: load what a run directory holds even where other users may write in it.
        epoch_barrier: ACE: whether an epoch begins only when the one before has ended. Default: its first samples wait
            until they would lag behind no more than the policy's ``max_staleness``; at once for policies without one.
        grace: seconds that what is nearly done, a validation, has after a stop was asked for.
        on_stop: ``"return"`` the best so far when the run is stopped by Ctrl-C, SIGTERM or one of the following, or
            ``"raise"`` a ``RunStopped`` that carries it.
        max_seconds: seconds after which the run stops. Default: no limit.
        stop_file: the path of a file: the run stops when it is there, and removes it. So it does, in any case, with
            ``flashevolve.stop`` in the run's directory.
        stop_score: the validation score of the best candidate at which the run stops.
        command_prefix: Meta-Harness: words that go before every command that a proposer or an evaluation starts, a
            container's or a sandbox's.
        progress: show the progress line. Default: ``True``.
        check_connection: try to connect to the models' servers before anything is spent.
        max_outage: seconds for which a server may fail without a success before the run ends, with its state kept.
        sample_timeout: seconds that one call in a slot (an example, a batch, a reflection) may take; a call that takes
            longer counts as failed and is tried again. Default: no limit.
        clock: ``"local"`` for threads and real time, ``"virtual"`` for a simulation (see the benchmarks).

    Raises:
        UsageError: a value that cannot work.
        UnknownNameError: a policy or plugin that is not installed.
    """

    max_concurrency: int | None = None
    reflection_concurrency: int | None = None
    staleness: Any = "merge"
    max_staleness: int | None = None
    control: Any = "pull"
    lockstep: bool = False
    plugins: Sequence[object] = ()
    evaluate: Granularity | None = None
    speculate: bool | None = None
    rollouts: int = 1
    remember_rejected: bool = False
    max_items: int | None = None
    run_dir: str | None = None
    record: Recorded | Literal[False] = "full"
    resume: Resume = "same"
    trust_run_dir: bool = False
    epoch_barrier: bool | None = None
    grace: float = 10.0
    on_stop: OnStop = "return"
    max_seconds: float | None = None
    stop_file: str | None = None
    stop_score: float | None = None
    command_prefix: Sequence[str] = ()
    progress: bool = True
    check_connection: bool = True
    max_outage: float = 45.0
    sample_timeout: float | None = None
    clock: Clock = "local"
    #: The last statistics of the run that finished last.
    last_run: Snapshot | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Check every value, before anything is spent."""
        for name in _COUNTS:
            _require_count(name, getattr(self, name), least=1)
        _require_count("max_staleness", self.max_staleness, least=0)
        self._check_run()
        self._check_evaluation()
        from flashevolve_plugins._redact import hide_in_log  # noqa: PLC0415 - only what the run needs

        hide_in_log()
        _require_seconds("max_outage", self.max_outage)
        if self.sample_timeout is not None:
            _require_seconds("sample_timeout", self.sample_timeout, none=True)
        self._check_stops()
        for name, known in (
            ("evaluate", get_args(Granularity)),
            ("clock", get_args(Clock)),
            ("resume", get_args(Resume)),
        ):
            value = getattr(self, name)
            if value not in known and not (name == "evaluate" and value is None):
                raise UnknownNameError(name, value, known)
        for name in ("lockstep", "progress", "check_connection", "trust_run_dir", "remember_rejected"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name}={getattr(self, name)!r} must be True or False.")
        if isinstance(self.plugins, (str, bytes)) or not isinstance(self.plugins, Iterable):
            raise UsageError(f"plugins={self.plugins!r} must be a list of plugins: write plugins=[{self.plugins!r}].")
        self.plugins = tuple(self.plugins)
        for name in _NOT_IN_LOCKSTEP:
            if self.lockstep and getattr(self, name) is not None:
                raise UsageError(
                    f"{name} does not go with lockstep=True, which runs one step after the other: drop one."
                )
        self.open_hooks()

    def _check_evaluation(self) -> None:
        if self.record is not False and self.record not in get_args(Recorded):
            raise UsageError(f'record={self.record!r} must be "full", "scores" or False.')
        rollouts: object = self.rollouts
        if isinstance(rollouts, bool) or not isinstance(rollouts, int) or rollouts < 1:
            raise UsageError(f"rollouts={rollouts!r} must be a whole number of at least 1.")
        if self.lockstep and self.remember_rejected:
            raise UsageError(
                "remember_rejected=True does not go with lockstep=True, which evaluates as the host does: drop one."
            )
        if self.lockstep and self.rollouts > 1:
            raise UsageError(
                f"rollouts={self.rollouts} does not go with lockstep=True, which evaluates as the host does: drop one."
            )

    def _check_run(self) -> None:
        for name in ("epoch_barrier", "speculate"):
            if (value := getattr(self, name)) is not None and not isinstance(value, bool):
                raise UsageError(f"{name}={value!r} must be True, False, or None for the default.")
        if self.run_dir is not None and not isinstance(self.run_dir, (str, PathLike)):
            raise UsageError(f"run_dir={self.run_dir!r} must be the path of a directory, or None.")
        prefix = self.command_prefix
        if isinstance(prefix, str) or not all(isinstance(each, str) for each in prefix):
            raise UsageError(f"command_prefix={prefix!r} must be a list of words, the command's name first.")
        self.command_prefix = tuple(prefix)

    def _check_stops(self) -> None:
        if not _is_number(self.grace) or self.grace < 0:
            raise UsageError(f"grace={self.grace!r} must be a number of seconds, 0 or more.")
        if self.max_seconds is not None and (not _is_number(self.max_seconds) or self.max_seconds <= 0):
            raise UsageError(f"max_seconds={self.max_seconds!r} must be a number of seconds above 0, or None.")
        if self.stop_score is not None and not _is_number(self.stop_score):
            raise UsageError(f"stop_score={self.stop_score!r} must be a number, or None.")
        if self.stop_file is not None and not (self.stop_file and isinstance(self.stop_file, (str, PathLike))):
            raise UsageError(f"stop_file={self.stop_file!r} must be the path of a file, or None.")
        if self.on_stop not in get_args(OnStop):
            raise UnknownNameError("on_stop", self.on_stop, get_args(OnStop))
        for name in ("grace", "on_stop", "max_seconds", "stop_file", "stop_score"):
            if self.lockstep and getattr(self, name) != getattr(type(self), name):
                raise UsageError(f"{name} does not go with lockstep=True, which stops as the host does: drop one.")

    def refuse(self, host: str, why: Mapping[str, str]) -> None:
        """Refuse options of gepa and dspy that another host has no use for.

        Args:
            host: its name.
            why: option to what the host does instead, in one clause.

        Raises:
            UsageError: one of them is set.
        """
        for name, clause in why.items():
            value = getattr(self, name)
            if value is not False and value != getattr(Flash, name):
                raise UsageError(f"{name}={value!r} is for gepa and dspy, and {host} {clause}: drop it.")

    def open_hooks(self, *, speculate: bool = False) -> RunHooks:
        """Fresh policies and plugins for one run.

        Args:
            speculate: what the default of the option of this name means in this run, with a policy of the merge queue.
        """
        from flashevolve_plugins._progress import ProgressLine  # noqa: PLC0415 - the import stays light
        from flashevolve_plugins.hooks import PolicySettings, StalenessPolicy  # noqa: PLC0415 - the import stays light
        from flashevolve_plugins.hooks.control import control_policy  # noqa: PLC0415
        from flashevolve_plugins.hooks.depth import QueuePolicy  # noqa: PLC0415
        from flashevolve_plugins.hooks.manager import RunHooks, make_policy  # noqa: PLC0415
        from flashevolve_plugins.hooks.speculation import Decided, Speculative  # noqa: PLC0415

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
        control = control_policy(self.control)
        if self.lockstep and control is not None:
            raise UsageError("control does not go with lockstep=True, which runs one step after the other: drop one.")
        if self.lockstep and self.speculate:
            raise UsageError("speculate does not go with lockstep=True, which runs one step after the other: drop one.")
        speculate = isinstance(policy, QueuePolicy) and speculate if self.speculate is None else self.speculate
        early = [Decided(), Speculative()] if speculate else []
        return RunHooks(policy, [*early, *self.plugins, *([ProgressLine()] if self.progress else [])], control)

    def open_driver(self, limits: Limits, *, pool: Pool, spent: int = 0, speculate: bool = False) -> Driver:
        """A driver for one run, with fresh policies, as of :meth:`open_hooks`."""
        from flashevolve_plugins._inline import InlineDriver  # noqa: PLC0415 - only what the run needs
        from flashevolve_plugins._local import LocalDriver  # noqa: PLC0415 - threads only when something runs
        from flashevolve_plugins._model import Patience  # noqa: PLC0415
        from flashevolve_plugins._virtual import VirtualDriver  # noqa: PLC0415

        kind: type[Driver] = InlineDriver if self.lockstep else LocalDriver
        if self.clock == "virtual":
            kind = VirtualDriver
        patience = Patience(self.max_outage, self.sample_timeout)
        return kind(limits, self.open_hooks(speculate=speculate), pool=pool, spent=spent, patience=patience)

    def __enter__(self) -> Flash:  # noqa: PYI034 - not meant to be subclassed
        """Let every supported host run inside the block use this flash."""
        _activation.push(self)
        return self

    def __exit__(self, *exc: object) -> None:
        """Restore what was in force before."""
        _activation.pop(self)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not isnan(value)


def _require_count(name: str, value: object, *, least: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{name}={value!r} must be a whole number of at least {least}, or None for the default.")


def _require_seconds(name: str, value: object, *, none: bool = False) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
    if not number:
        raise UsageError(f"{name}={value!r} must be a number of seconds above 0{', or None for no limit' * none}.")
