"""The command ``flashevolve``."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from flashevolve_plugins._activation import DISABLE_VARIABLE, disabled, process_default
from flashevolve_plugins._errors import FlashEvolveError, HostError, UsageError
from flashevolve_plugins._flash import Flash

if TYPE_CHECKING:
    from collections.abc import Sequence

USAGE_ERROR = 2  # the exit code of every error that is told in one sentence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: the arguments after ``flashevolve``; ``None`` for those of the process.

    Returns:
        The exit code: 0, or 2 after one sentence on standard error.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    commands = {
        "run": (_run, "run a script with flash"),
        "plugins": (_plugins, "what is installed"),
        "items": (_items, "what became of each proposal, and why"),
        "meta-harness": (_meta_harness, "a meta-harness checkout with several proposers at once"),
        "demo": (_demo, "dspy.GEPA with and without flash"),
        "bench": (_bench, "rivals at equal slots and calls; bench ace, bench meta-harness"),
        "simulate-server": (_simulate_server, "the simulated LLM server"),
    }
    listed = "\n".join(f"  {name:<17}{what}" for name, (_, what) in commands.items())
    parser = argparse.ArgumentParser(
        prog="flashevolve",
        description="Asynchronous, versioned execution for prompt and agent optimizers.",
        epilog=f"commands:\n{listed}\n\nflashevolve COMMAND --help tells more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=commands, metavar="COMMAND", help="one of those below")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the command's own arguments")
    parser.add_argument("--version", action="version", version=f"flashevolve {_version()}")
    if not arguments:
        parser.print_help()
        return 0
    chosen = parser.parse_args(arguments)
    try:
        return commands[chosen.command][0](chosen.arguments)
    except FlashEvolveError as error:
        from flashevolve_plugins._redact import visible  # noqa: PLC0415 - only where something is wrong

        print(f"flashevolve: {visible(str(error))}", file=sys.stderr)
        return USAGE_ERROR


def _run(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="flashevolve run", description="Run a Python script unchanged; every supported optimizer in it uses flash."
    )
    default = Flash.staleness
    parser.add_argument("--staleness", default=default, metavar="POLICY", help=f"staleness policy ({default})")
    parser.add_argument("--max-staleness", type=int, metavar="N", help="pool versions an item may lag behind")
    parser.add_argument(
        "--speculate",
        action=argparse.BooleanOptionalAction,
        help="leave stages before their last sample has ended (where it pays)",
    )
    parser.add_argument("--control", default=Flash.control, metavar="NAME", help="pull or adaptive (pull)")
    parser.add_argument("--max-concurrency", type=int, metavar="N", help="task slots (the host's number of threads)")
    parser.add_argument("--reflection-concurrency", type=int, metavar="N", help="reflection calls at once")
    parser.add_argument("--max-items", type=int, metavar="N", help="proposals in flight at most")
    parser.add_argument("--run-dir", metavar="DIR", help="for the items' records, where the host has no directory")
    parser.add_argument("--no-connection-check", action="store_true", help="do not try the models' servers first")
    parser.add_argument("--lockstep", action="store_true", help="run exactly as the host does, through the executor")
    parser.add_argument("script", help="the script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own arguments")
    options = parser.parse_args(arguments)
    script = Path(options.script)
    if not script.is_file():
        raise UsageError(f"There is no script {options.script!r}: give the path of a Python file.")
    flash = Flash(
        max_concurrency=options.max_concurrency,
        reflection_concurrency=options.reflection_concurrency,
        staleness=options.staleness,
        max_staleness=options.max_staleness,
        speculate=options.speculate,
        control=options.control,
        max_items=options.max_items,
        run_dir=options.run_dir,
        check_connection=not options.no_connection_check,
        lockstep=options.lockstep,
    )
    kept_arguments, kept_path = sys.argv, sys.path[:]
    sys.argv = [options.script, *options.arguments]
    sys.path[:1] = [str(script.resolve().parent)]
    try:
        with process_default(flash):
            runpy.run_path(options.script, run_name="__main__")
    finally:
        sys.argv, sys.path[:] = kept_arguments, kept_path
    return 0


def _plugins(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="flashevolve plugins", description="List what is installed.")
    parser.parse_args(arguments)
    from rich.console import Console  # noqa: PLC0415 - only this command draws tables
    from rich.table import Table  # noqa: PLC0415

    from flashevolve_plugins.hooks.manager import installed  # noqa: PLC0415

    everything = installed()
    plugins = Table("plugin", "status", "from", "module", title="Plugins", title_justify="left")
    for each in everything.plugins:
        plugins.add_row(each.name, each.status, each.origin, each.module)
    policies = Table("staleness policy", "plugin", "use", title="Policies", title_justify="left")
    for name, source in everything.policies:
        policies.add_row(name, source, f'Flash(staleness="{name}")')
    hosts = Table("host", "plugin", "supported", "status", title="Hosts", title_justify="left")
    for adapter, source in everything.adapters:
        hosts.add_row(adapter.package, source, adapter.supported, _host_status(adapter.package, adapter.extra))
    console = Console(markup=False, emoji=False)  # the cells are plain text: an extra stands in brackets
    console.print(plugins, policies, hosts, sep="\n")
    if disabled():
        console.print(f"{DISABLE_VARIABLE} is set: every run uses its host's own loop.")
    return 0


def _items(arguments: list[str]) -> int:
    from flashevolve_plugins._items_view import main as items  # noqa: PLC0415 - only this command needs it

    return items(arguments)


def _meta_harness(arguments: list[str]) -> int:
    from flashevolve_plugins.adapters.meta_harness.command import main as run  # noqa: PLC0415 - only this command

    return run(arguments)


def _host_status(package: str, extra: str) -> str:
    from importlib.metadata import packages_distributions, version  # noqa: PLC0415

    found = packages_distributions().get(package)  # some packages of one name come from several distributions
    if not found:
        return f"missing: pip install 'flashevolve-plugins[{extra}]'"
    return "installed: " + ", ".join(
        version(name) if name == package else f"{name} {version(name)}" for name in dict.fromkeys(found)
    )


def _demo(arguments: list[str]) -> int:
    _require("dspy", "demo")
    _require("starlette", "demo")
    from flashevolve_plugins.benchmarks.demo import main as demo  # noqa: PLC0415 - needs the extra

    return demo(arguments)


def _bench(arguments: list[str]) -> int:
    if arguments[:1] == ["ace"]:
        return _bench_ace(arguments[1:])
    if arguments[:1] == ["meta-harness"]:
        return _bench_meta_harness(arguments[1:])
    for package in ("dspy", "starlette", "matplotlib"):
        _require(package, "bench")
    from flashevolve_plugins.benchmarks.bench.command import main as bench  # noqa: PLC0415 - needs the extra

    return bench(arguments)


def _bench_ace(arguments: list[str]) -> int:
    _require("ace", "ace")
    from flashevolve_plugins.benchmarks.bench.ace_command import main as bench  # noqa: PLC0415 - needs the extra

    return bench(arguments)


def _bench_meta_harness(arguments: list[str]) -> int:
    _require("metaharness", "meta-harness")
    from flashevolve_plugins.benchmarks.bench.harness_command import main as bench  # noqa: PLC0415 - needs the extra

    return bench(arguments)


def _simulate_server(arguments: list[str]) -> int:
    _require("starlette", "server")
    _require("uvicorn", "server")
    from flashevolve_plugins.benchmarks.server.command import main as serve  # noqa: PLC0415 - needs the extra

    return serve(arguments)


def _version() -> str:
    from importlib.metadata import version  # noqa: PLC0415 - slow to import

    return version("flashevolve-plugins")


def _require(package: str, extra: str) -> None:
    from importlib.util import find_spec  # noqa: PLC0415

    if find_spec(package) is None:
        raise HostError(f"{package} is not installed: pip install 'flashevolve-plugins[{extra}]'.")
