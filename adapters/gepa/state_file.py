"""Writes the host's state file, also where outputs cannot be pickled: a run must not fail over that at its end."""

from __future__ import annotations

import logging
import pickle
from importlib.util import find_spec
from typing import Any

logger = logging.getLogger("flashevolve_plugins")


class StateWriter:
    """Writes as the host does; where that fails, with cloudpickle; where that fails too, with a text for every output.

    Args:
        kind: the host's class of states.
    """

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._ways = [self._as_the_host, self._with_cloudpickle, self._with_texts]
        if find_spec("cloudpickle") is None:
            self._ways.remove(self._with_cloudpickle)

    def write(self, state: Any, run_dir: str, *, use_cloudpickle: bool) -> None:
        """Write the state file whole, or leave the old one.

        Raises:
            OSError: it cannot be written.
            Exception: it cannot be pickled, and the outputs are not the reason.
        """
        while True:
            try:
                self._ways[0](state, run_dir, use_cloudpickle=use_cloudpickle)
            except OSError:
                raise
            except Exception as error:
                if len(self._ways) == 1:
                    raise
                del self._ways[0]
                if self._ways == [self._with_texts]:
                    logger.warning(
                        "Best outputs cannot be pickled (%s: %s): the state file in %s has texts in their place; the "
                        "result has them. This is said once.",
                        type(error).__name__,
                        " ".join(str(error).split())[:200],
                        run_dir,
                    )
            else:
                return

    def _as_the_host(self, state: Any, run_dir: str, *, use_cloudpickle: bool) -> None:
        self._kind.save(state, run_dir, use_cloudpickle=use_cloudpickle)

    def _with_cloudpickle(self, state: Any, run_dir: str, *, use_cloudpickle: bool) -> None:
        del use_cloudpickle
        self._kind.save(state, run_dir, use_cloudpickle=True)

    def _with_texts(self, state: Any, run_dir: str, *, use_cloudpickle: bool) -> None:
        written = object.__new__(type(state))
        written.__dict__ = dict(state.__dict__)
        outputs = state.best_outputs_valset or {}
        written.best_outputs_valset = {
            example: [(program, _keepable(output)) for program, output in found] for example, found in outputs.items()
        }
        self._kind.save(written, run_dir, use_cloudpickle=use_cloudpickle)


def _keepable(output: Any) -> Any:
    """The output, or what it looks like."""
    try:
        pickle.dumps(output)
    except Exception:  # noqa: BLE001 - whatever a user's object raises
        return repr(output)
    return output
