"""ace-framework, which imports as ``ace`` like two other packages. The environment ``aceframework`` has it."""

from importlib.util import find_spec

if find_spec("ace") is None or find_spec("ace.adaptation") is None:
    collect_ignore_glob = ["test_*.py"]
