"""What is measured with superagentic-metaharness. The environment ``metaharness`` has it."""

from importlib.util import find_spec

if find_spec("metaharness") is None:
    collect_ignore_glob = ["test_*.py"]
