"""What every test gets: no leaked threads, reproducible property-based tests, the source's path, the fault table."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

try:
    import hypothesis
except ModuleNotFoundError:  # the environment `wheel` has no property-based test
    pass
else:
    # The same examples in every run, and no failure because a machine was busy.
    hypothesis.settings.register_profile("reproducible", derandomize=True, deadline=None, print_blob=True)
    hypothesis.settings.load_profile("reproducible")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell; tests send it to themselves
    signal.signal(signal.SIGINT, signal.default_int_handler)

OUR_PREFIX = "flashevolve"
Tell = Callable[..., None]
JOIN_SECONDS = 30.0  # a machine may be busy


@pytest.fixture(scope="session")
def source_root() -> Path:
    """The root of the checkout, which is not on the import path."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def fault_page(source_root: Path) -> str:
    """The page that lists every fault."""
    return (source_root / "docs" / "reliability.md").read_text(encoding="utf-8")


@pytest.fixture
def tell(fault_page: str) -> Tell:
    """Says what a test saw of a fault, and fails unless the page says the same and nothing was lost."""

    def tell(fault: str, *, tries: int, outcome: str, lost: int) -> None:
        assert lost == 0, f"{fault}: {lost} lost of {tries} tries"
        row = f"| {fault} | {tries} | {outcome} | {lost} |"
        assert row in fault_page, f"docs/reliability.md has no row {row}"

    return tell


@pytest.fixture(autouse=True)
def no_leaked_threads() -> Iterator[None]:
    """Fail a test that leaves a thread behind: any of ours, or anyone's that would keep the process from ending."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + JOIN_SECONDS
    suspects = [thread for thread in threading.enumerate() if thread not in before and _must_end(thread)]
    for thread in suspects:
        thread.join(max(0.0, deadline - time.monotonic()))
    leaked = sorted(thread.name for thread in suspects if thread.is_alive())
    if leaked:
        pytest.fail(f"The test left {len(leaked)} thread(s) running: {', '.join(leaked)}.", pytrace=False)


@pytest.fixture(autouse=True)
def no_handler_stays() -> Iterator[None]:
    """Fail a test that leaves a signal to a handler of its own: a later test's Ctrl-C would be lost in it."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    after = [signal.getsignal(number) for number in numbers]
    for number, handler in zip(numbers, before, strict=True):
        if signal.getsignal(number) != handler:
            signal.signal(number, handler)
    assert after == before, "The test left a signal handler behind."


def _must_end(thread: threading.Thread) -> bool:
    if thread.name.lower().startswith(OUR_PREFIX):
        return True
    return not thread.daemon and thread not in _pool_of_litellm()


def _pool_of_litellm() -> set[threading.Thread]:
    # litellm logs on a pool that it makes on import and never shuts down; the interpreter joins it at exit.
    module = sys.modules.get("litellm.litellm_core_utils.thread_pool_executor")
    executor = getattr(module, "executor", None)
    return set(getattr(executor, "_threads", ()))
