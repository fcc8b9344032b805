"""What the design says of the rooms, asked of the source."""

import ast
import re

LONGEST_FILE = 500
MAY_IMPORT_PLUGINS_LAZILY = re.compile(r"flashevolve_plugins\.(_flash|_activation|testing|_cli[\w.]*)")
PLUGIN_ROOMS = ("flashevolve_plugins.hooks", "flashevolve_plugins.adapters", "flashevolve_plugins.benchmarks")
HOSTS = ("dspy", "gepa", "litellm")
IMPURE = ("anyio", "asyncio", "concurrent", "datetime", "queue", "random", "secrets", "threading", "time")


def is_in(name, packages):
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def is_wrong(module, found):
    allowed = MAY_IMPORT_PLUGINS_LAZILY.fullmatch(module.name) and (found.lazy or found.typing_only)
    return is_in(found.name, PLUGIN_ROOMS) and not allowed


def test_every_module_has_a_docstring(modules):
    assert [module.name for module in modules if not ast.get_docstring(module.tree)] == []


def test_no_module_is_too_long_to_read_in_one_sitting(modules):
    lengths = {module.name: len(module.path.read_text(encoding="utf-8").splitlines()) for module in modules}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_FILE} == {}


def test_the_executor_imports_no_plugin_room(modules):
    wrong = [
        f"{module.name}:{found.line} imports {found.name}"
        for module in modules
        if module.folder == "flashevolve_plugins"
        for found in module.imports()
        if is_wrong(module, found)
    ]
    assert wrong == []


def test_the_executor_imports_no_host(modules):
    wrong = [
        f"{module.name}:{found.line} imports {found.name}"
        for module in modules
        if module.folder == "flashevolve_plugins" and not MAY_IMPORT_PLUGINS_LAZILY.fullmatch(module.name)
        for found in module.imports()
        if is_in(found.name, HOSTS)
    ]
    assert wrong == []


def test_hooks_import_neither_adapters_nor_benchmarks_nor_hosts(modules):
    forbidden = (*HOSTS, "flashevolve_plugins.adapters", "flashevolve_plugins.benchmarks")
    wrong = [
        f"{module.name}:{found.line} imports {found.name}"
        for module in modules
        if module.folder == "hooks"
        for found in module.imports()
        if is_in(found.name, forbidden)
    ]
    assert wrong == []


def test_an_adapter_imports_no_other_adapter_except_dspy_gepas(modules):
    prefix = "flashevolve_plugins.adapters."
    wrong = []
    for module in modules:
        if not module.name.startswith(prefix):
            continue
        own = module.name.removeprefix(prefix).split(".")[0]
        allowed = {own, "gepa"} if own == "dspy" else {own}
        wrong += [
            f"{module.name}:{found.line} imports {found.name}"
            for found in module.imports()
            if found.name.startswith(prefix) and found.name.removeprefix(prefix).split(".")[0] not in allowed
        ]
    assert wrong == []


def test_an_adapter_imports_no_benchmark(modules):
    wrong = [
        f"{module.name}:{found.line} imports {found.name}"
        for module in modules
        if module.folder == "adapters"
        for found in module.imports()
        if is_in(found.name, ["flashevolve_plugins.benchmarks"])
    ]
    assert wrong == []


def test_the_scheduler_and_all_it_imports_know_no_thread_no_clock_and_no_chance(modules):
    by_name = {module.name: module for module in modules}
    reached, waiting = set(), ["flashevolve_plugins._scheduler"]
    wrong = []
    while waiting:
        name = waiting.pop()
        reached.add(name)
        for found in by_name[name].imports():
            if found.typing_only:
                continue
            if is_in(found.name, IMPURE):
                wrong.append(f"{name}:{found.line} imports {found.name}")
            # "from a import b": b is a module of a, or a name in it
            target = found.name if found.name in by_name else found.name.rpartition(".")[0]
            if target in by_name and target != "flashevolve_plugins" and target not in reached:
                waiting.append(target)
    assert wrong == []
    assert len(reached) > 1, "the scheduler imports nothing of ours: was it moved?"
