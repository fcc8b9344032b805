"""gepa: ``gepa.optimize(..., executor="flash")``, and every other entry that builds a ``GEPAEngine``."""

from flashevolve_plugins.hooks import AdapterRegistry, HostAdapter, hookimpl


@hookimpl
def flashevolve_register_adapters(registry: AdapterRegistry) -> None:
    """Watch the package ``gepa``."""
    registry.add(HostAdapter("gepa", extra="gepa", supported="gepa 0.1.4", install=_install))


def _install() -> None:
    from flashevolve_plugins.adapters.gepa.install import install  # noqa: PLC0415 - needs gepa

    install()
