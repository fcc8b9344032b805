"""Somebody else's distribution: installed it does nothing, named it works, and ``flashevolve plugins`` shows it."""

import pytest

POLICY = """
from flashevolve_plugins.hooks import StalenessPolicy, hookimpl

print("imported")

class Young(StalenessPolicy):
    def judge(self, item, pool):
        print("asked")
        return self.accept() if item.staleness < 3 else self.discard("too old for me")

@hookimpl
def flashevolve_register_policies(registry):
    registry.add("young", lambda settings: Young())
"""
USE = """
from flashevolve_plugins import Flash
from flashevolve_plugins._model import ItemView
from flashevolve_plugins._pool import Pool

hooks = Flash({arguments}).open_hooks()
for staleness in (2, 3):
    judgement = hooks.judge_stale(ItemView(1, 0, staleness, "gate"), Pool())
    print(judgement.verdict.value, judgement.reason)
"""
LIST = "from flashevolve_plugins._cli import main; raise SystemExit(main(['plugins']))"


@pytest.fixture
def site(tmp_path):
    """Build the distribution ``young-policy 1.2.3`` as an installer lays it out."""
    folder = tmp_path / "site"
    information = folder / "young_policy-1.2.3.dist-info"
    information.mkdir(parents=True)
    (folder / "young_policy.py").write_text(POLICY)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: young-policy\nVersion: 1.2.3\n")
    (information / "entry_points.txt").write_text("[flashevolve_plugins]\nyoung = young_policy\n")
    return folder


def test_installed_it_does_nothing(python, site):
    done = python(USE.format(arguments="staleness='guarded', max_staleness=2"), site)
    said = "imported\naccept \ndiscard stale by 3, more than max_staleness=2\n"
    assert (done.stderr, done.returncode, done.stdout) == ("", 0, said)


def test_named_it_decides(python, site):
    done = python(USE.format(arguments="staleness='young'"), site)
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.splitlines() == ["imported", "asked", "accept ", "asked", "discard too old for me"]


def test_it_is_listed_with_its_origin_its_policy_and_its_status(python, site):
    done = python(LIST, site)
    assert (done.stderr, done.returncode) == ("", 0)
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines()]
    assert ["young", "active", "young-policy 1.2.3", "young_policy"] in rows
    assert ["young", "young", 'Flash(staleness="young")'] in rows


def test_blocked_it_is_not_imported_and_its_policy_is_unknown(python, site):
    listed = python(LIST, site, FLASHEVOLVE_BLOCK="young")
    assert "imported" not in listed.stdout
    assert "blocked" in next(line for line in listed.stdout.splitlines() if "young-policy 1.2.3" in line)
    used = python(USE.format(arguments="staleness='young'"), site, FLASHEVOLVE_BLOCK="young")
    sentence = used.stderr.splitlines()[-1]
    assert "Unknown staleness policy 'young': known are 'aggregate', 'best-first', 'full', 'guarded'," in sentence
    assert sentence.endswith("plugin 'young' of young-policy 1.2.3 is blocked by FLASHEVOLVE_BLOCK.")


def test_broken_it_is_named_in_a_warning_and_the_run_goes_on(python, site):
    (site / "young_policy.py").write_text("import a_package_that_is_not_there")
    done = python(USE.format(arguments="staleness='guarded', max_staleness=2"), site)
    assert done.returncode == 0
    assert "Plugin 'young' of young-policy 1.2.3 was not loaded: ModuleNotFoundError" in done.stderr
    assert done.stdout.startswith("accept")


@pytest.mark.parametrize("arguments", ["staleness='young'", "plugins=['young']"])
def test_broken_and_asked_for_it_is_named_with_its_distribution_in_one_sentence(python, site, arguments):
    (site / "young_policy.py").write_text("import a_package_that_is_not_there")
    done = python(USE.format(arguments=arguments), site)
    assert done.returncode == 1
    sentence = done.stderr.splitlines()[-1]
    assert sentence.startswith("flashevolve_plugins._errors.UnknownNameError: Unknown ")
    assert "plugin 'young' of young-policy 1.2.3 is not loaded: ModuleNotFoundError: No module named 'a_" in sentence


def test_a_built_in_name_stays_ours_whoever_comes_first_on_the_path(python, site):
    (site / "young_policy.py").write_text(POLICY.replace('"young"', '"guarded"'))
    done = python(USE.format(arguments=""), site)
    assert "Policy 'guarded' of plugin 'young' is already registered by plugin 'policies'" in done.stderr
    assert "asked" not in done.stdout


@pytest.mark.parametrize("module", ["young_policy", "young_policy.inner"])
def test_it_is_found_although_the_import_of_its_module_is_what_loads_the_plugins(python, site, module):
    package = site / "young_policy"
    package.mkdir()
    (site / "young_policy.py").unlink()
    code = f"import otherhost, flashevolve_plugins\n{POLICY}"
    (package / "__init__.py").write_text(code if "." not in module else f"import {module}")
    (package / "inner.py").write_text(code)
    (site / "young_policy-1.2.3.dist-info" / "entry_points.txt").write_text(
        f"[flashevolve_plugins]\nyoung = {module}\notherhost = other_adapter\n"
    )
    (site / "otherhost.py").write_text("READY = True\n")
    (site / "other_adapter.py").write_text(ADAPTER)
    use = USE.format(arguments="staleness='young'")
    done = python(f"import {module}\n{use}", site)
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.splitlines() == [
        "taught True",
        "imported",
        "asked",
        "accept ",
        "asked",
        "discard too old for me",
    ]


ADAPTER = """
from flashevolve_plugins.hooks import HostAdapter, hookimpl

def install():
    import otherhost
    print("taught", otherhost.READY)

@hookimpl
def flashevolve_register_adapters(registry):
    registry.add(HostAdapter("otherhost", extra="other", supported="otherhost 1", install=install))
"""


@pytest.mark.parametrize("order", ["import flashevolve_plugins, otherhost", "import otherhost, flashevolve_plugins"])
def test_an_adapter_is_installed_once_its_host_is_imported(python, site, order):
    (site / "other_adapter.py").write_text(ADAPTER)
    (site / "otherhost.py").write_text("READY = True\n")
    information = site / "other_adapter-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: other-adapter\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[flashevolve_plugins]\notherhost = other_adapter\n")
    done = python(order, site)
    assert (done.stderr, done.returncode, done.stdout.splitlines()[-1]) == ("", 0, "taught True")
