"""The rivals, the landscape they climb and the scripts behind every number we publish."""

from flashevolve_plugins.benchmarks.landscape import Example, Landscape, Rule
from flashevolve_plugins.benchmarks.playbook_landscape import Advice, PlaybookLandscape

__all__ = ["Advice", "Example", "Landscape", "PlaybookLandscape", "Rule"]
