"""Runs of gepa's own task with the real W&B and MLflow, without a network. The environment ``trackers`` has them."""

import gc
from importlib.util import find_spec

import pytest

if not all(map(find_spec, ("dspy", "mlflow", "pandas", "wandb"))):
    collect_ignore_glob = ["test_*.py"]
else:
    pytest.register_assert_rewrite("tracked", "gepa_checks")
    from gepa_kit import kit, no_thread_stays  # noqa: F401 - fixtures

    from flashevolve_plugins import Flash

EXECUTORS = {
    "lockstep": lambda: Flash(lockstep=True, progress=False),
    "local": lambda: Flash(progress=False, reflection_concurrency=4),
    "virtual": lambda: Flash(progress=False, reflection_concurrency=8, clock="virtual", staleness="guarded"),
}


@pytest.fixture(params=["local", "virtual"])
def flash(request):
    """Many slots, on threads or in virtual time, where items end in another order than they began."""
    return EXECUTORS[request.param]()


@pytest.fixture
def lockstep():
    return EXECUTORS["lockstep"]()


@pytest.fixture(scope="session")
def offline():
    """W&B writes files only."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("MODE", "offline"), ("SILENT", "true"), ("ERROR_REPORTING", "false")):
            patch.setenv(f"WANDB_{name}", value)
        yield


@pytest.fixture
def store(tmp_path, monkeypatch):
    """MLflow writes files."""
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "mlflow").as_uri())
    yield
    mlflow.set_tracking_uri(before)
    gc.collect()  # ends the threads of its thread pools
