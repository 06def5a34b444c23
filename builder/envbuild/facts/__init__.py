"""What upstream says, as data with source, date and mark. ``load()`` reads it once."""

from envbuild.facts.deepspeed import DeepSpeed, Op
from envbuild.facts.fact import Fact
from envbuild.facts.machines import Bus, Card, Model
from envbuild.facts.packages import Packages, Python, Repository
from envbuild.facts.read import load, paths
from envbuild.facts.types import (
    Facts,
    Gpu,
    Libraries,
    Lifetime,
    Release,
    Toolkit,
    TorchBuild,
    TorchVersion,
)

__all__ = [
    "Bus",
    "Card",
    "DeepSpeed",
    "Fact",
    "Facts",
    "Gpu",
    "Libraries",
    "Lifetime",
    "Model",
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
