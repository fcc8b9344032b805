"""Who is compared: names, and what each stands for. A new rival, or a new policy of flash, is one line here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from flashevolve_plugins._errors import UnknownNameError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

SEQUENTIAL = "sequential"
TURBO = "turbo-gepa"

#: Policies of flash: the name before ``:BOUND`` and ``/ITEMS``, and the options of ``Flash`` that it stands for. Any
#: other installed staleness policy goes by its own name. All but ``flash``, what users get who set nothing, leave no
#: stage early unless a plugin behind the name does.
POLICIES: dict[str, dict[str, Any]] = {
    "flash": {"speculate": None},
    "full": {"staleness": "full"},
    "guarded": {"staleness": "guarded"},
    "merge-remembers": {"staleness": "merge", "remember_rejected": True},
    "merge-at-once": {"least": 1},
    "merge-waits": {"least": 1},
    "guarded-remembers": {"staleness": "guarded", "remember_rejected": True},
}

#: Built-in plugins that a policy's name may carry: the name behind ``+``, and the class in
#: ``flashevolve_plugins.hooks``, which takes the number behind ``:`` as its first argument. A new one is one line here.
PLUGINS = {
    "reorder": "Reorder",
    "longest-first": "LongestFirst",
    "decided": "Decided",
    "speculative": "Speculative",
    "trailing": "Trailing",
}

#: Packages of rivals that live in an environment of their own, because theirs do not go with the hosts'.
REQUIREMENTS = {TURBO: ("turbo-gepa==0.1.6",)}

#: Examples of every kind, for error messages and help.
KNOWN = (
    SEQUENTIAL, "independent-16", "independent-16/best", "pxn-4x4", "gepa:pxn-2x4/best", TURBO,
    *POLICIES, "reflective", "best-first", "merge", "merge@adaptive", "merge@fixed:16-8",
)  # fmt: skip

#: Stages of one proposal, which have the first number of ``@fixed:P-V``; its validation has the second.
_PROPOSING = ("rollout", "propose", "gate")
_FIXED = re.compile(r"fixed:(?P<proposing>\d+)-(?P<validating>\d+)")
_STRATEGY = re.compile(r"independent-(?P<n>\d+)|pxn-(?P<p>\d+)x(?P<m>\d+)")
_POLICY = re.compile(
    r"(?P<name>[\w-]+?)(?::(?P<bound>\d+))?(?:/(?P<items>\d+))?(?:@(?P<control>[\w:-]+))?(?P<plugins>(?:\+[\w.:-]+)*)"
)
_PLUGIN = re.compile(r"(?P<name>[\w-]+)(?::(?P<number>\d+(?:\.\d+)?))?")


@dataclass(frozen=True)
class Rival:
    """Someone to compare.

    Args:
        name: as on the command line and in tables.
        host: who runs the loop: ``dspy.GEPA``, ``gepa.optimize`` with batched reflection, or TurboGEPA.
        sampling: the host's sampling strategy and its arguments, or ``None`` for its default.
        best_only: whether only the best improvement of a step is validated, rather than all.
        flash: options of ``Flash``, or ``None`` for the host's own loop.
        requirements: packages of an environment of its own; empty to run beside the hosts.
    """

    name: str
    host: Literal["dspy", "gepa", "turbo"] = "dspy"
    sampling: tuple[str, tuple[int, ...]] | None = None
    best_only: bool = False
    flash: Mapping[str, Any] | None = None
    requirements: tuple[str, ...] = ()

    def strategies(self) -> dict[str, Any]:
        """What to hand to ``gepa.optimize`` for its sampling and selection."""
        from gepa.strategies import proposal_sampling, proposal_selection  # noqa: PLC0415 - only with the host

        if self.sampling is None:
            return {}
        kind, numbers = self.sampling
        return {
            "sampling_strategy": getattr(proposal_sampling, kind)(*numbers),
            "selection_strategy": (
                proposal_selection.BestImprovement() if self.best_only else proposal_selection.AllImprovements()
            ),
        }


def parse(name: str) -> Rival:
    """The rival that a name stands for.

    Args:
        name: ``sequential``; ``independent-N`` or ``pxn-PxN``, with ``/best`` behind it where only the best improvement
            is validated, and ``gepa:`` before it where ``gepa.optimize`` runs; ``turbo-gepa``; or a policy of flash,
            ``NAME[:BOUND][/ITEMS]`` (``merge-waits:LEAST``), with ``@pull``, ``@adaptive`` or ``@fixed:P-V`` behind it
            for its control, and any number of ``+PLUGIN[:NUMBER]`` behind that: fresh ones each time.

    Raises:
        UnknownNameError: it stands for nothing.
        UsageError: a number in it cannot work.
    """
    if name == TURBO:
        return Rival(name, "turbo", requirements=REQUIREMENTS[TURBO])
    rest = name.removeprefix("gepa:")
    host: Literal["dspy", "gepa"] = "dspy" if rest == name else "gepa"
    if rest == SEQUENTIAL:
        return Rival(name, host)
    strategy, _, selection = rest.partition("/")
    found = _STRATEGY.fullmatch(strategy)
    if found is not None and selection in {"", "best"}:
        numbers = tuple(int(each) for each in found.groups() if each is not None)
        if 0 in numbers:
            raise UsageError(f"--rivals {name}: a strategy makes at least 1 proposal per step.")
        kind = ("IndependentSampling", "PxNSampling")[len(numbers) - 1]
        return Rival(name, host, (kind, numbers), best_only=selection == "best")
    return Rival(name, flash=_flash_options(name))


def _flash_options(name: str) -> dict[str, Any]:
    """Options of ``Flash`` that a policy's name stands for, checked by ``Flash`` itself."""
    from flashevolve_plugins import Flash  # noqa: PLC0415 - loads plugins

    policy = _POLICY.fullmatch(name)
    if policy is None:
        raise UnknownNameError("rival", name, KNOWN)
    options = {"speculate": False, **POLICIES.get(policy["name"], {"staleness": policy["name"]})}
    if "least" in options:  # a policy of its own for each run: it learns
        from flashevolve_plugins.hooks import Merge  # noqa: PLC0415 - loads plugins

        options["staleness"] = Merge(least=int(policy["bound"] or options["least"]))
        del options["least"]
    elif policy["bound"]:
        options["max_staleness"] = int(policy["bound"])
    if policy["items"]:
        options["max_items"] = int(policy["items"])
    if policy["control"]:
        options["control"] = _control(policy["control"])
    if policy["plugins"]:
        options["plugins"] = [_plugin(each) for each in policy["plugins"].split("+")[1:]]
    try:
        Flash(**options)
    except UnknownNameError as error:
        raise UnknownNameError("rival", name, KNOWN) from error
    return options


def _control(name: str) -> Any:
    """The control that ``adaptive``, ``pull`` or ``fixed:P-V`` stands for."""
    from flashevolve_plugins.hooks import Fixed  # noqa: PLC0415 - loads plugins

    fixed = _FIXED.fullmatch(name)
    if fixed is None:
        return name
    return Fixed(**dict.fromkeys(_PROPOSING, int(fixed["proposing"])), validate=int(fixed["validating"]))


def _plugin(text: str) -> object:
    """A fresh built-in plugin."""
    from flashevolve_plugins import hooks  # noqa: PLC0415 - loads plugins

    found = _PLUGIN.fullmatch(text)
    if found is None or found["name"] not in PLUGINS:
        raise UnknownNameError("plugin of a rival", text, PLUGINS)
    kind, number = getattr(hooks, PLUGINS[found["name"]]), found["number"]
    return kind() if number is None else kind(float(number) if "." in number else int(number))
