"""Runs ``ACE.run`` of ace-agent/ace under flash: its checks, and the two methods that flash replaces."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._connection import require_connections
from flashevolve_plugins._errors import UsageError
from flashevolve_plugins.adapters.ace.ace_agent import AceAgent, urls_of
from flashevolve_plugins.adapters.ace.ace_agent_code import code_of
from flashevolve_plugins.adapters.ace.ace_agent_offline import Offline
from flashevolve_plugins.adapters.ace.ace_agent_online import Online
from flashevolve_plugins.adapters.ace.ace_agent_results import Paths
from flashevolve_plugins.adapters.ace.ace_agent_roles import Roles
from flashevolve_plugins.adapters.ace.host import require_own_steps
from flashevolve_plugins.adapters.ace.run import run_under_flash

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashevolve_plugins._flash import Flash
    from flashevolve_plugins.adapters.ace.ace_agent_results import Results


def require_runnable(ace: Any, flash: Flash, mode: Any, val_samples: Any) -> None:
    """Refuse what cannot work, before the host's first test.

    Raises:
        UsageError: offline without a validation sample, at which the host fails at its first validation; or a class
            that trains in its own way.
        HostError: a checkout without what flash calls.
        BackendError: no server.
    """
    if mode not in {"offline", "online"}:
        return
    code_of(ace)
    require_own_steps(ace, sys.modules["ace"].ACE, "_train_single_sample")
    if mode == "offline" and val_samples is not None and not len(val_samples):
        raise UsageError("val_samples is empty, and mode='offline' validates on it: pass at least one sample.")
    if flash.check_connection:
        require_connections(urls_of(ace))


def train_offline(ace: Any, flash: Flash, **given: Any) -> Any:
    """In place of ``ACE._offline_train``."""

    def results(roles: Roles, paths: Paths) -> Results:
        return Offline(ace, roles, paths, given["train_samples"], given["val_samples"])

    return _run(ace, flash, given, results)


def train_online(ace: Any, flash: Flash, **given: Any) -> Any:
    """In place of ``ACE._online_train_and_test``."""

    def results(roles: Roles, paths: Paths) -> Results:
        size = given["config"].get("online_eval_frequency", 100)
        return Online(ace, roles, paths, given["test_samples"], size)

    return _run(ace, flash, given, results)


def _run(ace: Any, flash: Flash, given: dict[str, Any], results: Callable[[Roles, Paths], Results]) -> Any:
    """Train. A run that is interrupted keeps what there is in the host's files."""
    params = ace._extract_config_params(given["config"])
    roles = Roles(ace, code_of(ace), given["data_processor"], params, given["log_dir"], lockstep=flash.lockstep)
    paths = Paths(given["save_path"], given["usage_log_path"], given["playbook_dir"])
    host = AceAgent(ace, roles, results(roles, paths))
    try:
        return run_under_flash(host, flash)
    except BaseException:
        host.results.save()
        raise
    finally:
        roles.gate.closed = True
