"""Meta-Harness: ``superagentic-metaharness``, and a checkout of the paper's own code."""

from flashevolve_plugins.adapters.meta_harness.gepa_engine import SUPPORTED, gepa_has_engine
from flashevolve_plugins.hooks import AdapterRegistry, HostAdapter, hookimpl


@hookimpl
def flashevolve_register_adapters(registry: AdapterRegistry) -> None:
    """Watch the package ``metaharness``; gepa's own engine is listed where a gepa has one."""
    registry.add(
        HostAdapter(
            "metaharness",
            extra="meta-harness",
            supported="superagentic-metaharness 0.4, and a checkout of stanford-iris-lab/meta-harness",
            install=_install,
        )
    )
    if gepa_has_engine():
        registry.add(HostAdapter("gepa.oa.engines", extra="gepa", supported=SUPPORTED, install=_install_gepa))


def _install() -> None:
    from flashevolve_plugins.adapters.meta_harness.install import install  # noqa: PLC0415 - needs metaharness

    install()


def _install_gepa() -> None:
    from flashevolve_plugins.adapters.meta_harness.gepa_engine import install  # noqa: PLC0415 - only where it is

    install()
