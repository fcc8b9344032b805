"""gepa's own ``MetaHarnessEngine``: listed where the installed gepa has one, here a double of it, and nowhere else."""

import importlib

import pytest

from flashevolve_plugins._errors import HostError
from flashevolve_plugins.adapters import meta_harness
from flashevolve_plugins.hooks import AdapterRegistry

SOURCES = {
    "a module": ("oa/engines.py", "class MetaHarnessEngine:\n    pass\n"),
    "a package": ("oa/engines/meta_harness/engine.py", "class MetaHarnessEngine(Engine):\n    pass\n"),
    "nothing": ("oa/other.py", "class MetaHarnessEngine:\n    pass\n"),
    "another engine": ("oa/engines.py", "class GEPAEngine:\n    pass\n"),
}


@pytest.fixture
def make_gepa(tmp_path, monkeypatch):
    """Puts a package ``gepa`` before any other, with one file more than its own."""

    def make(name, text):
        for path, content in (("__init__.py", "raise ImportError('nothing is imported to find out')\n"), (name, text)):
            target = tmp_path / "gepa" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content)
        monkeypatch.syspath_prepend(tmp_path)
        importlib.invalidate_caches()

    return make


def registered():
    registry = AdapterRegistry()
    meta_harness.flashevolve_register_adapters(registry)
    return {each.package: each for each, _ in registry}


@pytest.mark.parametrize("where", SOURCES)
def test_it_is_registered_only_where_it_is(make_gepa, where):
    make_gepa(*SOURCES[where])
    assert ("gepa.oa.engines" in registered()) is where.startswith("a ")
    assert "metaharness" in registered()


def test_what_is_not_run_yet_says_so(make_gepa):
    make_gepa(*SOURCES["a module"])
    adapter = registered()["gepa.oa.engines"]
    assert adapter.supported.startswith("none yet")
    with pytest.raises(HostError, match="is not run by flash yet: use superagentic-metaharness"):
        adapter.install()
