"""Which GPU code a shared object carries: cubins and PTX, by compute capability. Nothing is executed or decompressed.

nvcc puts *fatbins* into the section ``.nv_fatbin``: containers one after the other, each with one entry for each
architecture that one source file was compiled for. Only their headers are read, so a library of 1.5 GB costs a few
thousand small reads. ``__nv_relfatbin`` holds relocatable code in the same form: what nvcc links into ``.nv_fatbin``
in the end. It is counted and serves no GPU (at best a driver links and compiles its PTX).

NVIDIA publishes no description of the format. What stands here was found by compiling one kernel with nvcc 13.0 for
sm_80, 86, 90a, 100, 100f, 100a, 103a, 120f and PTX, compressed and not, relocatable and not, and comparing with
cuobjdump 13.5 (tests/unit/data/gpucode); then on libtorch_cuda.so of torch 2.11.0 and on NCCL 2.28.9: the same lists,
2,789 and 976 entries.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from envbuild.elf.faults import ElfError
from envbuild.elf.sections import Section, read_at, read_sections

_LOADED = ".nv_fatbin"
_RELOCATABLE = "__nv_relfatbin"
_MAGIC = 0xBA55ED50
_CONTAINER = struct.Struct("<IHHQ")  # magic, version, size of this header, bytes that follow it
_ENTRY = struct.Struct("<HHIQ12xI8xQ")  # kind, version, size of this header, padded bytes after it, SM, flags
_MIN_ENTRY = 64  # the compressor's figures follow; newer architectures have larger headers
_PTX = 1
_CUBIN = 2
_ARCHITECTURE_SPECIFIC = 1 << 20  # the "a" of sm_90a
_FAMILY_SPECIFIC = 1 << 21  # the "f" of sm_100f
# libtorch_cuda.so of torch 2.11.0 has some 2,800 entries.
_MAX_ENTRIES = 200_000
_MAX_PADDING = 4096
_Names = tuple[tuple[str, ...], tuple[str, ...]]  # cubins, PTX
_NAME = re.compile(r"(\d+)\.(\d)([af]?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Containers with the same set of code: ``count`` source files of the library were compiled for it."""

    cubins: tuple[str, ...]
    ptx: tuple[str, ...]
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCode:
    """The GPU code of one shared object.

    Attributes:
        cubins: Architectures with machine code, oldest first: ``8.0``, ``9.0a``, ``10.0f``.
        ptx: Architectures with PTX, which a driver that is new enough for the PTX compiles for newer GPUs.
        entries: Cubins and PTX of all containers that can be loaded.
        relocatable: Cubins and PTX that are only input for the device linker.
        kernels: The same by container. A library serves a GPU fully only if every container does.
        problems: What could not be read; a judge has to refuse it.
    """

    cubins: tuple[str, ...]
    ptx: tuple[str, ...]
    entries: int
    relocatable: int
    kernels: tuple[Kernels, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How a GPU is served: how many containers have a cubin for it, PTX only, or nothing."""

    cubin: int
    ptx_only: int
    nothing: int

    @property
    def complete(self) -> bool:
        """Whether there is GPU code, and a cubin in every container: nothing hangs on the driver."""
        return self.cubin > 0 and not self.ptx_only and not self.nothing


def read_gpu_code(file: BinaryIO) -> GpuCode:
    """Read the headers of all GPU code in a shared object; a file without any gives empty lists.

    Args:
        file: Open for reading, seekable.

    Raises:
        ElfError: The file is no ELF file, or its section table is damaged or gone.
        OSError: The file cannot be read.
    """
    table = read_sections(file)
    if not table.sections:
        raise ElfError("it has no section table, so its GPU code cannot be found")
    found: Counter[_Names] = Counter()
    problems: list[str] = []
    entries = {_LOADED: 0, _RELOCATABLE: 0}
    for section in table.named(*entries):
        read: list[tuple[_Names, int]] = []
        problem = _read(file, section, _MAX_ENTRIES - sum(entries.values()), read)
        if problem:
            problems.append(f"{section.name}: {problem}")
        for names, count in read:
            entries[section.name] += count
            if section.name == _LOADED and count:
                found[names] += 1
    return GpuCode(
        cubins=_in_order({name for cubins, _ in found for name in cubins}),
        ptx=_in_order({name for _, ptx in found for name in ptx}),
        entries=entries[_LOADED],
        relocatable=entries[_RELOCATABLE],
        kernels=tuple(Kernels(cubins=key[0], ptx=key[1], count=count) for key, count in sorted(found.items())),
        problems=tuple(problems),
    )


def coverage(code: GpuCode, sm: str) -> Coverage:
    """How a GPU of a compute capability, such as ``9.0``, is served."""
    cubin = ptx_only = nothing = 0
    for kernels in code.kernels:
        if any(cubin_runs_on(name, sm) for name in kernels.cubins):
            cubin += kernels.count
        elif any(ptx_runs_on(name, sm) for name in kernels.ptx):
            ptx_only += kernels.count
        else:
            nothing += kernels.count
    return Coverage(cubin=cubin, ptx_only=ptx_only, nothing=nothing)


def cubin_runs_on(name: str, sm: str) -> bool:
    """Whether a GPU executes a cubin: its major must be the same and its minor at least the cubin's.

    An ``a`` cubin runs on exactly its own capability, an ``f`` one on the later members of its family. (CUDA
    Programming Guide: "Compute Capabilities", "Feature Set Compiler Targets", and "Binary Compatibility". NVIDIA
    excepts Tegra chips, such as 8.7, from what 8.6 and 8.9 promise one another; no row is for one.)
    """
    code, suffix = _split(name)
    gpu, _ = _split(sm)
    return code == gpu if suffix == "a" else code[0] == gpu[0] and code[1] <= gpu[1]


def ptx_runs_on(name: str, sm: str) -> bool:
    """Whether a driver can compile PTX for a GPU: for its own capability and all newer ones.

    ``a`` and ``f`` PTX is bound like ``a`` and ``f`` cubins (same source). The driver must be new enough for the PTX
    version, which the minor-version compatibility of CUDA does not promise: that is for the caller to say.
    """
    code, suffix = _split(name)
    gpu, _ = _split(sm)
    return cubin_runs_on(name, sm) if suffix else code <= gpu


def _split(name: str) -> tuple[tuple[int, int], str]:
    found = _NAME.fullmatch(name)
    if not found:
        raise ValueError(f"not a compute capability: {name!r}")
    return (int(found[1]), int(found[2])), found[3]


def _in_order(names: set[str]) -> tuple[str, ...]:
    return tuple(sorted(names, key=_split))


def _read(file: BinaryIO, section: Section, budget: int, into: list[tuple[_Names, int]]) -> str:
    """Read every container of a section; what stopped it, if it did not come to the end."""
    try:
        for container in _containers(file, section, budget):
            into.append(container)  # noqa: PERF402 - what came before a damaged one is kept
    except ElfError as error:
        return error.message
    return ""


def _containers(file: BinaryIO, section: Section, budget: int) -> Iterator[tuple[_Names, int]]:
    """Every container of a section, with its number of entries.

    Raises:
        ElfError: At the first byte that is not what it should be. The containers before it have been given.
    """
    at, end = section.offset, section.offset + section.size
    while True:
        at = _after_padding(file, at, end)
        if at == end:
            return
        head = read_at(file, at, _CONTAINER.size)
        if end - at < _CONTAINER.size or len(head) < _CONTAINER.size:
            raise ElfError(f"the GPU code ends in the middle of a container, at {at - section.offset:#x}")
        magic, version, size, length = _CONTAINER.unpack(head)
        if magic != _MAGIC or version != 1 or size < _CONTAINER.size or size + length > end - at:
            raise ElfError(f"no container of GPU code where one should be, at {at - section.offset:#x}")
        names, count = _entries(file, at + size, at + size + length, section.offset, budget)
        budget -= count
        yield names, count
        at += size + length


def _entries(file: BinaryIO, at: int, end: int, base: int, budget: int) -> tuple[_Names, int]:
    names: dict[int, set[str]] = {_CUBIN: set(), _PTX: set()}
    count = 0
    while at < end:
        head = read_at(file, at, _ENTRY.size)
        if end - at < _MIN_ENTRY or len(head) < _ENTRY.size:
            raise ElfError(f"a container ends in the middle of an entry, at {at - base:#x}")
        kind, _, size, length, sm, flags = _ENTRY.unpack(head)
        if size < _MIN_ENTRY or size + length > end - at:
            raise ElfError(f"an entry is larger than its container, at {at - base:#x}")
        if kind not in names or not 10 <= sm < 1000:
            raise ElfError(f"an entry of an unknown kind (kind {kind}, architecture {sm}), at {at - base:#x}")
        count += 1
        if count > budget:
            raise ElfError(f"more than {_MAX_ENTRIES} entries")
        suffix = "a" if flags & _ARCHITECTURE_SPECIFIC else "f" if flags & _FAMILY_SPECIFIC else ""
        names[kind].add(f"{sm // 10}.{sm % 10}{suffix}")
        at += size + length
    return (_in_order(names[_CUBIN]), _in_order(names[_PTX])), count


def _after_padding(file: BinaryIO, at: int, end: int) -> int:
    """The first byte that is not zero; containers begin at multiples of eight."""
    block = read_at(file, at, min(end - at, _MAX_PADDING))
    zeros = len(block) - len(block.lstrip(b"\0"))
    if zeros == len(block) and at + zeros < end:
        raise ElfError(f"{_MAX_PADDING} zeros where a container should be")
    return at + zeros
