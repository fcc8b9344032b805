"""Every error this package raises on purpose. One root, specific leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class FlashEvolveError(Exception):
    """The root of every error that FlashEvolve raises on purpose.

    The command line prints these as one sentence, without a traceback.
    """


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
    """A server or a metric that cannot give a single usable answer. The run's state is kept."""


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
