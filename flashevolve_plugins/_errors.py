"""Every error this package raises on purpose. One root, specific leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class FlashEvolveError(Exception):
    """The root of every error that FlashEvolve raises on purpose.

    The command line prints these as one sentence, without a traceback. Secrets in what is quoted are hidden.
    """

    def __init__(self, *arguments: object) -> None:
        from flashevolve_plugins._redact import redact  # noqa: PLC0415 - importing the package stays light

        super().__init__(*(redact(each) if isinstance(each, str) else each for each in arguments))


class UsageError(FlashEvolveError, ValueError):
    """An option, a budget or an input that cannot work. The message names it and the remedy."""


class UnknownNameError(UsageError):
    """A name that nothing installed answers to.

    Args:
        kind: what was named, for example ``"staleness policy"``.
        name: the name that was given.
        known: the names that would have worked.
        hint: why the name may be missing, as a sentence of its own.
    """

    def __init__(self, kind: str, name: object, known: Iterable[str], hint: str = "") -> None:
        self.kind, self.name, self.known = kind, name, tuple(sorted(known))
        sentence = f"Unknown {kind} {name!r}: known are {', '.join(map(repr, self.known)) or 'none'}."
        super().__init__(f"{sentence} {hint}".rstrip())


class HostError(FlashEvolveError, ImportError):
    """A host that is missing, or whose version is not supported. The message names the extra to install."""


class BackendError(FlashEvolveError):
    """A server or a metric that cannot give a single usable answer. The run's state is kept.

    Attributes:
        best: the best candidate so far, component name to text, if a run of gepa or dspy had one.
        score: its validation score.
    """

    best: Mapping[str, str] | None = None
    score: float | None = None


class RunStopped(FlashEvolveError):  # noqa: N818 - nothing went wrong
    """A run that was stopped, with ``on_stop="raise"`` or before it had any result. Everything is saved.

    Args:
        reason: what stopped it.
        best: the best candidate, component name to text (for ACE the playbook, entry id to text); ``None`` where the
            seed was not validated yet.
        score: its validation score, or ``None``.
        run_dir: the run's directory, if it has one.
    """

    def __init__(
        self,
        reason: str,
        *,
        best: Mapping[str, str] | None = None,
        score: float | None = None,
        run_dir: str | None = None,
    ) -> None:
        self.reason, self.score, self.run_dir = reason, score, run_dir
        self.best = None if best is None else dict(best)
        if best is None:
            sentence = f"The run was stopped ({reason}) before the seed was validated, and has no result: run it again."
        elif run_dir is None:
            sentence = f"The run was stopped ({reason}): its best candidate is in .best."
        else:
            sentence = (
                f"The run was stopped ({reason}): its best candidate is in .best, and the same call with "
                f"{run_dir!r} goes on from there."
            )
        super().__init__(sentence)


def exit_error(raised: SystemExit) -> BackendError:
    """What a call of ``sys.exit`` in a slot is told as: it ends neither the slot's thread nor the process."""
    from flashevolve_plugins._redact import shown  # noqa: PLC0415 - as above

    called = f"sys.exit({shown(raised.code, 100)})"
    error = BackendError(f"What ran in a slot called {called}: let it raise an exception instead.")
    error.__cause__ = raised
    return error


def raised_in_slot(raised: BaseException) -> BaseException:
    """What a slot's code raised, as the caller's thread is told of it."""
    return exit_error(raised) if isinstance(raised, SystemExit) else raised


class PluginError(FlashEvolveError):
    """A plugin that raised.

    Args:
        plugin: the plugin's name.
        hook: the hook that was called.
        about: what it was called for, for example ``"item 12"``.
        error: what it raised; also the ``__cause__``.
    """

    def __init__(self, plugin: str, hook: str, about: str, error: BaseException) -> None:
        self.plugin, self.hook, self.about, self.error = plugin, hook, about, error
        super().__init__(f"Plugin {plugin!r} raised in {hook} for {about}: {type(error).__name__}: {error}")


class InvalidTransition(FlashEvolveError):  # noqa: N818 - the design's own word for it
    """An illegal move of an item: a mistake of ours, told with the item's whole story.

    Args:
        item: the item's number.
        move: the move that was refused.
        story: every move the item made before, oldest first.
    """

    def __init__(self, item: int, move: str, story: Sequence[str]) -> None:
        self.item, self.move, self.story = item, move, tuple(story)
        super().__init__(f"Item {item} cannot {move}. Its story: {' -> '.join(self.story) or 'none'}.")
