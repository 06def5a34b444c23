"""The shape of what is known about DeepSpeed's releases and its ops."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from envbuild.facts.fact import Fact, Lazy
from envbuild.facts.versions import within
from envbuild.model import MajorMinor, Version, Word

Accelerator = Literal["cpu", "cuda"]


class Minimum(Fact):
    """The first DeepSpeed that can do something (with torch, or CUDA, from a version on).

    Attributes:
        torch_required: The first torch that does not work at all without it.
    """

    version: Version
    torch_since: Version | None = None
    torch_required: Version | None = None
    cuda_since: MajorMinor | None = None


class Minimums(Lazy):
    """First DeepSpeed releases by ability."""

    cxx17: Minimum
    cxx20: Minimum
    cuda13: Minimum
    skip_cuda_check: Minimum
    weights_only: Minimum
    import_without_gpu: Minimum
    cpu: Minimum
    cpu_detected: Minimum


class UnseenGpu(Fact):
    """The DeepSpeed releases up to ``through`` that check CUDA versions only where a GPU is visible."""

    through: Version


class Launcher(Fact):
    """Options that people give to the ``deepspeed`` launcher and that it does not know."""

    refuses: tuple[str, ...]


class NativeFlags(Fact):
    """Compiler flags by which every builder ties an op to the CPU of the build machine."""

    flags: tuple[str, ...]


class CpuNumactl(Fact):
    """The DeepSpeed releases (``before`` excluded) that need a package, or a variable, on the CPU accelerator."""

    since: Version
    before: Version
    package: str
    variable: str


class CpuFp16(Fact):
    """Whether fp16 can be used on the CPU accelerator."""

    possible: bool


class HostBytes(Fact):
    """Host memory that ZeRO-3 with CPU offload holds in tensors, in bytes a parameter, by how it trains."""

    bf16: int
    bf16_fp32_accumulation: int
    fp32: int


class Pgetevents(Fact):
    """The DeepSpeed releases whose async_io calls io_pgetevents, the libaio that has it, and its symbol version."""

    since: Version
    through: Version | None = None
    symbol_version: Word
    libaio: Version


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


class CpuGuard(Lazy):
    """Functions, by their name in the source, that are called only where the CPU has the extensions."""

    functions: tuple[str, ...]
    extensions: tuple[str, ...]


class CpuDispatch(Fact):
    """What a span of DeepSpeed releases (both ends included) keeps behind a run-time check of the CPU.

    Attributes:
        check: The function that asks the CPU, by its name in the source.
    """

    since: Version
    through: Version
    check: str
    guards: tuple[CpuGuard, ...]


class Op(Fact):
    """One entry of DeepSpeed's op registry (see the comments in ``facts/deepspeed.yaml``)."""

    builder: str
    build_variable: str
    module: str
    since: dict[Accelerator, Version]
    toolkit: bool = False
    toolkit_since: Version | None = None
    toolkit_through: Version | None = None
    nvcc: bool = False
    nvcc_through: Version | None = None
    curand_through: Version | None = None
    implies: tuple[str, ...] = ()
    implies_since: Version | None = None
    build_packages: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    run_packages: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    link: dict[Accelerator, tuple[str, ...]] = Field(default_factory=dict)
    cpu_dispatch: tuple[CpuDispatch, ...] = ()

    def needs_toolkit(self, accelerator: Accelerator, deepspeed: str) -> bool:
        """Whether its builder wants a CUDA toolkit of torch's version, in that DeepSpeed."""
        always = self.toolkit and within(deepspeed, self.toolkit_since, None)
        return accelerator == "cuda" and _up_to(always, self.toolkit_through, deepspeed)

    def needs_nvcc(self, accelerator: Accelerator, deepspeed: str) -> bool:
        """Whether it compiles GPU code, in that DeepSpeed."""
        return accelerator == "cuda" and _up_to(self.nvcc, self.nvcc_through, deepspeed)

    def needs_curand(self, accelerator: Accelerator, deepspeed: str) -> bool:
        """Whether its GPU code includes curand's headers, in that DeepSpeed."""
        return accelerator == "cuda" and _up_to(False, self.curand_through, deepspeed)

    def implied(self, deepspeed: str) -> tuple[str, ...]:
        """The ops that are compiled, and loaded, along with it in that DeepSpeed."""
        return self.implies if within(deepspeed, self.implies_since, None) else ()

    def dispatch(self, deepspeed: str) -> CpuDispatch | None:
        """What it keeps behind a check of the CPU in that DeepSpeed; None where nothing is known to be."""
        return next((entry for entry in self.cpu_dispatch if within(deepspeed, entry.since, entry.through)), None)


def _up_to(always: bool, through: str | None, version: str) -> bool:
    return always or (through is not None and within(version, None, through))


class DeepSpeed(Lazy):
    """Everything about DeepSpeed's releases."""

    newest: Minimum
    minimums: Minimums
    unseen_gpu: UnseenGpu
    launcher: Launcher
    native_flags: NativeFlags
    cpu_numactl: CpuNumactl
    cpu_fp16: CpuFp16
    host_bytes: HostBytes
    io_pgetevents: Pgetevents
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
