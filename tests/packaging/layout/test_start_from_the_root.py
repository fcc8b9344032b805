"""Python started in the root of the checkout finds the executor without its hooks, and says so."""

import json
import os
import shutil
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
sys.path.insert(0, "")  # what Python does for -c and -m; -I leaves it out
try:
    import flashevolve_plugins
except ImportError as error:
    print(json.dumps({"mro": [each.__name__ for each in type(error).__mro__], "says": str(error)}))
else:
    print(json.dumps({"imported": flashevolve_plugins.__file__}))
"""


@pytest.fixture
def root(source_root, tmp_path):
    shutil.copytree(source_root / "flashevolve_plugins", tmp_path / "flashevolve_plugins")
    (tmp_path / "hooks").mkdir()
    (tmp_path / "adapters").mkdir()
    return tmp_path


@pytest.mark.parametrize("flags", [[], ["-I", "-S"]], ids=["installed", "nothing installed"])
def test_a_start_in_the_root_says_what_to_do(root, flags):
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [sys.executable, *flags, "-c", PROGRAM], cwd=root, env=env, capture_output=True, text=True, check=True
    )
    answer = json.loads(done.stdout)
    assert "ImportError" in answer["mro"]
    assert "ModuleNotFoundError" not in answer["mro"]
    assert "pip install -e ." in answer["says"]
    assert "\n" not in answer["says"]
