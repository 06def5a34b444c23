"""What upstream says, as data with source, date and mark. ``load()`` reads it once."""

from envbuild.facts.read import load
from envbuild.facts.types import Fact, Facts, Gpu, Libraries, Op, Release, Toolkit, TorchBuild, TorchVersion

__all__ = ["Fact", "Facts", "Gpu", "Libraries", "Op", "Release", "Toolkit", "TorchBuild", "TorchVersion", "load"]
