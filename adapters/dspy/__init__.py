"""dspy: ``dspy.GEPA(..., executor="flash")``."""

from flashevolve_plugins.hooks import AdapterRegistry, HostAdapter, hookimpl


@hookimpl
def flashevolve_register_adapters(registry: AdapterRegistry) -> None:
    """Watch the package ``dspy``."""
    registry.add(HostAdapter("dspy", extra="dspy", supported="dspy 3.3.1 to 3.4", install=_install))


def _install() -> None:
    from flashevolve_plugins.adapters.dspy.install import install  # noqa: PLC0415 - needs dspy

    install()
