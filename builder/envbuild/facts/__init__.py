"""What upstream says, as data with source, date and mark. ``load()`` reads it once."""

from envbuild.facts.deepspeed import DeepSpeed, Op
from envbuild.facts.fact import Fact
from envbuild.facts.packages import Packages, Python, Repository
from envbuild.facts.read import load, paths
from envbuild.facts.types import Facts, Gpu, Libraries, Lifetime, Release, Toolkit, TorchBuild, TorchVersion

__all__ = [
    "DeepSpeed",
    "Fact",
    "Facts",
    "Gpu",
    "Libraries",
    "Lifetime",
    "Op",
    "Packages",
    "Python",
    "Release",
    "Repository",
    "Toolkit",
    "TorchBuild",
    "TorchVersion",
    "load",
    "paths",
]
