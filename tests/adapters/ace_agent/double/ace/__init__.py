from .ace import ACE
from .core import BulletpointAnalyzer, Curator, Generator, Reflector

__all__ = ["ACE", "BulletpointAnalyzer", "Curator", "Generator", "Reflector"]
