"""Keeps everything of a gepa run that a user can see."""

import copy
import marshal
import threading
from zlib import crc32

from gepa.core.state import GEPAState


class Log:
    def __init__(self):
        self.lines, self.threads = [], set()

    def log(self, message):
        if message.startswith("Traceback"):
            message = message.strip().rsplit("\n", 1)[-1]  # the way to the error is not the host's alone
        self.lines.append(message)
        self.threads.add(threading.get_ident())


class Callbacks:
    """Keeps every event, deeply copied, in order."""

    def __init__(self):
        self.events, self.threads = [], set()
        self.watchers = []  # called with (name, live event)

    def __getattr__(self, name):
        if not name.startswith("on_"):
            raise AttributeError(name)

        def keep(event):
            self.threads.add(threading.get_ident())
            self.events.append((name, frozen(event)))
            for watch in self.watchers:
                watch(name, event)

        return keep

    def named(self, name):
        return [event for kind, event in self.events if kind == name]

    @property
    def names(self):
        return [name for name, _ in self.events]


def frozen(value):
    """A copy that compares by content."""
    try:
        return marshal.loads(marshal.dumps(value))  # noqa: S302 - our own bytes; many times faster than a deep copy
    except ValueError:
        pass
    if isinstance(value, dict):
        return {key: frozen(each) for key, each in value.items()}
    if isinstance(value, GEPAState):
        return value.i, value.total_num_evals, digest(contents(value))
    if isinstance(value, BaseException):
        return type(value), str(value)
    if hasattr(value, "all_ids"):
        return type(value).__name__, list(value.all_ids())
    return copy.deepcopy(value)


def digest(value):
    try:
        return crc32(marshal.dumps(value, 2))  # the last version that does not depend on who shares what
    except ValueError:
        return crc32(repr(value).encode())


def contents(state):
    """What the host keeps in its state file."""
    return {name: each for name, each in vars(state).items() if name != "_budget_hooks"}


class Tracker:
    """Stands in for gepa's experiment tracker."""

    def __init__(self):
        self.calls, self.threads = [], set()

    def __enter__(self):
        self.calls.append(("enter",))
        return self

    def __exit__(self, *exc):
        self.calls.append(("exit", exc[0]))

    def __getattr__(self, name):
        if not name.startswith("log_"):
            raise AttributeError(name)

        def keep(*arguments, **words):
            self.threads.add(threading.get_ident())
            self.calls.append((name, frozen(arguments), frozen(words)))

        return keep
