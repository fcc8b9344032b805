"""ace-agent/ace: the checkout that ``FLASHEVOLVE_ACE_CHECKOUT`` names, else our own double of it."""

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

DOUBLE = str(Path(__file__).parent / "double")
CHECKOUT = os.environ.get("FLASHEVOLVE_ACE_CHECKOUT") or DOUBLE
MODULES = ("utils", "playbook_utils", "logger", "llm")  # as the checkout has them, at the top

if find_spec("ace") is not None:  # a package of that name is installed, and no other can be imported beside it
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="module", autouse=True)
def host():
    """The package, imported from the checkout, and forgotten afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(CHECKOUT)
        for name in MODULES:  # somebody else's of that name come back afterwards
            patch.delitem(sys.modules, name, raising=False)
        if CHECKOUT != DOUBLE:  # tiktoken takes its vocabulary from the network
            encoding = SimpleNamespace(encode=str.split)
            tiktoken = ModuleType("tiktoken")
            tiktoken.get_encoding = lambda name: encoding
            patch.setitem(sys.modules, "tiktoken", tiktoken)
        import flashevolve_plugins  # noqa: F401 - it teaches the host once that is imported

        package = import_module("ace")
        assert Path(package.__file__).is_relative_to(CHECKOUT)
        yield package
        for name in tuple(sys.modules):
            if name in MODULES or name.split(".")[0] == "ace":
                del sys.modules[name]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    """Runs save under the working directory."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def in_order(monkeypatch):
    """Tests of samples end in the order of the samples: the host's own order is that of a set."""
    monkeypatch.setattr(sys.modules["utils"], "as_completed", list)
