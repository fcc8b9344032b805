"""gepa's own adapters that need packages of their own. The environment ``adapters`` has them."""

from importlib.util import find_spec

import pytest

NEEDED = ("gepa", "langchain_core", "llm_structured_confidence", "mcp", "tqdm")

if not all(map(find_spec, NEEDED)):
    collect_ignore_glob = ["test_*.py"]
else:
    pytest.register_assert_rewrite("gepa_checks", "gepa_adapters")
    from gepa_kit import kit, no_thread_stays  # noqa: F401 - fixtures
