"""The items' records of a run, as an observer hears of them."""

from flashevolve_plugins.hooks import hookimpl


class Records:
    """Keeps every record. Given to a run as one of its ``plugins``."""

    def __init__(self):
        self.all = []

    @hookimpl
    def flashevolve_item_ended(self, record):
        self.all.append(record)

    def first(self, matches):
        return next(each for each in self.all if matches(each))

    def ended(self, terminal):
        return [each for each in self.all if each.terminal.value == terminal]

    @property
    def merges(self):
        """Those that entered the pool."""
        return [each for each in self.ended("committed") if each.members]
