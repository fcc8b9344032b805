"""A run's directory under flash: whose it is, and what of an interrupted run is in it."""

from __future__ import annotations

import errno
import logging
import pickle
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gepa.core.data_loader import ListDataLoader
from gepa.core.state import GEPAState

from flashevolve_plugins._best_file import FILE as BEST
from flashevolve_plugins._content import digest
from flashevolve_plugins._errors import BackendError, UsageError
from flashevolve_plugins._keeping import Keeper
from flashevolve_plugins._run_dir import Lock, require_trusted, require_writable
from flashevolve_plugins._store import FILE, Store
from flashevolve_plugins.adapters.gepa.budget import STATE_FILE, resumes
from flashevolve_plugins.adapters.gepa.optimize_anything import is_written
from flashevolve_plugins.adapters.gepa.taking_up import TakingUp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashevolve_plugins._flash import Flash
    from flashevolve_plugins.adapters.gepa.evaluation import Evaluator

logger = logging.getLogger("flashevolve_plugins")

_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO, errno.ESTALE}
ORDER = "the order of the validation set"


@contextmanager
def unwritable_told(run_dir: str | None) -> Iterator[None]:
    """Tell in one sentence that the host could not write its state.

    Args:
        run_dir: the run's directory.

    Raises:
        BackendError: instead of the system's error.
    """
    try:
        yield
    except OSError as error:
        if run_dir is None or error.errno not in _UNWRITABLE:
            raise
        raise BackendError(
            f"The state cannot be written to run_dir={run_dir!r} ({error.strerror}): make room there, then run again "
            f"with it. Its last state is kept, and the best candidate in {BEST}."
        ) from error


@contextmanager
def opened(engine: Any, evaluator: Evaluator, flash: Flash) -> Iterator[TakingUp | None]:
    """The run's directory, for this run alone.

    Args:
        engine: the host's engine.
        evaluator: how its adapter evaluates.
        flash: the settings.

    Yields:
        What is kept there, ``None`` without a directory.

    Raises:
        UsageError: it cannot be used, or belongs to another run.
    """
    run_dir = engine.run_dir
    if run_dir is None:
        yield None
        return
    require_writable(run_dir)
    with Lock(run_dir):
        if not flash.trust_run_dir:
            require_trusted(run_dir, (STATE_FILE, FILE))
        state = _state(run_dir) if resumes(engine) else None
        store = Store(run_dir)
        try:
            _require_same(run_dir, engine, evaluator, store, state, anyway=flash.resume == "any")
            kept = TakingUp(Keeper(store), state, engine, evaluator, with_results=flash.record == "full")
            kept.tell()
            yield kept
        finally:
            store.close()


def _state(run_dir: str) -> Any:
    """The host's state file.

    Raises:
        UsageError: it is none.
    """
    try:
        newer = _newer(run_dir)
        state = None if newer else GEPAState.load(run_dir)
    except Exception as error:
        raise UsageError(
            f"{STATE_FILE} in run_dir={run_dir!r} cannot be read as a state of gepa ({type(error).__name__}: {error}): "
            "move it away to begin anew, or name another directory. Nothing was overwritten."
        ) from error
    if newer:
        raise UsageError(
            f"{STATE_FILE} in run_dir={run_dir!r} has schema {newer}, and this gepa reads up to "
            f"{GEPAState._VALIDATION_SCHEMA_VERSION}: install the gepa that wrote it, or name another directory. "
            "Nothing was overwritten."
        )
    return state


def _newer(run_dir: str) -> int | None:
    """The schema of a state file that the host does not know yet, and would take for its own."""
    with (Path(run_dir) / STATE_FILE).open("rb") as file:
        schema = pickle.load(file).get("validation_schema_version")  # noqa: S301 - the host does so, too
    known: int = GEPAState._VALIDATION_SCHEMA_VERSION
    return schema if isinstance(schema, int) and schema > known else None


def _require_same(  # noqa: PLR0913 - by name alone
    run_dir: str, engine: Any, evaluator: Evaluator, store: Store, state: Any, *, anyway: bool
) -> None:
    """The directory belongs to this run.

    Raises:
        UsageError: says what differs.
    """
    own = fingerprint(engine, evaluator)
    kept = dict(store.run.get("fingerprint", {}))
    versions = _versions()
    if state is not None or store.results:
        differing = [what for what, value in own.items() if kept.get(what, value) != value]
        if len(differing) > 1 and ORDER in differing:
            differing.remove(ORDER)
        if (
            state is not None
            and not is_written(engine.seed_candidate)
            and state.program_candidates[0] != engine.seed_candidate
            and "the program" not in differing
        ):
            differing.append("the program")
        if differing and not anyway:
            verb = "differ" if len(differing) > 1 or differing == ["the models"] else "differs"
            raise UsageError(
                f"run_dir={run_dir!r} belongs to another run ({' and '.join(differing)} {verb} from this one's): "
                "name another directory, move its files away to begin anew, or pass Flash(resume='any') to go on from "
                "the scores that it holds."
            )
        before = store.run.get("versions", versions)
        changed = [
            f"{name} {before.get(name)} then, {now} now" for name, now in versions.items() if before.get(name) != now
        ]
        if changed:
            logger.warning("The run in %s was begun with other versions: %s.", run_dir, "; ".join(changed))
    store.put_run("fingerprint", own)
    store.put_run("versions", versions)


def fingerprint(engine: Any, evaluator: Evaluator) -> dict[str, str]:
    """What a run is made of, as digests.

    Args:
        engine: the host's engine.
        evaluator: how its adapter evaluates.
    """
    order, examples = _of_loader(engine.valset, evaluator)
    _, training = _of_loader(engine.reflective_proposer.trainset, evaluator)
    program, metric, models = evaluator.identity()
    seed = None if is_written(engine.seed_candidate) else engine.seed_candidate
    return {
        "the training set": training,
        "the validation set": examples,
        ORDER: order,
        "the program": _short(seed, program),
        "the metric": _short(metric),
        "the models": _short(models),
    }


def _of_loader(loader: Any, evaluator: Evaluator) -> tuple[str, str]:
    """Digests of a data set with and without its order; of one that is not in memory only its ids and their number."""
    if type(loader) is not ListDataLoader:
        ids = list(loader.all_ids())
        return _short(ids), _short(len(ids))
    examples = [digest(evaluator.content(each)) for each in loader.items]
    return _short(examples), _short(sorted(examples))


def _short(*values: Any) -> str:
    return digest(*values).hex()[:16]


def _versions() -> dict[str, str]:
    found = {}
    for name in ("gepa", "dspy", "flashevolve-plugins"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
