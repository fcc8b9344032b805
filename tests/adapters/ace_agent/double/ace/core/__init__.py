from .analyzer import BulletpointAnalyzer
from .roles import Curator, Generator, Reflector

__all__ = ["BulletpointAnalyzer", "Curator", "Generator", "Reflector"]
