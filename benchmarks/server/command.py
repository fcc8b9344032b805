"""The command ``flashevolve simulate-server``."""

from __future__ import annotations

import argparse
import ipaddress
import json
import socket
import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from flashevolve_plugins.benchmarks.landscape import Landscape
from flashevolve_plugins.benchmarks.playbook_landscape import PlaybookLandscape
from flashevolve_plugins.benchmarks.server.faults import Faults
from flashevolve_plugins.benchmarks.server.latency import LatencyModel, OutputLengths
from flashevolve_plugins.benchmarks.server.settings import ServerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["main"]

_HIGHEST_PORT = 65535
_Kind = TypeVar("_Kind", Landscape, PlaybookLandscape, Faults)


class _UsageError(Exception):
    """What is wrong with the command line, in one sentence."""


class _Parser(argparse.ArgumentParser):
    """A parser that leaves it to the caller to report an error."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of leaving the process."""
        raise _UsageError(message)


def main(argv: list[str] | None = None) -> int:
    """Serve simulated chat completions until SIGTERM or SIGINT.

    Prints the base URL, one line, once it listens.

    Args:
        argv: the arguments; those of the process if None.

    Returns:
        The exit code: 0 after a clean end, 2 if an argument is wrong, the port is taken or a package is missing.
    """
    try:
        options = _parser().parse_args(argv)
        settings = _settings(options)
        listener = _listen(options.host, options.port)
    except (_UsageError, ValueError) as error:
        return _refuse(str(error))
    with listener:
        try:
            from flashevolve_plugins.benchmarks.server.serve import serve  # noqa: PLC0415 - needs an extra
        except ModuleNotFoundError as error:
            return _refuse(f"the package {error.name} is missing, install flashevolve-plugins[server]")
        host, port = listener.getsockname()[:2]
        address = f"[{host}]" if listener.family == socket.AF_INET6 else host
        serve(settings, listener, f"http://{address}:{port}/v1", stop_with_stdin=options.stop_with_stdin)
    return 0


def _refuse(reason: str) -> int:
    """Say why nothing is served, and return the exit code for it."""
    sys.stderr.write(f"simulate-server: {reason.rstrip('.')}.\n")
    return 2


def _parser() -> argparse.ArgumentParser:
    """Return the parser; its defaults are those of the settings."""
    latency, lengths = LatencyModel(), OutputLengths()
    parser = _Parser(
        prog="flashevolve simulate-server",
        description="Serve an OpenAI-compatible chat endpoint whose answers follow a landscape of hidden rules.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="a loopback address")
    add("--port", type=int, default=0, help="0 takes a free port")
    add("--seed", type=int, default=0, help="of output lengths and answers")
    add("--model", action="append", metavar="NAME", help="a name to serve, may be repeated (default: simulated)")
    add("--time-scale", type=float, default=latency.time_scale, help="factor on every duration, 0 answers at once")
    add("--max-num-seqs", type=int, default=latency.max_num_seqs, help="most requests that run at once")
    add("--base-token-time", type=float, default=latency.base_token_time, help="seconds per token, running alone")
    add("--half-batch", type=float, default=latency.half_batch, help="running requests that double the token time")
    add("--prefill-ratio", type=float, default=latency.prefill_ratio, help="cost of a prompt token, in output tokens")
    add("--first-token", type=float, default=latency.first_token, help="seconds before the first token, running alone")
    add("--spread", type=float, default=latency.spread, help="spread of the logarithm of a request's slowness")
    add("--mean-tokens", type=float, default=lengths.mean, help="mean output length")
    add("--sigma", type=float, default=lengths.sigma, help="spread of the logarithm of the output length")
    add("--longest", type=int, default=lengths.maximum, help="longest output, in tokens")
    add("--landscape", default="{}", metavar="JSON", help='parameters of the landscape, such as {"seed": 1}')
    add("--playbook", default="{}", metavar="JSON", help="the same of the landscape of playbooks, for ACE's roles")
    add("--max-requests", type=int, help="most requests under way, one more gets status 429 (default: they wait)")
    add("--retry-after", type=float, default=ServerSettings.retry_after, help="seconds that a refused client is told")
    add("--faults", metavar="JSON", help='what goes wrong on purpose, such as {"kinds": ["503"], "share": 0.1}')
    add("--stop-with-stdin", action="store_true", help="end when standard input closes")
    return parser


def _settings(options: argparse.Namespace) -> ServerSettings:
    """Return the settings the options ask for."""
    latency = LatencyModel(
        base_token_time=options.base_token_time,
        half_batch=options.half_batch,
        max_num_seqs=options.max_num_seqs,
        prefill_ratio=options.prefill_ratio,
        first_token=options.first_token,
        spread=options.spread,
        time_scale=options.time_scale,
    )
    lengths = OutputLengths(options.mean_tokens, options.sigma, options.longest)
    names = tuple(options.model or ServerSettings().models)
    return ServerSettings(
        _landscape("--landscape", options.landscape, Landscape),
        latency,
        lengths,
        options.seed,
        names,
        max_requests=options.max_requests,
        retry_after=options.retry_after,
        playbook=_landscape("--playbook", options.playbook, PlaybookLandscape),
        faults=None if options.faults is None else _landscape("--faults", options.faults, Faults),
    )


def _landscape(option: str, text: str, kind: Callable[..., _Kind]) -> _Kind:
    """Return the landscape, or the faults, that a JSON object describes."""
    try:
        values: dict[str, Any] = dict(json.loads(text))
    except (TypeError, ValueError):
        msg = f"{option} must be a JSON object, not {text}"
        raise _UsageError(msg) from None
    known = [field.name for field in fields(kind) if field.init]  # type: ignore[arg-type]
    if unknown := sorted(set(values) - set(known)):
        msg = f"{option} knows no {', '.join(unknown)}, it knows {', '.join(known)}"
        raise _UsageError(msg)
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    try:
        return kind(**values)
    except TypeError as error:
        msg = f"{option} has a value of the wrong type: {error}"
        raise _UsageError(msg) from None


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket on a loopback address."""
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        address = None
    if address is None or not address.is_loopback:
        msg = f"it serves this machine alone, so --host must be a loopback address such as 127.0.0.1, not {host}"
        raise _UsageError(msg)
    if not 0 <= port <= _HIGHEST_PORT:
        msg = f"--port must lie within 0 and {_HIGHEST_PORT}, not {port}"
        raise _UsageError(msg)
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET  # noqa: PLR2004 - IPv6
    try:
        return socket.create_server((str(address), port), family=family, backlog=2048)
    except OSError as error:
        msg = f"port {port} on {host} can't be used ({error.strerror}), choose another or 0 for a free one"
        raise _UsageError(msg) from None


def arguments(settings: ServerSettings, port: int) -> Sequence[str]:
    """Return the command line that serves ``settings``."""
    latency, lengths = settings.latency, settings.lengths
    values: dict[str, object] = {
        "--port": port,
        "--seed": settings.seed,
        "--time-scale": latency.time_scale,
        "--max-num-seqs": latency.max_num_seqs,
        "--base-token-time": latency.base_token_time,
        "--half-batch": latency.half_batch,
        "--prefill-ratio": latency.prefill_ratio,
        "--first-token": latency.first_token,
        "--spread": latency.spread,
        "--mean-tokens": lengths.mean,
        "--sigma": lengths.sigma,
        "--longest": lengths.maximum,
        "--landscape": _described(settings.landscape),
        "--playbook": _described(settings.playbook),
        "--retry-after": settings.retry_after,
    }
    if settings.max_requests is not None:
        values["--max-requests"] = settings.max_requests
    if settings.faults is not None:
        values["--faults"] = _described(settings.faults)
    named = [f"--model={name}" for name in settings.models]
    return [*(f"{option}={value}" for option, value in values.items()), *named]


def _described(landscape: Landscape | PlaybookLandscape | Faults) -> str:
    """Return the JSON object that describes a landscape, or faults."""
    return json.dumps({field.name: getattr(landscape, field.name) for field in fields(landscape) if field.init})
