"""``flashevolve meta-harness``: runs an example of a stanford-iris-lab/meta-harness checkout, as it is."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from flashevolve_plugins._activation import disabled
from flashevolve_plugins._errors import RunStopped
from flashevolve_plugins._flash import Flash
from flashevolve_plugins.adapters.meta_harness.checkout import TEXT, Example, importing_from, load
from flashevolve_plugins.adapters.meta_harness.run import run_under_flash
from flashevolve_plugins.hooks import LongestFirst, Trailing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashevolve_plugins.adapters.meta_harness.checkout_host import CheckoutHost

STOPPED = 130  # the exit code of a program that Ctrl-C ended


def main(argv: Sequence[str]) -> int:
    """Run an example's own command line under flash.

    Args:
        argv: the arguments after ``flashevolve meta-harness``.

    Returns:
        The exit code.
    """
    options, rest = _parser().parse_known_args(argv)
    example = load(options.example)
    if not disabled():
        flash = Flash(
            max_concurrency=options.evaluators,
            reflection_concurrency=options.proposers,
            staleness=options.staleness,
            max_staleness=options.max_staleness,
            lockstep=options.lockstep,
            plugins=[*([Trailing()] if options.trailing else []), *([LongestFirst()] if options.longest_first else [])],
            command_prefix=shlex.split(options.command_prefix),
            on_stop="return" if options.lockstep else "raise",
        )
        example.module.run_evolve = partial(run_evolve, example, flash)
    kept = sys.argv
    sys.argv = [str(example.path / "meta_harness.py"), *rest]
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with importing_from(example.path):
            example.module.main()
    except (KeyboardInterrupt, RunStopped):
        print("flashevolve: stopped; what was evaluated is kept.", file=sys.stderr)  # noqa: T201 - a command speaks
        return STOPPED
    finally:
        sys.argv = kept
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


def run_evolve(example: Example, flash: Flash, args: Any) -> None:
    """What stands in for an example's ``run_evolve``.

    Args:
        example: the example.
        flash: the settings.
        args: the example's own, as its command line gives them.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the host's handlers would wait for the step under way
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    from flashevolve_plugins.adapters.meta_harness.terminal_bench import TerminalBench  # noqa: PLC0415 - one of two
    from flashevolve_plugins.adapters.meta_harness.text_classification import TextClassification  # noqa: PLC0415

    kind: type[CheckoutHost] = TextClassification if example.layout == TEXT else TerminalBench
    host = kind(example, args, lockstep=flash.lockstep)
    run_under_flash(host, flash, str(host.logs))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="flashevolve meta-harness",
        usage="flashevolve meta-harness PATH [the example's own options] [options]",
        description="Run an example of a stanford-iris-lab/meta-harness checkout with several proposers at once.",
        allow_abbrev=False,
    )
    parser.add_argument("example", metavar="PATH", help="reference_examples/text_classification, for instance")
    parser.add_argument("--proposers", type=int, metavar="N", help="proposers at once (4)")
    parser.add_argument("--evaluators", type=int, metavar="M", help="evaluation jobs at once (4, or --concurrent)")
    default = Flash.staleness
    parser.add_argument("--staleness", default=default, metavar="POLICY", help=f"staleness policy ({default})")
    parser.add_argument("--max-staleness", type=int, metavar="N", help="pool versions a candidate may lag behind")
    parser.add_argument("--trailing", action="store_true", help="stop an evaluation that trails the best too far")
    parser.add_argument("--longest-first", action="store_true", help="start jobs first that took longest before")
    parser.add_argument("--command-prefix", default="", metavar="WORDS", help="goes before every command: a sandbox's")
    parser.add_argument("--lockstep", action="store_true", help="run exactly as the host does, through the executor")
    return parser
