"""CPU instruction sets from machine code: bytes from GNU as, files built in memory, whole, stripped and damaged."""

from __future__ import annotations

import io
import struct

import capstone  # type: ignore[import-untyped]
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from envbuild import facts
from envbuild.elf.functions import identifier
from envbuild.elf.isa import Dispatch, Gap, Guard, Isa, NotLookedAt, read_isa
from envbuild.elf.sections import ElfError
from envbuild.elf.x86 import LEVELS, extension_of, extension_of_undecoded, level_of

# Assembled by GNU as 2.40 (AT&T syntax); extensions from Intel's and AMD's manuals.
DECODED = [
    ("0f58c1", "addps %xmm1,%xmm0", None),
    ("f30f1efa", "endbr64", None),
    ("f390", "pause", None),
    ("0f0d08", "prefetchw (%rax)", None),
    ("660f1f0400", "nopw (%rax,%rax,1)", None),
    ("f30fbcc7", "rep bsf %edi,%eax", None),
    ("f00fc70f", "lock cmpxchg8b (%rdi)", None),
    ("58", "pop %rax", None),
    ("f20f7cc1", "haddps %xmm1,%xmm0", "SSE3"),
    ("db0f", "fisttpl (%rdi)", "SSE3"),
    ("660f3800c1", "pshufb %xmm1,%xmm0", "SSSE3"),
    ("660f3a0fc101", "palignr $1,%xmm1,%xmm0", "SSSE3"),
    ("660f3840c1", "pmulld %xmm1,%xmm0", "SSE4.1"),
    ("660f3a63c100", "pcmpistri $0,%xmm1,%xmm0", "SSE4.2"),
    ("f20f38f1c7", "crc32l %edi,%eax", "SSE4.2"),
    ("f30fb8c7", "popcnt %edi,%eax", "POPCNT"),
    ("f0480fc70f", "lock cmpxchg16b (%rdi)", "CMPXCHG16B"),
    ("9f", "lahf", "LAHF-SAHF"),
    ("c5f058c2", "vaddps %xmm2,%xmm1,%xmm0", "AVX"),
    ("c5f5fec2", "vpaddd %ymm2,%ymm1,%ymm0", "AVX"),
    ("c5f877", "vzeroupper", "AVX"),
    ("c4e275b8c2", "vfmadd231ps %ymm2,%ymm1,%ymm0", "FMA"),
    ("c4e27d13c1", "vcvtph2ps %xmm1,%ymm0", "F16C"),
    ("c4e270f2c2", "andn %edx,%ecx,%eax", "BMI1"),
    ("c4e278f3c9", "blsr %ecx,%eax", "BMI1"),
    ("c4e273f6c2", "mulx %edx,%ecx,%eax", "BMI2"),
    ("c4e271f7c2", "shlx %ecx,%edx,%eax", "BMI2"),
    ("f30fbdc7", "lzcnt %edi,%eax", "LZCNT"),
    ("0f38f007", "movbe (%rdi),%eax", "MOVBE"),
    ("0f01d0", "xgetbv", "XSAVE"),
    ("62f1744858c2", "vaddps %zmm2,%zmm1,%zmm0", "AVX512F"),
    ("6462f174485807", "vaddps %fs:(%rdi),%zmm1,%zmm0", "AVX512F"),
    ("62a1760058c2", "vaddss %xmm18,%xmm17,%xmm16", "AVX512F"),
    ("62f1741858c2", "vaddps {rn-sae},%zmm2,%zmm1,%zmm0", "AVX512F"),
    ("c5f892c8", "kmovw %eax,%k1", "AVX512F"),
    ("62f17548fcc2", "vpaddb %zmm2,%zmm1,%zmm0", "AVX512BW"),
    ("62f2f5488dc2", "vpermw %zmm2,%zmm1,%zmm0", "AVX512BW"),
    ("c4e1fb92c8", "kmovq %rax,%k1", "AVX512BW"),
    ("62f2f54840c2", "vpmullq %zmm2,%zmm1,%zmm0", "AVX512DQ"),
    ("c5f992c8", "kmovb %eax,%k1", "AVX512DQ"),
    ("62f27d48c4c1", "vpconflictd %zmm1,%zmm0", "AVX512CD"),
    ("62a1740058c2", "vaddps %xmm18,%xmm17,%xmm16", "AVX512VL"),
    ("62e17530fe07", "vpaddd (%rdi){1to8},%ymm17,%ymm16", "AVX512VL"),
    ("660f38dcc1", "aesenc %xmm1,%xmm0", "AES"),
    ("c4e271dcc2", "vaesenc %xmm2,%xmm1,%xmm0", "AES"),
    ("c4e275dcc2", "vaesenc %ymm2,%ymm1,%ymm0", "VAES"),
    ("660f3a44c100", "pclmulqdq $0,%xmm1,%xmm0", "PCLMULQDQ"),
    ("0f38cbc1", "sha256rnds2 %xmm1,%xmm0", "SHA"),
    ("660f38cfc1", "gf2p8mulb %xmm1,%xmm0", "GFNI"),
    ("660f38f6c7", "adcx %edi,%eax", "ADX"),
    ("0fc7f0", "rdrand %eax", "RDRAND"),
    ("0fc727", "xsavec (%rdi)", "XSAVE extensions"),
    ("c7f800000000", "xbegin 0f; 0:", "RTM"),
    ("62f2754850c2", "vpdpbusd %zmm2,%zmm1,%zmm0", "AVX512_VNNI"),
    ("62f275488dc2", "vpermb %zmm2,%zmm1,%zmm0", "AVX512_VBMI"),
    ("62f27d4863c1", "vpcompressb %zmm0,%zmm1", "AVX512_VBMI2"),
    ("62f2f548b4c2", "vpmadd52luq %zmm2,%zmm1,%zmm0", "AVX512_IFMA"),
    ("62f27d4854c1", "vpopcntb %zmm1,%zmm0", "AVX512_BITALG"),
    ("62f27d4855c1", "vpopcntd %zmm1,%zmm0", "AVX512_VPOPCNTDQ"),
    ("c4e3f168c320", "vfmaddps %xmm3,%xmm2,%xmm1,%xmm0", "FMA4"),
    ("8fe870a2c230", "vpcmov %xmm3,%xmm2,%xmm1,%xmm0", "XOP"),
    ("0f0fc19e", "pfadd %mm1,%mm0", "3DNow!"),
]
# What capstone 5 does not know.
UNDECODED = [
    ("62f2764852c2", "vdpbf16ps %zmm2,%zmm1,%zmm0", "AVX512_BF16"),
    ("62f574485844cf01", "vaddph 0x40(%rdi,%rcx,8),%zmm1,%zmm0", "AVX512_FP16"),
    ("62f37c4808c103", "vrndscaleph $3,%zmm1,%zmm0", "unknown (EVEX)"),
    ("62f2774868c2", "vp2intersectd %zmm2,%zmm1,%k0", "AVX512_VP2INTERSECT"),
    ("c4e27550c2", "{vex} vpdpbusd %ymm2,%ymm1,%ymm0", "AVX_VNNI"),
    ("c4e2625cca", "tdpbf16ps %tmm3,%tmm2,%tmm1", "AMX"),
    ("c4e278498745230100", "ldtilecfg 0x12345(%rdi)", "AMX"),
]


@pytest.mark.parametrize(("code", "source", "extension"), DECODED, ids=[source for _, source, _ in DECODED])
def test_every_kind_of_instruction_is_known_by_its_encoding(code: str, source: str, extension: str | None) -> None:
    data = bytes.fromhex(code)
    ((_, size, mnemonic, operands),) = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64).disasm_lite(data, 0)
    assert size == len(data)
    assert extension_of(data, mnemonic, operands) == extension


@pytest.mark.parametrize(("code", "source", "extension"), UNDECODED, ids=[source for _, source, _ in UNDECODED])
def test_what_capstone_does_not_know_is_known_by_its_prefix_and_stepped_over(
    code: str, source: str, extension: str
) -> None:
    data = bytes.fromhex(code)
    found = read_isa(elf(data + RET, symbols=[("f", 0, len(data) + 1)]))
    assert isinstance(found, Isa)
    assert [(use.function, use.address, use.extension, use.count) for use in found.uses] == [("f", BASE, extension, 1)]
    assert found.gaps == (Gap(function="f", address=BASE, count=len(data)),)
    assert found.level is None and found.beyond("x86-64-v4") == found.uses


def test_levels_are_those_of_the_psabi() -> None:
    levels = {name: level_of(name) for _, _, name in DECODED if name}
    assert {name for name, level in levels.items() if level == "x86-64-v2"} == {
        *("SSE3", "SSSE3", "SSE4.1", "SSE4.2", "POPCNT", "CMPXCHG16B", "LAHF-SAHF")
    }
    assert {name for name, level in levels.items() if level == "x86-64-v3"} == {
        *("AVX", "BMI1", "BMI2", "F16C", "FMA", "LZCNT", "MOVBE", "XSAVE")
    }
    assert {name for name, level in levels.items() if level == "x86-64-v4"} == {
        *("AVX512F", "AVX512BW", "AVX512CD", "AVX512DQ", "AVX512VL")
    }
    assert {"AES", "SHA", "AVX512_VNNI"} <= {name for name, level in levels.items() if level is None}


# --- files

BASE = 0x1000
DATA = 0x9000  # where __cpu_model lies
RET = b"\xc3"
NOP = b"\x90"
AVX = bytes.fromhex("c5f058c2")
AVX512F = bytes.fromhex("62f1744858c2")
AVX512BW = bytes.fromhex("62f17548fcc2")
AVX512VL = bytes.fromhex("62a1740058c2")
CPUID = bytes.fromhex("0fa2")
XGETBV = bytes.fromhex("0f01d0")

Symbol = tuple[str, int, int]  # name, offset in the code, size


def elf(
    code: bytes,
    *,
    symbols: list[Symbol] | None = None,
    unwind: list[int] | None = None,
    cpu_model: bool = False,
    machine: int = 62,
) -> io.BytesIO:
    """A shared object with one section of code, as much of a symbol table as asked for, and the section table."""
    strings, table = b"\0", bytes(24)
    entries = [(name, 2, 1, BASE + offset, size) for name, offset, size in symbols or []]
    if cpu_model:
        entries.append(("__cpu_model", 1, 2, DATA, 16))
    for name, kind, section, address, size in entries:
        table += struct.pack("<IBBHQQ", len(strings), kind, 0, section, address, size)
        strings += name.encode() + b"\0"
    places = [BASE + offset for offset in unwind or []]
    frames = struct.pack("<4BiI", 1, 0x1B, 0x03, 0x3B, 0, len(places))
    frames += b"".join(struct.pack("<ii", place - 0x8000, 0) for place in places)
    sections = [(".text", 1, 6, BASE, code, 0)]
    if entries:
        sections += [(".symtab", 2, 0, 0, table, 3), (".strtab", 3, 0, 0, strings, 0)]
    if unwind is not None:
        sections.append((".eh_frame_hdr", 1, 2, 0x8000, frames, 0))
    names = b"\0" + b"".join(name.encode() + b"\0" for name, *_ in sections) + b".shstrtab\0"
    sections.append((".shstrtab", 3, 0, 0, names, 0))
    body, headers = b"", bytes(64)
    for name, kind, flags, address, content, link in sections:
        at = names.index(b"\0" + name.encode() + b"\0") + 1
        headers += struct.pack("<IIQQQQIIQQ", at, kind, flags, address, 64 + len(body), len(content), link, 0, 1, 24)
        body += content
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, len(sections) + 1, 0)
    head = head[:62] + struct.pack("<H", len(sections))
    return io.BytesIO(head + body + headers)


def read(file: io.BytesIO, **options: int) -> Isa:
    found = read_isa(file, **options)
    assert isinstance(found, Isa)
    return found


def seen(isa: Isa) -> list[tuple[str, str, int]]:
    return [(use.function, use.extension, use.count) for use in isa.uses]


def reads_cpu_model(at: int) -> bytes:
    """``lea DATA(%rip),%rax`` at an offset in the code, and the return."""
    return bytes.fromhex("488d05") + struct.pack("<i", DATA - (BASE + at + 7)) + RET


def test_uses_are_counted_by_function_and_the_level_is_the_highest() -> None:
    code = AVX + AVX + RET + NOP * 3 + AVX512F + AVX512BW + RET
    isa = read(elf(code, symbols=[("low", 0, 9), ("high", 12, 13)]))
    assert seen(isa) == [("low", "AVX", 2), ("high", "AVX512F", 1), ("high", "AVX512BW", 1)]
    assert isa.level == "x86-64-v4" and not isa.gaps and not isa.truncated and isa.code_bytes == len(code)
    assert [use.example for use in isa.uses] == [
        "vaddps xmm0, xmm1, xmm2",
        "vaddps zmm0, zmm1, zmm2",
        "vpaddb zmm0, zmm1, zmm2",
    ]
    assert [len(isa.beyond(level)) for level in LEVELS] == [3, 3, 2, 0]
    assert read(elf(RET)).level == "x86-64"


def test_a_stripped_file_is_read_by_its_unwind_table_or_as_one() -> None:
    code = AVX + RET + AVX512F + RET
    assert seen(read(elf(code, unwind=[0, 5]))) == [
        ("function at 0x1000", "AVX", 1),
        ("function at 0x1005", "AVX512F", 1),
    ]
    assert seen(read(elf(code))) == [(".text+0x0", "AVX", 1), (".text+0x0", "AVX512F", 1)]
    # What follows a function belongs to none, whatever the name before it.
    assert seen(read(elf(code, symbols=[("f", 0, 5)]))) == [("f", "AVX", 1), (".text+0x5", "AVX512F", 1)]


def test_each_function_is_read_from_its_own_start() -> None:
    # The last byte of data before g is the first of a longer instruction: a sweep that runs on would miss g's first.
    code = RET + b"\x48" + AVX512F + RET
    assert seen(read(elf(code, symbols=[("f", 0, 1), ("g", 2, 7)]))) == [("g", "AVX512F", 1)]


def test_undecodable_bytes_are_told_and_the_sweep_goes_on() -> None:
    isa = read(elf(RET + b"\x06\x06" + AVX + RET, symbols=[("f", 0, 8)]))
    assert isa.gaps == (Gap(function="f", address=BASE + 1, count=2),)
    assert seen(isa) == [("f", "AVX", 1)]


def test_an_instruction_across_a_window_is_read_whole() -> None:
    for before in range(65_536 - 6, 65_537):
        isa = read(elf(NOP * before + AVX512F + RET))
        assert seen(isa) == [(".text+0x0", "AVX512F", 1)] and not isa.gaps


def test_what_is_not_looked_at_is_said() -> None:
    assert read(elf(NOP * 100), limit=99).truncated and not read(elf(NOP * 100), limit=100).truncated
    flood = read(elf(b"\x06" * 200_000))
    assert flood.truncated and flood.gaps[0].count < 100_000
    assert read_isa(elf(RET, machine=183)) == NotLookedAt(machine="aarch64")
    assert read_isa(elf(RET, machine=243)) == NotLookedAt(machine="machine 243")


# --- dispatch

GUARDED = "_Z6kerneliPc._omp_fn.0"
DISPATCH = Dispatch(check="level", guards=(Guard(functions=("kernel",), extensions=("AVX512F", "AVX512BW")),))


def dispatching(
    check: bytes, kernel: bytes, *, name: str = GUARDED, cpu_model: bool = True, strip: bool = False
) -> Isa:
    code = check.ljust(16, NOP) + kernel
    symbols = [("_Z5levelv", 0, len(check)), (name, 16, len(kernel))]
    return read(elf(code, symbols=None if strip else symbols, unwind=[0, 16], cpu_model=cpu_model))


def test_guarded_functions_may_go_beyond_the_baseline() -> None:
    for check in (reads_cpu_model(0), CPUID + RET):
        isa = dispatching(check, AVX512F + AVX512BW + RET)
        assert isa.tests_cpu == ("_Z5levelv",)
        assert len(isa.beyond("x86-64-v3")) == 2
        assert isa.beyond("x86-64-v3", DISPATCH) == ()


@pytest.mark.parametrize(
    ("isa", "why"),
    [
        (dispatching(RET, AVX512F + RET), "the check does not read the CPU"),
        (dispatching(reads_cpu_model(1), AVX512F + RET), "the check reads something beside the CPU's data"),
        (dispatching(reads_cpu_model(0), AVX512F + RET, cpu_model=False), "nobody knows that this is the CPU's data"),
        (dispatching(reads_cpu_model(0), AVX512F + RET, name="_Z5otheriPc"), "another function"),
        (dispatching(reads_cpu_model(0), AVX512F + RET, name="_ZN1a6kernelEiPc"), "the name in another namespace"),
        (dispatching(reads_cpu_model(0), AVX512VL + RET), "an extension that the check does not ask for"),
        (dispatching(CPUID + AVX512F + RET, RET), "the check itself uses it"),
        (dispatching(reads_cpu_model(0), AVX512F + RET, strip=True), "no names to go by"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_everything_else_is_refused(isa: Isa, why: str) -> None:
    assert len(isa.beyond("x86-64-v3", DISPATCH)) == 1, why


def test_asking_for_the_state_of_the_registers_is_part_of_asking_the_cpu() -> None:
    assert seen(read(elf(CPUID + XGETBV + RET, symbols=[("init", 0, 6)]))) == []
    assert seen(read(elf(XGETBV + RET, symbols=[("other", 0, 4)]))) == [("other", "XSAVE", 1)]


def test_names_as_the_source_has_them() -> None:
    assert identifier("_Z19reduce_bf16_buffersiiPcPS_._omp_fn.0") == "reduce_bf16_buffers"
    assert identifier("_ZL4stati") == "stat"
    assert identifier("PyInit_x.cold") == "PyInit_x"
    for odd in ("_Z99short", "_Z0v", "_ZN1a1bEv", "_Z99999999999999999999x"):
        assert identifier(odd) == odd


def test_deepspeeds_dispatch_is_known_for_the_release_that_has_it() -> None:
    ops = facts.load().deepspeed.ops
    found = ops["deepspeed_shm_comm"].dispatch("0.19.8")
    assert found is not None and found.check == "vector_kernel_level"
    assert all(level_of(name) for guard in found.guards for name in guard.extensions)
    # The older ones run the same code and ask nobody; about the newer ones nobody looked.
    assert [ops["deepspeed_shm_comm"].dispatch(version) for version in ("0.19.7", "0.19.9")] == [None, None]
    assert ops["cpu_adam"].dispatch("0.19.8") is None


# --- damage


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"\x7fELF\x01\x01" + bytes(100), b"\x7fELF\x02\x02" + bytes(100)])
def test_what_is_no_elf_file_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(ElfError, match="not a 64-bit"):
        read_isa(io.BytesIO(data))


def test_a_file_whose_code_cannot_be_found_is_refused() -> None:
    whole = elf(AVX512F).getvalue()
    gone = whole[:40] + bytes(8) + whole[48:]  # as `sstrip` leaves it
    with pytest.raises(ElfError, match="no section of it holds code"):
        read_isa(io.BytesIO(gone))
    with pytest.raises(ElfError, match="damaged"):
        read_isa(io.BytesIO(whole[:-1]))


WHOLE = elf(AVX + RET + CPUID + AVX512F, symbols=[("f", 0, 5), ("g", 5, 8)], unwind=[0, 5], cpu_model=True).getvalue()


@settings(max_examples=300, deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=8), cut=st.integers(0))
def test_any_damage_gives_an_answer_or_an_elf_error(changes: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(WHOLE)
    for place, value in changes:
        data[place] = value
    try:
        read_isa(io.BytesIO(bytes(data[: len(data) - cut % 200])))
    except ElfError:
        return


@settings(max_examples=500, deadline=None)
@given(data=st.binary(min_size=1, max_size=15))
@example(data=b"\xd5")
@example(data=b"\xc4\xe3\x79\x14\x84")
def test_stepping_over_undecodable_bytes_always_moves_and_never_past_them(data: bytes) -> None:
    _, size = extension_of_undecoded(data)
    assert 1 <= size <= len(data)
