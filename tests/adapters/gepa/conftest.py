"""What the tests of the gepa adapter share: runs in which everything a user can see is recorded."""

from importlib.util import find_spec

import pytest

if find_spec("gepa") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    pytest.register_assert_rewrite("gepa_checks")
    from gepa_kit import dispatch, kit, no_thread_stays  # noqa: F401 - fixtures
