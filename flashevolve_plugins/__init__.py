"""FlashEvolve: asynchronous, versioned execution for the prompt and agent optimizers you already use.

Importing this package is the opt-in: from then on ``dspy.GEPA`` and ``gepa.optimize`` take ``executor=``::

    from flashevolve_plugins import Flash

    dspy.GEPA(metric=metric, auto="light", reflection_lm=lm, executor=Flash())
"""

import os as _os


def _has_rooms() -> bool:
    """Whether hooks can be imported: from inside the package, or from where an editable install maps it."""
    if _os.path.isdir(_os.path.join(__path__[0], "hooks")):  # noqa: PTH112, PTH118 - pathlib costs a third of the import
        return True
    from importlib.util import find_spec  # noqa: PLC0415

    return find_spec("flashevolve_plugins.hooks") is not None


if not _has_rooms():
    raise ImportError(
        "Python was started in the source checkout, where hooks/ and adapters/ lie beside flashevolve_plugins/ and not"
        " inside it: install the checkout first (pip install -e .), or start Python from another directory."
    )

from flashevolve_plugins import _activation
from flashevolve_plugins._errors import (
    BackendError,
    FlashEvolveError,
    HostError,
    InvalidTransition,
    PluginError,
    RunStopped,
    UnknownNameError,
    UsageError,
)
from flashevolve_plugins._flash import Flash

__all__ = [
    "BackendError",
    "Flash",
    "FlashEvolveError",
    "HostError",
    "InvalidTransition",
    "PluginError",
    "RunStopped",
    "UnknownNameError",
    "UsageError",
]

_activation.watch_hosts()
