"""A kernel as a notebook has it, with an event loop that runs on its main thread."""

from importlib.util import find_spec

if find_spec("jupyter_client") is None:
    collect_ignore_glob = ["test_*.py"]
