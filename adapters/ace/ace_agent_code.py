"""What flash calls of a checkout of ace-agent/ace: looked for, not pinned, since its private parts change."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from flashevolve_plugins._errors import HostError

#: Role, its method, and the arguments that it is called with.
ROLES = (
    ("generator", "generate", "question playbook context reflection use_json_mode call_id log_dir"),
    (
        "reflector",
        "reflect",
        (
            "question reasoning_trace predicted_answer ground_truth environment_feedback bullets_used "
            "use_ground_truth use_json_mode call_id log_dir"
        ),
    ),
    (
        "curator",
        "curate",
        (
            "current_playbook recent_reflection question_context current_step total_samples token_budget "
            "playbook_stats use_ground_truth use_json_mode call_id log_dir next_global_id"
        ),
    ),
)
#: Functions, which the host's module takes in from its top-level modules.
FUNCTIONS = (
    "apply_curator_operations",
    "count_tokens",
    "evaluate_single_test_sample",
    "evaluate_test_set",
    "extract_answer",
    "extract_playbook_bullets",
    "get_next_global_id",
    "get_playbook_stats",
    "log_bullet_usage",
    "parse_playbook_line",
    "update_bullet_counts",
)
#: Methods that flash stands in for, and what it takes of their arguments.
METHODS = (
    ("_offline_train", "train_samples val_samples data_processor config save_path usage_log_path playbook_dir log_dir"),
    ("_online_train_and_test", "test_samples data_processor config save_path usage_log_path playbook_dir log_dir"),
)
PARAMS = (
    "num_epochs",
    "max_num_rounds",
    "curator_frequency",
    "eval_steps",
    "save_steps",
    "token_budget",
    "use_json_mode",
    "no_ground_truth",
    "test_workers",
)
ATTRIBUTES = ("playbook", "best_playbook", "next_global_id", "max_tokens", "_extract_config_params")


def code_of(ace: Any) -> Any:
    """The host's module, with its functions.

    Args:
        ace: the user's ``ACE``.

    Raises:
        HostError: something that flash calls is not there. The message names it.
    """
    code = sys.modules["ace.ace"]
    missing = [f"{name}()" for name in FUNCTIONS if not callable(getattr(code, name, None))]
    missing += [f"ACE.{name}" for name in ATTRIBUTES if not hasattr(ace, name)]
    for name, arguments in METHODS:
        missing += _missing(getattr(ace, name), f"ACE.{name}", arguments.split())
    if hasattr(ace, "_extract_config_params"):
        missing += [f"config[{name!r}]" for name in PARAMS if name not in ace._extract_config_params({})]
    for role, method, arguments in ROLES:
        missing += _missing(getattr(getattr(ace, role, None), method, None), f"{role}.{method}", arguments.split())
    if missing:
        raise HostError(
            f"The checkout of ace-agent/ace at {code.__file__} does not have what flash calls ({', '.join(missing)}): "
            "check out a commit that has it, or run without executor=."
        )
    return code


def _missing(method: Any, name: str, arguments: list[str]) -> list[str]:
    """What a method does not take, or asks for that flash does not know of."""
    if not callable(method):
        return [f"{name}()"]
    parameters = inspect.signature(method).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return []
    missing = [f"{name}({each}=)" for each in arguments if each not in parameters]
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    needed = [each for each in parameters.values() if each.default is each.empty and each.kind in named]
    return missing + [f"{name}() without {each.name}=" for each in needed if each.name not in arguments]
