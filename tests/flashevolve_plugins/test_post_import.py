"""A watched package is reported once it is imported, and its import is otherwise what it was."""

import importlib
import importlib.util
import subprocess
import sys
import threading
from importlib.machinery import SourceFileLoader
from types import SimpleNamespace

import pytest

from flashevolve_plugins._post_import import watch

NAMES = ("watchedhost", "otherhost")


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    """Give two importable packages and a watch on the first, all undone after the test."""
    for name in NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("VALUE = 1\n")
        (tmp_path / name / "part.py").write_text("VALUE = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    kept = list(sys.meta_path)
    told, asked = [], []

    def names():
        asked.append(True)
        return frozenset({"watchedhost"})

    def start():
        watch(names, lambda name: told.append((name, getattr(sys.modules.get(name), "VALUE", None))))

    yield SimpleNamespace(folder=tmp_path, told=told, asked=asked, watch=start)
    sys.meta_path[:] = kept
    for name in [name for name in sys.modules if name.partition(".")[0] in NAMES]:
        del sys.modules[name]
    importlib.invalidate_caches()


def test_a_host_imported_later_is_told_once_complete(hosts):
    hosts.watch()
    assert hosts.told == []
    import watchedhost  # noqa: F401

    assert hosts.told == [("watchedhost", 1)]
    importlib.import_module("watchedhost")
    assert len(hosts.told) == 1


def test_a_host_imported_before_is_told_at_once(hosts):
    importlib.import_module("watchedhost")
    hosts.watch()
    assert hosts.told == [("watchedhost", 1)]


def test_its_module_keeps_its_own_loader(hosts):
    hosts.watch()
    module = importlib.import_module("watchedhost")
    assert type(module.__loader__) is SourceFileLoader
    assert module.__spec__.loader is module.__loader__
    assert module.__file__ == str(hosts.folder / "watchedhost" / "__init__.py")
    assert list(module.__path__) == [str(hosts.folder / "watchedhost")]
    assert module.__loader__.get_source("watchedhost") == "VALUE = 1\n"


def test_finding_its_spec_without_importing_it_tells_nothing(hosts):
    hosts.watch()
    spec = importlib.util.find_spec("watchedhost")
    assert spec.origin == str(hosts.folder / "watchedhost" / "__init__.py")
    assert spec.loader.get_source("watchedhost") == "VALUE = 1\n"
    assert spec.loader.is_package("watchedhost")
    assert hosts.told == []


def test_submodules_and_other_packages_are_untouched(hosts):
    hosts.watch()
    part, other = importlib.import_module("watchedhost.part"), importlib.import_module("otherhost.part")
    assert (part.VALUE, other.VALUE) == (2, 2)
    assert type(part.__spec__.loader) is type(other.__spec__.loader) is SourceFileLoader
    assert hosts.told == [("watchedhost", 1)]


def test_a_host_that_fails_inside_raises_its_own_error_and_is_told_when_it_works(hosts):
    source = hosts.folder / "watchedhost" / "__init__.py"
    source.write_text("raise RuntimeError('half installed')\n")
    hosts.watch()
    with pytest.raises(RuntimeError, match="half installed"):
        importlib.import_module("watchedhost")
    assert hosts.told == []
    assert "watchedhost" not in sys.modules
    source.write_text("VALUE = 'repaired, and longer than before'\n")
    importlib.invalidate_caches()
    importlib.import_module("watchedhost")
    assert hosts.told == [("watchedhost", "repaired, and longer than before")]


def test_a_missing_host_is_missing_as_ever(hosts):
    (hosts.folder / "watchedhost" / "__init__.py").unlink()
    (hosts.folder / "watchedhost").rename(hosts.folder / "gone")
    importlib.invalidate_caches()
    hosts.watch()
    with pytest.raises(ModuleNotFoundError, match="No module named 'watchedhost'"):
        importlib.import_module("watchedhost")
    assert hosts.told == []


def test_a_host_that_is_a_folder_without_init_can_be_imported(hosts):
    (hosts.folder / "watchedhost" / "__init__.py").unlink()
    importlib.invalidate_caches()
    hosts.watch()
    assert importlib.import_module("watchedhost.part").VALUE == 2


def test_the_names_are_asked_for_once(hosts):
    hosts.watch()
    importlib.import_module("otherhost")
    importlib.import_module("watchedhost")
    assert hosts.asked == [True]


def test_the_names_are_asked_for_only_when_something_foreign_is_imported(hosts):
    code = f"""
import sys
sys.path[:] = {sys.path!r}
import flashevolve_plugins
(watcher,) = [finder for finder in sys.meta_path if type(finder).__name__ == "_Watcher"]
import wave
assert "importlib.metadata" not in sys.modules
assert watcher._names is None
import otherhost
assert watcher._names >= {{"gepa", "dspy"}}
"""
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(command, cwd=hosts.folder, capture_output=True, text=True, check=False)
    assert (done.stderr, done.returncode) == ("", 0)


def test_a_host_under_way_when_the_watching_begins_is_told_when_it_is_there(hosts):
    source = "import importlib, sys\nsys.modules['start_watching'].watch()\nVALUE = 1\n"
    (hosts.folder / "watchedhost" / "__init__.py").write_text(source)
    sys.modules["start_watching"] = hosts
    try:
        importlib.import_module("watchedhost")
        importlib.import_module("otherhost")
    finally:
        del sys.modules["start_watching"]
    assert [name for name, _ in hosts.told] == ["watchedhost"]


def test_two_threads_that_import_at_once_both_get_the_complete_module_told_once(hosts):
    gate = SimpleNamespace(entered=threading.Event(), go=threading.Event())
    sys.modules["gate_of_the_test"] = gate
    source = "from gate_of_the_test import entered, go\nentered.set()\nassert go.wait(60)\nVALUE = 1\n"
    (hosts.folder / "watchedhost" / "__init__.py").write_text(source)
    hosts.watch()
    values, others = [], []

    def load():
        values.append(importlib.import_module("watchedhost").VALUE)

    try:
        threads = [threading.Thread(target=load) for _ in range(2)]
        threads[0].start()
        assert gate.entered.wait(60)
        threads[1].start()
        other = threading.Thread(target=lambda: others.append(importlib.import_module("otherhost").VALUE))
        other.start()
        other.join(60)
        assert others == [1]  # another package is not held up
        gate.go.set()
        for thread in threads:
            thread.join(60)
    finally:
        gate.go.set()
        del sys.modules["gate_of_the_test"]
    assert values == [1, 1]
    assert hosts.told == [("watchedhost", 1)]
