"""Which CPU instruction sets the machine code of a shared object really uses, by disassembly. Nothing is executed.

All code is swept, function by function, and each use of an extension beyond plain x86-64 is counted where it stands.
Whether a use may stay under a row's CPU baseline is `Isa.beyond`. Code behind a run-time check of the CPU may:

DeepSpeed 0.19.8's deepspeed_shm_comm compiles its bf16 and fp16 kernels with ``target("avx512bw")``, whatever the op is
compiled for, and asks the CPU in ``vector_kernel_level()``. But it is Python that asks and then calls another entry
of the same file, so no call graph in the machine code connects the two: from the file alone, that op cannot be told
from one that never asks. So the knowledge is data (`Dispatch`, from the facts about one release), and the machine
code has to agree with it: the check is in the file and reads what CPUID said, and only the functions that it guards
go beyond the baseline, only with the extensions that it asks for. A function inlined into another, a stripped file,
a check that is gone, one AVX-512 instruction elsewhere: all are refused.

What this cannot know: whether Python heeds the check (that stands in the facts, with its source); whether a function
carries a guarded name and is another one; what code that is made at run time uses; what lies in a segment that the
section table does not call code (objdump does not see that either).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from envbuild.elf.faults import ElfError
from envbuild.elf.functions import Functions, identifier, read_functions
from envbuild.elf.sections import SHF_EXECINSTR, Section, read_at, read_sections
from envbuild.elf.x86 import LEVELS, extension_of, extension_of_undecoded, level_of

# The ops have 0.1 to 0.3 MB of code, and a few MB are swept in seconds.
CODE_LIMIT = 32 << 20
# Real code has none: compilers put jump tables elsewhere. So many of them are no code, and are not worth the time.
_GAP_LIMIT = 1 << 16
_RIP = re.compile(r"\[rip ([+-]) (0x[0-9a-f]+|\d+)\]")
_MAX_INSTRUCTION = 15
_WINDOW = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """An extension that one function uses.

    Attributes:
        function: Its raw symbol, ``function at 0x...`` where it has none, ``.text+0x...`` outside every function.
        address: Where it is used first.
        example: The first instruction.
        extension: Such as AVX512BW, or ``unknown (...)``.
        count: Instructions.
    """

    function: str
    address: int
    example: str
    extension: str
    count: int

    @property
    def level(self) -> str | None:
        """The lowest psABI level with the extension; None where no level has it."""
        return level_of(self.extension)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Bytes of code that are no known instruction: ``count`` of them in a function, the first at ``address``."""

    function: str
    address: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Functions, by their name in the source, that are called only where the CPU has the extensions."""

    functions: tuple[str, ...]
    extensions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """What upstream guards by asking the CPU: in the function ``check``, by its name in the source."""

    check: str
    guards: tuple[Guard, ...]

    def covers(self, use: Use) -> bool:
        """Whether a use is one that the check guards."""
        name = identifier(use.function)
        return any(name in guard.functions and use.extension in guard.extensions for guard in self.guards)


@dataclass(frozen=True, slots=True, kw_only=True)
class Isa:
    """What the code of one shared object needs of an x86-64 CPU.

    Attributes:
        uses: Every extension beyond plain x86-64, by function.
        gaps: What could not be decoded. A judge has to refuse it: it may be any instruction.
        tests_cpu: Functions that run CPUID, or read what libgcc keeps of its answer.
        code_bytes: How much was swept.
        truncated: There was more code than the limit, or more of it undecodable than is worth counting; the rest was
            not looked at. A judge has to refuse it.
    """

    uses: tuple[Use, ...]
    gaps: tuple[Gap, ...]
    tests_cpu: tuple[str, ...]
    code_bytes: int
    truncated: bool

    @property
    def level(self) -> str | None:
        """The lowest psABI level that has all the code uses, guarded or not; None where none has."""
        ranks = [None if use.level is None else LEVELS.index(use.level) for use in self.uses]
        return None if None in ranks else LEVELS[max((rank for rank in ranks if rank is not None), default=0)]

    def beyond(self, baseline: str, dispatch: Dispatch | None = None) -> tuple[Use, ...]:
        """The uses that a CPU of the baseline may meet and does not have, in the order of the code.

        Args:
            baseline: One of ``LEVELS``.
            dispatch: What upstream guards in this op, if it does. It counts only if its check is really in the code.
        """
        allowed = LEVELS.index(baseline)
        checks = {identifier(name) for name in self.tests_cpu}
        guarded = dispatch if dispatch is not None and dispatch.check in checks else None
        return tuple(
            use
            for use in self.uses
            if (use.level is None or LEVELS.index(use.level) > allowed)
            and not (guarded is not None and guarded.covers(use))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NotLookedAt:
    """Code for another kind of CPU, which this module does not disassemble."""

    machine: str


def read_isa(file: BinaryIO, *, limit: int = CODE_LIMIT) -> Isa | NotLookedAt:
    """Disassemble a shared object.

    Args:
        file: Open for reading, seekable.
        limit: Bytes of code to look at.

    Raises:
        ElfError: The file is no ELF file, is damaged, or has no section with code.
        OSError: The file cannot be read.
    """
    table = read_sections(file)
    if table.machine != "x86-64":
        return NotLookedAt(machine=table.machine)
    sections = [section for section in table.sections if section.flags & SHF_EXECINSTR and section.size]
    if not sections:
        raise ElfError("no section of it holds code, so what its code needs cannot be told")
    sweep = _Sweep(read_functions(file, table))
    left = limit
    for section in sections:
        size = min(section.size, left)
        sweep.section(section, read_at(file, section.offset, size))
        left -= size
    return sweep.result(limit - left, truncated=sum(section.size for section in sections) > limit)


class _Sweep:
    """What has been found so far."""

    def __init__(self, functions: Functions) -> None:
        import capstone  # type: ignore[import-untyped]

        self._functions = functions
        self._machine: Any = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
        self._uses: dict[tuple[int, str], Use] = {}
        self._gaps: dict[int, Gap] = {}
        self._gap_bytes = 0
        self._tests: dict[str, None] = {}
        self._runs_cpuid: set[int] = set()

    def section(self, section: Section, code: bytes) -> None:
        first = section.address
        for start, end, name in self._functions.within(first, first + len(code)):
            function = name or f"{section.name}+{start - first:#x}"
            for address, data, mnemonic, operands in self._instructions(code, start - first, end - first, first):
                if not mnemonic:
                    self._gap(function, start, address, data)
                    continue
                if mnemonic == "cpuid":
                    self._runs_cpuid.add(start)
                    self._tests[function] = None
                elif "[rip " in operands and self._reads_cpu_data(address + len(data), operands):
                    self._tests[function] = None
                extension = extension_of(data, mnemonic, operands)
                if extension:
                    self._use(function, start, address, extension, f"{mnemonic} {operands}".strip)

    def result(self, code_bytes: int, *, truncated: bool) -> Isa:
        return Isa(
            # XGETBV belongs to the question that CPUID starts: whoever runs both runs it where CPUID allows it.
            uses=tuple(
                use
                for (start, extension), use in self._uses.items()
                if not (extension == "XSAVE" and start in self._runs_cpuid)
            ),
            gaps=tuple(self._gaps.values()),
            tests_cpu=tuple(self._tests),
            code_bytes=code_bytes,
            truncated=truncated or self._gap_bytes >= _GAP_LIMIT,
        )

    def _use(self, function: str, start: int, address: int, extension: str, example: Callable[[], str]) -> None:
        use = self._uses.get((start, extension))
        if use is None:
            use = Use(function=function, address=address, example=example(), extension=extension, count=0)
        self._uses[start, extension] = replace(use, count=use.count + 1)

    def _gap(self, function: str, start: int, address: int, data: bytes) -> None:
        gap = self._gaps.get(start, Gap(function=function, address=address, count=0))
        self._gaps[start] = replace(gap, count=gap.count + len(data))
        self._gap_bytes += len(data)
        extension, _ = extension_of_undecoded(data)
        if extension:
            self._use(function, start, address, extension, lambda: data[:8].hex(" "))

    def _instructions(self, code: bytes, at: int, end: int, base: int) -> Iterator[tuple[int, bytes, str, str]]:
        """Every instruction as (address, bytes, mnemonic, operands); undecodable bytes with an empty mnemonic."""
        while at < end and self._gap_bytes < _GAP_LIMIT:
            window = min(at + _WINDOW, end)
            for place, size, mnemonic, operands in self._machine.disasm_lite(code[at:window], base + at):
                at = place - base + size
                yield place, code[at - size : at], mnemonic, operands
            # The last instruction may go on in the next window.
            if at < window and (window == end or window - at >= _MAX_INSTRUCTION):
                data = code[at : min(at + _MAX_INSTRUCTION, end)]
                _, size = extension_of_undecoded(data)
                yield base + at, data[:size], "", ""
                at += size

    def _reads_cpu_data(self, following: int, operands: str) -> bool:
        found = _RIP.search(operands)
        if not found:
            return False
        target = following + int(found[1] + found[2], 0)
        return any(first <= target < after for first, after in self._functions.cpu_data)
