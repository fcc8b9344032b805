"""Fresh environments with the package in them."""

import os
import shutil
import subprocess
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Installation:
    """A virtual environment.

    Args:
        scripts: the folder of its programs.
        elsewhere: an empty folder to start programs in.
    """

    scripts: Path
    elsewhere: Path

    def run(self, program: str, *arguments: str | Path, cwd: Path | None = None, **env: str) -> str:
        """Run one of its programs and return what it printed; fail with all it said."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        done = subprocess.run(
            [self.scripts / program, *arguments],
            cwd=cwd or self.elsewhere,
            env={**clean, **env},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{program} {arguments}: {done.stdout}{done.stderr}"
        return done.stdout


def make_installation(folder: Path, *what: str | Path) -> Installation:
    venv.create(folder / "venv", with_pip=True)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    made = Installation(folder / "venv" / ("Scripts" if os.name == "nt" else "bin"), elsewhere)
    made.run("python", "-m", "pip", "install", "--quiet", *what)
    return made


@pytest.fixture
def install() -> Callable[..., Installation]:
    """Install something into a fresh environment in a folder."""
    return make_installation


@pytest.fixture(scope="session")
def dist() -> Path:
    """The folder into which tox built the sdist and the wheel."""
    return Path(os.environ["FLASHEVOLVE_DIST"])


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    """The built wheel."""
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def sdist(dist: Path) -> Path:
    """The built sdist."""
    (found,) = dist.glob("*.tar.gz")
    return found


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """A fresh environment with the wheel."""
    return make_installation(tmp_path_factory.mktemp("wheel"), wheel)


@pytest.fixture(scope="session")
def checkout(source_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, without what is not its own."""
    copy = tmp_path_factory.mktemp("checkout") / "root"
    others = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "build", "dist")
    shutil.copytree(source_root, copy, ignore=others)
    return copy


@pytest.fixture(scope="session")
def editable(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """A fresh environment with an editable install of the copy."""
    return make_installation(tmp_path_factory.mktemp("editable"), "-e", checkout)
