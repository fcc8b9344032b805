"""ACE: ``ace-playbook``, ``ace-framework``, and the paper's own code, which all import as ``ace``."""

from flashevolve_plugins.hooks import AdapterRegistry, HostAdapter, hookimpl


@hookimpl
def flashevolve_register_adapters(registry: AdapterRegistry) -> None:
    """Watch the package ``ace``."""
    registry.add(
        HostAdapter(
            "ace",
            extra="ace",
            supported="ace-playbook 0.3, ace-framework 0.7.0 to 0.7.1, a checkout of ace-agent/ace",
            install=_install,
        )
    )


def _install() -> None:
    from flashevolve_plugins.adapters.ace.install import install  # noqa: PLC0415 - needs ace

    install()
