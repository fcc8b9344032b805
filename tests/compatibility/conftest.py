"""What the matrix shares: recorded runs, replaced services, and the count of what was compared."""

import shutil
from collections import Counter

import pytest

pytest.register_assert_rewrite("gepa_checks")
from fake_services import Services  # noqa: E402
from gepa_kit import dispatch, kit, no_thread_stays  # noqa: E402, F401 - fixtures
from gepa_runs import Runner  # noqa: E402
from gepa_values import FOLDER  # noqa: E402
from page import rows  # noqa: E402

TALLY = pytest.StashKey[Counter]()


def pytest_configure(config):
    config.stash[TALLY] = Counter()


@pytest.fixture
def tally(request):
    """Counts what was compared, by a sentence's words."""
    return request.config.stash[TALLY]


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):  # one of several processes
        session.config.workeroutput["tally"] = dict(session.config.stash[TALLY])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    node.config.stash[TALLY].update(node.workeroutput.get("tally", {}))


def pytest_terminal_summary(terminalreporter, config):
    tally = config.stash[TALLY]
    for words, count in sorted(tally.items()):
        terminalreporter.write_line(f"matrix: {count} {words}")
    if tally:
        options = {(each.host, each.name) for each in rows()}
        values = sum(len(each.cases) for each in rows())
        pairs = sum(count for words, count in tally.items() if words.startswith("pairs"))
        terminalreporter.write_line(f"matrix: {len(options)} options, {values} values: {pairs} pairs of runs equal")


@pytest.fixture
def services(monkeypatch):
    return Services(monkeypatch)


@pytest.fixture
def runner(kit, services):  # noqa: F811
    yield Runner(kit, services)
    shutil.rmtree(FOLDER, ignore_errors=True)
