"""The rivals, the landscape they climb and the scripts behind every number we publish."""

from flashevolve_plugins.benchmarks.landscape import Example, Landscape, Rule

__all__ = ["Example", "Landscape", "Rule"]
