"""What was built, installed in a fresh environment, works outside the checkout."""

import shutil
import subprocess
import sys
import tarfile
import zipfile

ROOMS = {
    "flashevolve_plugins": "flashevolve_plugins",
    "hooks": "flashevolve_plugins/hooks",
    "adapters": "flashevolve_plugins/adapters",
    "benchmarks": "flashevolve_plugins/benchmarks",
}
PACKAGES = ["flashevolve_plugins", *(f"flashevolve_plugins.{room}" for room in ("hooks", "adapters", "benchmarks"))]
ADAPTERS = ["flashevolve_plugins.adapters.gepa", "flashevolve_plugins.adapters.dspy"]
IMPORT_ALL = f"import importlib, sys; [importlib.import_module(name) for name in {[*PACKAGES, *ADAPTERS]}]"
IMPORT_SECONDS = 0.1
TIMED_IMPORT = """
import time
start = time.perf_counter()
import flashevolve_plugins
print(time.perf_counter() - start)
"""
HEAVY = ["anyio", "dspy", "gepa", "litellm", "starlette"]


def files_of_the_rooms(source_root):
    for folder, installed_as in ROOMS.items():
        for path in (source_root / folder).rglob("*.py"):
            yield f"{folder}/{path.relative_to(source_root / folder).as_posix()}", installed_as


def test_the_wheel_holds_the_four_rooms_and_nothing_else(wheel, source_root):
    expected = {
        path.replace(path.split("/")[0], installed_as, 1) for path, installed_as in files_of_the_rooms(source_root)
    }
    expected.add("flashevolve_plugins/py.typed")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == expected


def test_the_sdist_holds_all_that_the_wheel_is_made_of(sdist, source_root):
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    needed = {path for path, _ in files_of_the_rooms(source_root)}
    needed |= {"pyproject.toml", "README.md", "LICENSE", "flashevolve_plugins/py.typed"}
    assert needed - held == set()


def test_the_installed_wheel_imports(installed):
    installed.run("python", "-c", IMPORT_ALL)


def test_the_command_line_says_how_to_use_it(installed):
    said = installed.run("flashevolve", "--help")
    for command in ("run", "plugins", "demo", "simulate-server"):
        assert command in said


def test_importing_is_quick(installed):
    # the best of several: what the import costs, not what else the machine did meanwhile
    best = min(float(installed.run("python", "-c", TIMED_IMPORT)) for _ in range(10))
    assert best < IMPORT_SECONDS


def test_importing_loads_neither_hosts_nor_event_loops(installed, tmp_path):
    for name in HEAVY:
        if name != "anyio":  # that one is really there
            (tmp_path / name).mkdir()
            (tmp_path / name / "__init__.py").write_text("", encoding="utf-8")
    ask = f"import flashevolve_plugins, sys, importlib.util as u; heavy = {HEAVY}\n"
    ask += "assert all(u.find_spec(name) for name in heavy)\nprint(sorted(set(heavy) & set(sys.modules)))"
    assert installed.run("python", "-c", ask, PYTHONPATH=str(tmp_path)).strip() == "[]"


def test_an_editable_install_imports_from_anywhere(editable, checkout):
    where = f"{IMPORT_ALL}; print(sys.modules['flashevolve_plugins.hooks'].__file__)"
    for folder in (editable.elsewhere, checkout, checkout / "tests"):
        assert editable.run("python", "-c", where, cwd=folder).strip() == str(checkout / "hooks" / "__init__.py")


def test_an_editable_install_has_the_command_line(editable):
    assert "plugins" in editable.run("flashevolve", "--help")


def test_the_example_of_a_third_party_policy_is_built_installed_beside_ours_and_run_by_its_name(
    wheel, source_root, tmp_path, install
):
    example = shutil.copytree(source_root / "examples" / "third-party-policy", tmp_path / "example")
    build = [sys.executable, "-m", "build", "--quiet", "--wheel", "--outdir", tmp_path / "dist", example]
    subprocess.run(build, check=True)
    (built,) = (tmp_path / "dist").glob("*.whl")
    both = install(tmp_path, f"{wheel}[gepa]", built, "pytest")
    listed = both.run("flashevolve", "plugins", COLUMNS="200")
    assert 'Flash(staleness="overtaken")' in listed
    assert "flashevolve-overtaken 0.1.0" in listed
    said = both.run("python", "-m", "pytest", "-q", "-W", "error", example / "tests", cwd=example / "tests")
    assert "passed" in said
    assert "failed" not in said
