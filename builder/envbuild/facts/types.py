"""The shape of the facts: one class a kind, every entry with its mark, source and date.

A lookup returns None for what the facts do not know; it never guesses from a neighbour.
"""

from __future__ import annotations

import datetime
import re
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StringConstraints

from envbuild.facts.versions import parse, within
from envbuild.model import Frozen, Line, MajorMinor, Mark, Version

Accelerator = Literal["cpu", "cuda"]
DottedNumber = Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)*$")]


class _Lazy(Frozen):
    # One validator is built for the whole document instead of one a class: import is on the path of every build.
    model_config = ConfigDict(defer_build=True)


class Fact(_Lazy):
    """A statement with its evidence: how far it was checked, where, and when."""

    mark: Mark
    source: Line
    date: datetime.date
    note: Line = ""


class Toolkit(Fact):
    """What one CUDA toolkit's nvcc accepts: ``max_gcc`` is a GCC major."""

    max_gcc: int


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


class Gpu(Fact):
    """One GPU; ``sm`` is its compute capability, such as 9.0."""

    name: str
    sm: MajorMinor


class Datacenter(Fact):
    """The GPUs that are sold as datacenter products."""

    gpus: tuple[str, ...]


class Release(Fact):
    """One distribution release and its C library; ``images`` are pieces of image references that name it."""

    family: str
    images: tuple[str, ...]
    glibc: MajorMinor


class TorchBuild(Fact):
    """One build variant; ``nccl`` may be a series, such as 2.18, where no more is known."""

    nccl: Version | None = None


class TorchVersion(Fact):
    """One torch release: the Pythons it has wheels for (None: newest unknown) and its builds."""

    python_min: MajorMinor
    python_max: MajorMinor | None = None
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


class Numpy(Fact):
    """The NumPy that old torch releases need."""

    specifier: str
    torch_below: Version


class Minimum(Fact):
    """The first DeepSpeed that can do something (with torch, or CUDA, from a version on)."""

    version: Version
    torch_since: Version | None = None
    cuda_since: MajorMinor | None = None


class Minimums(_Lazy):
    """First DeepSpeed releases by ability."""

    cxx17: Minimum
    cxx20: Minimum
    cuda13: Minimum
    skip_cuda_check: Minimum
    cpu: Minimum
    cpu_detected: Minimum


class CpuNumactl(Fact):
    """The DeepSpeed releases (``before`` excluded) that need a package, or a variable, on the CPU accelerator."""

    since: Version
    before: Version
    package: str
    variable: str


class CpuFp16(Fact):
    """Whether fp16 can be used on the CPU accelerator."""

    possible: bool


class Pydantic(Fact):
    """The pydantic that a span of DeepSpeed releases works with."""

    since: Version | None = None
    through: Version | None = None
    specifier: str


class ToleratedCuda(Fact):
    """CUDA versions that DeepSpeed lets differ inside one major, from a release on."""

    since: Version | None = None
    cuda: tuple[MajorMinor, ...]


class Architectures(Fact):
    """Compute capabilities that DeepSpeed compiles for by default."""

    sm: tuple[MajorMinor, ...]


class PythonClassifiers(Fact):
    """The newest Python that DeepSpeed names."""

    newest: MajorMinor


class Op(Fact):
    """One entry of DeepSpeed's op registry (see the comments in ``data/deepspeed.yaml``)."""

    builder: str
    build_variable: str
    module: str
    since: dict[Accelerator, Version]
    toolkit: bool = False
    toolkit_through: Version | None = None
    nvcc: bool = False
    nvcc_through: Version | None = None
    implies: tuple[str, ...] = ()
    implies_since: Version | None = None
    build_packages: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    run_packages: dict[str, tuple[str, ...]] = Field(default_factory=dict)

    def needs_toolkit(self, accelerator: Accelerator, deepspeed: str) -> bool:
        """Whether its builder wants a CUDA toolkit of torch's version, in that DeepSpeed."""
        return accelerator == "cuda" and _up_to(self.toolkit, self.toolkit_through, deepspeed)

    def needs_nvcc(self, accelerator: Accelerator, deepspeed: str) -> bool:
        """Whether it compiles GPU code, in that DeepSpeed."""
        return accelerator == "cuda" and _up_to(self.nvcc, self.nvcc_through, deepspeed)

    def implied(self, deepspeed: str) -> tuple[str, ...]:
        """The ops that are compiled, and loaded, along with it in that DeepSpeed."""
        return self.implies if within(deepspeed, self.implies_since, None) else ()


def _up_to(always: bool, through: str | None, version: str) -> bool:
    return always or (through is not None and within(version, None, through))


class DeepSpeed(_Lazy):
    """Everything about DeepSpeed's releases."""

    newest: Minimum
    minimums: Minimums
    cpu_numactl: CpuNumactl
    cpu_fp16: CpuFp16
    pydantic: tuple[Pydantic, ...]
    tolerated_cuda: tuple[ToleratedCuda, ...]
    default_architectures: Architectures
    python_classifiers: PythonClassifiers
    ops: dict[str, Op]

    def with_implied(self, names: tuple[str, ...], version: str) -> tuple[str, ...]:
        """The ops that a DeepSpeed release compiles when asked for some: those, and what they bring along."""
        found = dict.fromkeys(names)
        for name in names:
            if name in self.ops:
                found.update(dict.fromkeys(self.ops[name].implied(version)))
        return tuple(found)


class Facts(_Lazy):
    """All facts, by the names that rows use."""

    toolkits: dict[str, Toolkit]
    architectures: dict[str, Architecture]
    drivers: dict[str, DriverFloor]
    bundled_drivers: dict[str, BundledDriver]
    gpus: dict[str, Gpu]
    datacenter: Datacenter
    driver_floors: dict[str, DriverFloor]
    releases: dict[str, Release]
    versions: dict[str, TorchVersion]
    libraries: tuple[Libraries, ...]
    numpy: Numpy
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

    def release_of_suite(self, family: str, suite: str) -> Release | None:
        """The distribution release with a code name, if it belongs to the family."""
        release = self.releases.get(suite)
        return release if release and release.family == family else None

    def release_of_image(self, family: str, image: str) -> Release | None:
        """The distribution release that an image reference names, if it belongs to the family."""
        for release in self.releases.values():
            if release.family == family and any(_names(image, piece) for piece in release.images):
                return release
        return None

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
