"""An OpenAI-compatible server whose speed and answers are simulated."""

from flashevolve_plugins.benchmarks.server.latency import LatencyModel, OutputLengths
from flashevolve_plugins.benchmarks.server.process import ServerStartError, SimulatedServer
from flashevolve_plugins.benchmarks.server.settings import ServerSettings

__all__ = ["LatencyModel", "OutputLengths", "ServerSettings", "ServerStartError", "SimulatedServer"]
