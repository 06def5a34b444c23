"""The shape of the facts: one class a kind, every entry with its mark, source and date.

A lookup returns None for what the facts do not know; it never guesses from a neighbour.
"""

from __future__ import annotations

import datetime
import re
from typing import Annotated, Literal

from pydantic import StringConstraints

from envbuild.facts import symbols
from envbuild.facts.deepspeed import DeepSpeed, ToleratedCuda
from envbuild.facts.fact import Fact, Lazy
from envbuild.facts.machines import Bus, Card, Model
from envbuild.facts.packages import Packages
from envbuild.facts.versions import parse, within
from envbuild.model import DottedNumber, MajorMinor, Version


class Toolkit(Fact):
    """What one CUDA toolkit's nvcc accepts: ``max_gcc`` is a GCC major."""

    max_gcc: int


class NvccWheels(Fact):
    """The first CUDA whose wheels hold nvcc."""

    since: MajorMinor


class Architecture(Fact):
    """The toolkits that compile for one compute capability, both ends included; None is an open end."""

    since: MajorMinor | None = None
    until: MajorMinor | None = None


class DriverFloor(Fact):
    """The oldest driver that something runs on."""

    floor: DottedNumber


class BundledDriver(Fact):
    """The driver that comes with a toolkit release."""

    driver: DottedNumber


class RequiredDriver(Fact):
    """What NVIDIA_REQUIRE_CUDA of NVIDIA's images of a toolkit accepts: a driver whose own CUDA is that new (from
    ``since`` on), or one of these older branches, on datacenter GPUs."""

    since: DottedNumber
    branches: tuple[int, ...]


class Gpu(Fact):
    """One GPU; ``sm`` is its compute capability, such as 9.0."""

    name: str
    sm: MajorMinor


class Datacenter(Fact):
    """The GPUs that are sold as datacenter products."""

    gpus: tuple[str, ...]


class Release(Fact):
    """One distribution release and its C library; ``images`` are pieces of image references that name it.

    Attributes:
        alone: Its families have no other release, so that no image has to say which one it is.
    """

    families: tuple[str, ...]
    images: tuple[str, ...]
    glibc: MajorMinor
    alone: bool = False


class Lifetime(Fact):
    """The last day on which something is supported, or was known to be."""

    end: datetime.date


class Lifetimes(Lazy):
    """Ends of support: of distribution releases, by their name in ``releases``, and of NVIDIA's CUDA images."""

    releases: dict[str, Lifetime]
    cuda_images: dict[str, Lifetime]


class GccFloor(Fact):
    """The oldest GCC that torch itself is built with, from a torch release on."""

    torch_since: Version
    gcc: MajorMinor


class NcclErrorHandling(Fact):
    """torch's variable that says what a failed collective does, and its old name until ``renamed_in``."""

    variable: str
    old: str
    renamed_in: Version


class MachineCode(Fact):
    """Compute capabilities that a torch build holds machine code for, oldest first."""

    sm: tuple[MajorMinor, ...]


class TorchBuild(Fact):
    """One build variant; ``nccl`` may be a series, such as 2.18, where no more is known.

    Attributes:
        triton: The version that its METADATA pins; None where it pins none.
        cuda_toolkit: The release of NVIDIA's wheel cuda-toolkit that its METADATA pins.
    """

    nccl: Version | None = None
    triton: Version | None = None
    cuda_toolkit: Version | None = None
    architectures: MachineCode | None = None


class ShippedBuild(Fact):
    """The build variant of a torch release that PyPI ships."""

    build: Annotated[str, StringConstraints(pattern=r"^(cpu|cu[0-9]{2,3})$")]


class Companion(Fact):
    """The release of torchvision or torchaudio that belongs to a torch release."""

    version: Version


class TorchVersion(Fact):
    """One torch release: the Pythons it has wheels for (None: newest unknown), its companions and its builds."""

    python_min: MajorMinor
    python_max: MajorMinor | None = None
    pypi: ShippedBuild | None = None
    torchvision: Companion | None = None
    torchaudio: Companion | None = None
    builds: dict[str, TorchBuild]


class Libraries(Fact):
    """The newest symbol versions that a span of torch releases asks for, and its C++ string ABI."""

    since: Version
    through: Version
    build: str | None = None
    platform: str | None = None
    glibc: MajorMinor
    glibcxx: DottedNumber | None = None
    cxxabi: DottedNumber | None = None
    cxx11_abi: Literal["old", "new"]


class NewestWheel(Fact):
    """The newest release of a kind of wheel."""

    newest: Version


class UpperLimit(Fact):
    """A limit on another package that torch releases before ``torch_below`` need; such as ``numpy<2``."""

    specifier: str
    torch_below: Version


class Facts(Lazy):
    """All facts, by the names that rows use."""

    toolkits: dict[str, Toolkit]
    nvcc_wheels: NvccWheels
    architectures: dict[str, Architecture]
    drivers: dict[str, DriverFloor]
    bundled_drivers: dict[str, BundledDriver]
    required_drivers: dict[str, RequiredDriver]
    gpus: dict[str, Gpu]
    cards: dict[str, Card]
    buses: dict[str, Bus]
    models: dict[str, Model]
    datacenter: Datacenter
    driver_floors: dict[str, DriverFloor]
    releases: dict[str, Release]
    packages: dict[str, Packages]
    runtimes: dict[str, symbols.Runtime]
    gcc_symbols: dict[str, symbols.GccSymbols]
    lifetimes: Lifetimes
    versions: dict[str, TorchVersion]
    libraries: tuple[Libraries, ...]
    gcc_floors: tuple[GccFloor, ...]
    nccl_error_handling: NcclErrorHandling
    numpy: UpperLimit
    setuptools: UpperLimit
    nccl_wheels: dict[str, NewestWheel]
    toolkit_wheels: dict[str, NewestWheel]
    deepspeed: DeepSpeed

    def torch_build(self, version: str, build: str) -> TorchBuild | None:
        """One torch build variant, when its release and the build are known."""
        known = self.versions.get(version)
        return known.builds.get(build) if known else None

    def torch_libraries(self, version: str, build: str, platform: str) -> Libraries | None:
        """The system libraries that a torch wheel asks for; ``platform`` such as linux/amd64."""
        for entry in self.libraries:
            fits = (entry.build in (None, build)) and (entry.platform in (None, platform))
            if fits and within(version, entry.since, entry.through):
                return entry
        return None

    def gcc_of_symbol(self, version: str) -> str | None:
        """The GCC release that first gave a symbol version, such as 11.1.0 for GLIBCXX_3.4.29."""
        return symbols.gcc_of(self.gcc_symbols.values(), version)

    def symbol_of_gcc(self, gcc: str, family: str = "GLIBCXX") -> str | None:
        """The newest symbol version that a GCC's own libstdc++ has; None for one beyond the newest that is known."""
        return symbols.newest_of(self.gcc_symbols.values(), gcc, family)

    def release_of_suite(self, family: str, suite: str) -> Release | None:
        """The distribution release with a code name, if it belongs to the family."""
        release = self.releases.get(suite)
        return release if release and family in release.families else None

    def release_of_image(self, family: str, image: str) -> Release | None:
        """The distribution release that an image reference names, if it belongs to the family."""
        for release in self.releases.values():
            if family in release.families and any(_names(image, piece) for piece in release.images):
                return release
        return None

    def name_of(self, release: Release) -> str:
        """The name under which a release stands in the facts."""
        return next(name for name, known in self.releases.items() if known is release)

    def gcc_floor(self, torch: str) -> GccFloor | None:
        """The oldest GCC for a torch release; None for one that is older than what was looked up."""
        floors = [floor for floor in self.gcc_floors if within(torch, floor.torch_since, None)]
        return max(floors, key=lambda floor: parse(floor.torch_since), default=None)

    def release_of(self, family: str, image: str, suite: str | None = None) -> Release | None:
        """A row's distribution release: the only one of its family, or the one that its image or suite names."""
        alone = (release for release in self.releases.values() if release.alone and family in release.families)
        named = next(alone, None) or self.release_of_image(family, image)
        return named or (self.release_of_suite(family, suite) if suite else None)

    def packages_of(self, family: str, image: str, suite: str | None = None) -> Packages | None:
        """What a row's distribution release calls its packages."""
        release = self.release_of(family, image, suite)
        return next((self.packages.get(name) for name, entry in self.releases.items() if entry is release), None)

    def toolkits_for(self, sm: str) -> list[str]:
        """The known toolkits that compile for a compute capability, oldest first."""
        return sorted((toolkit for toolkit in self.toolkits if self.compiles(toolkit, sm)), key=parse)

    def compiles(self, cuda: str, sm: str) -> bool | None:
        """Whether a toolkit compiles for a compute capability; None where the facts do not reach."""
        known = self.architectures.get(sm)
        if known is None:
            return None
        if not within(cuda, known.since, known.until):
            return False
        # An open end holds for the toolkits that were looked at, not for what may come.
        oldest, newest = min(self.toolkits, key=parse), max(self.toolkits, key=parse)
        return True if within(cuda, known.since or oldest, known.until or newest) else None

    def tolerates(self, deepspeed: str, cuda: str) -> ToleratedCuda | None:
        """The entry by which a DeepSpeed release lets a CUDA version stand in for another of its major."""
        for entry in self.deepspeed.tolerated_cuda:
            if cuda in entry.cuda and within(deepspeed, entry.since, None):
                return entry
        return None

    def driver_floor(self, cuda: str, gpus: tuple[str, ...] = ()) -> DriverFloor | None:
        """The oldest driver for a toolkit version and GPUs: the higher of what each of them asks."""
        toolkit = self.drivers.get(cuda.split(".")[0])
        floors = [floor for floor in (toolkit, *(self.driver_floors.get(gpu) for gpu in gpus)) if floor]
        return max(floors, key=lambda floor: parse(floor.floor), default=None)


def _names(image: str, piece: str) -> bool:
    # Whole words only: debian:1 is not in debian:12, and ubuntu:22.04 is in docker.io/library/ubuntu:22.04-minimal.
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(piece)}(?![A-Za-z0-9])", image) is not None
