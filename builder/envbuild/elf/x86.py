"""Which instruction set extension an x86-64 instruction belongs to.

The encoding decides, the mnemonic only within an encoding. Capstone's own groups are not used: in capstone 5 they are
missing for FMA, POPCNT, LZCNT, MOVBE, CMPXCHG16B, AVX512CD, VNNI, VBMI, IFMA and many a BW and DQ form, and TZCNT
(see below) counts as BMI. What is in no table is in no level, so that an unknown instruction is never waved through.

Sources: levels from the x86-64 psABI (gitlab.com/x86-psABIs/x86-64-ABI, table "Micro-Architecture Levels"); encodings
and extensions from Intel's Software Developer's Manual, volume 2 (chapter 2 for the prefixes), and AMD's APM, volume 3
and 4 (XOP, FMA4, 3DNow!, SSE4A).
"""

from __future__ import annotations

import re

LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")

# Extensions of the psABI's levels; every other one is part of no level.
_LEVEL_OF = {
    **dict.fromkeys(("CMPXCHG16B", "LAHF-SAHF", "POPCNT", "SSE3", "SSSE3", "SSE4.1", "SSE4.2"), "x86-64-v2"),
    # OSXSAVE in the psABI: XGETBV and the plain XSAVE and XRSTOR.
    **dict.fromkeys(("AVX", "BMI1", "BMI2", "F16C", "FMA", "LZCNT", "MOVBE", "XSAVE"), "x86-64-v3"),
    **dict.fromkeys(("AVX512F", "AVX512BW", "AVX512CD", "AVX512DQ", "AVX512VL"), "x86-64-v4"),
}


def level_of(extension: str) -> str | None:
    """The lowest psABI level that has an extension; None where no level has it."""
    return _LEVEL_OF.get(extension)


def _table(extensions: dict[str, str]) -> dict[str, str]:
    return {mnemonic: name for name, mnemonics in extensions.items() for mnemonic in mnemonics.split()}


# Instructions without VEX, EVEX or XOP, outside the maps 0F 38 and 0F 3A. Not here, because they do no harm on an older
# CPU: ENDBR64, PAUSE and the MPX ones (NOP there); 0F 0D, the prefetches (NOP on every 64-bit CPU that does not know
# them); F3 0F BC: GCC writes it as a faster BSF into baseline code wherever the two agree, so it cannot count as BMI1.
_PLAIN = _table(
    {
        "SSE3": "addsubpd addsubps fisttp haddpd haddps hsubpd hsubps lddqu monitor movddup movshdup movsldup mwait",
        "POPCNT": "popcnt",
        "CMPXCHG16B": "cmpxchg16b",
        "LAHF-SAHF": "lahf sahf",
        "LZCNT": "lzcnt",
        "XSAVE": "xgetbv xrstor xrstor64 xsave xsave64",
        "XSAVE extensions": "xrstors xrstors64 xsavec xsavec64 xsaveopt xsaveopt64 xsaves xsaves64",
        "SSE4A": "extrq insertq movntsd movntss",
        "3DNow!": "femms",
        "RDRAND": "rdrand",
        "RDSEED": "rdseed",
        "RDTSCP": "rdtscp",
        "RDPID": "rdpid",
        "FSGSBASE": "rdfsbase rdgsbase wrfsbase wrgsbase",
        "RTM": "xabort xbegin xend xtest",
        "CLFLUSHOPT": "clflushopt",
        "CLWB": "clwb",
        "CLZERO": "clzero",
        "MWAITX": "monitorx mwaitx",
        "WAITPKG": "tpause umonitor umwait",
        "PTWRITE": "ptwrite",
        "CET": "incsspd incsspq rstorssp saveprevssp",
    }
)
# The maps 0F 38 and 0F 3A hold nothing that every x86-64 CPU has.
_MAPS_38_3A = _table(
    {
        "SSSE3": "pabsb pabsd pabsw palignr phaddd phaddsw phaddw phsubd phsubsw phsubw pmaddubsw pmulhrsw pshufb"
        " psignb psignd psignw",
        "SSE4.1": "blendpd blendps blendvpd blendvps dppd dpps extractps insertps movntdqa mpsadbw packusdw pblendvb"
        " pblendw pcmpeqq pextrb pextrd pextrq pextrw phminposuw pinsrb pinsrd pinsrq pmaxsb pmaxsd pmaxud pmaxuw"
        " pminsb pminsd pminud pminuw pmovsxbd pmovsxbq pmovsxbw pmovsxdq pmovsxwd pmovsxwq pmovzxbd pmovzxbq"
        " pmovzxbw pmovzxdq pmovzxwd pmovzxwq pmuldq pmulld ptest roundpd roundps roundsd roundss",
        "SSE4.2": "crc32 pcmpestri pcmpestrm pcmpgtq pcmpistri pcmpistrm",
        "MOVBE": "movbe",
        "ADX": "adcx adox",
        "AES": "aesdec aesdeclast aesenc aesenclast aesimc aeskeygenassist",
        "PCLMULQDQ": "pclmulqdq",
        "SHA": "sha1msg1 sha1msg2 sha1nexte sha1rnds4 sha256msg1 sha256msg2 sha256rnds2",
        "GFNI": "gf2p8affineinvqb gf2p8affineqb gf2p8mulb",
        "MOVDIR": "movdir64b movdiri",
    }
)
_GENERAL_VEX = _table({"BMI1": "andn bextr blsi blsmsk blsr", "BMI2": "bzhi mulx pdep pext rorx sarx shlx shrx"})
# Extensions in no level, under both prefixes where both exist.
_VECTOR_EXTRAS = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"vgf2p8", "GFNI"),
        (r"vpdp", "AVX512_VNNI"),
        (r"vperm(i2|t2)?b$|vpmultishiftqb", "AVX512_VBMI"),
        (r"vp(compress|expand)[bw]$|vpsh[lr]d", "AVX512_VBMI2"),
        (r"vpmadd52", "AVX512_IFMA"),
        (r"vpopcnt[bw]$|vpshufbitqmb", "AVX512_BITALG"),
        (r"vpopcnt[dq]$", "AVX512_VPOPCNTDQ"),
        (r"v4fn?madd", "AVX512_4FMAPS"),
        (r"vp4dpwssd", "AVX512_4VNNIW"),
        (r"vexp2p|vrcp28|vrsqrt28", "AVX512ER"),
        (r"v(gather|scatter)pf", "AVX512PF"),
    )
)
_AVX512 = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"vpconflict|vplzcnt|vpbroadcastm", "AVX512CD"),
        (
            r"vcvt\w*u?qq|vpmullq|vfpclass|vrange|vreduce|v(insert|extract|broadcast)[fi](32x[28]|64x2)$"
            r"|v(andn?|x?or)p[sd]$|vpmovm2[dq]$|vpmov[dq]2m$|vp(ext|ins)r[dq]$",
            "AVX512DQ",
        ),
        (
            r"vmovdqu(8|16)$|vp(abs|adds?|addus|avg|blendm|broadcast|cmp\w*|max[su]|min[su]|subs?|subus|testn?m)[bw]$"
            r"|vp(s[lr]lv?|srav?|erm([it]2)?)w$|vpmadd(wd|ubsw)|vpmul(hrsw|huw|hw|lw)"
            r"|vpack|vpunpck[hl](bw|wd)|vpshuf(b|hw|lw)$|vdbpsadbw|vpsadbw|vpalignr|vp(ext|ins)r[bw]$|vps[lr]ldq"
            r"|vpmov([sz]xbw|u?s?wb|m2[bw]|[bw]2m)$",
            "AVX512BW",
        ),
    )
)
# One element, whatever the vector length in the prefix says: these do not need AVX512VL.
_SCALAR = re.compile(
    r"v(add|sub|mul|div|min|max|sqrt|cmp\w*|u?comi|mov|fn?m(add|sub)\d+|getexp|getmant|fixupimm|fpclass|range|reduce"
    r"|rndscale|scalef|r(cp|sqrt)(14|28))s[sd]$"
    r"|vcvtt?(ss|sd|si|usi)2|vmov[dq]$|vmov[hl]p[sd]$|vmov(hl|lh)ps$|vp(ext|ins)r[bwdq]$|vinsertps$|vextractps$"
)
_FUSED_FOUR = re.compile(r"vfn?m(addsub|subadd|add|sub)[ps][sd]$")
_FUSED = re.compile(r"vfn?m(addsub|subadd|add|sub)(132|213|231)[ps][sd]$")
_MASKS_DQ = re.compile(r"k(\w+b|addw|testw)$")
_LEGACY_PREFIXES = b"\x66\x67\xf2\xf3\xf0\x2e\x36\x3e\x26\x64\x65"


def extension_of(code: bytes, mnemonic: str, operands: str) -> str | None:
    """The extension that an instruction needs; None where every x86-64 CPU has it.

    Args:
        code: The bytes of the instruction, at least one.
        mnemonic: Its name as capstone gives it, with a prefix word such as ``lock`` where there is one.
        operands: Its operands as capstone gives them.
    """
    name = mnemonic.rpartition(" ")[2]
    at = _opcode_at(code)
    lead = code[at]
    if lead == 0x62:
        return _evex(code[at:], name)
    if lead in (0xC4, 0xC5):
        return _vex(name, operands)
    if lead == 0x8F and len(code) > at + 1 and code[at + 1] & 0x18:
        return "XOP"  # what is POP r/m has zeros there
    if code[at : at + 1] == b"\x0f" and len(code) > at + 1:
        if code[at + 1] in (0x38, 0x3A):
            return _MAPS_38_3A.get(name, f"unknown ({name})")
        if code[at + 1] == 0x0F:
            return "3DNow!"
    return _PLAIN.get(name)


def extension_of_undecoded(code: bytes) -> tuple[str | None, int]:
    """What capstone could not decode: the extension if a vector prefix says so, and how many bytes to step over.

    Capstone 5 knows no AVX512_BF16, FP16, VP2INTERSECT, AVX_VNNI, AMX or APX. Their length follows from the prefix, so
    that the sweep does not read the rest of one as instructions of other kinds.
    """
    at = _opcode_at(code)
    rest = code[at:]
    if len(rest) >= 6 and rest[0] == 0x62 and rest[1] & 7:
        space, opcode, head = rest[1] & 7, rest[4], 5
        known = {(2, 0x52): "AVX512_BF16", (2, 0x72): "AVX512_BF16", (2, 0x68): "AVX512_VP2INTERSECT"}
        name = known.get((space, opcode)) or {4: "APX", 5: "AVX512_FP16", 6: "AVX512_FP16"}.get(space, "unknown (EVEX)")
    elif len(rest) >= 5 and rest[0] == 0xC4:
        space, opcode, head = rest[1] & 0x1F, rest[3], 4
        name = "unknown (VEX)"
        if space == 2:
            name = {
                **dict.fromkeys((0x49, 0x4B, 0x5C, 0x5E, 0x6C), "AMX"),
                **dict.fromkeys((0x50, 0x51, 0x52, 0x53), "AVX_VNNI"),
                **dict.fromkeys((0xB4, 0xB5), "AVX_IFMA"),
            }.get(opcode, name)
    elif rest[:1] == b"\xd5":
        return "APX", min(at + 2, len(code))
    else:
        return None, 1
    return name, min(at + head + _operand_bytes(rest[head:]) + (space == 3), len(code))


def _opcode_at(code: bytes) -> int:
    """Where the opcode, or a VEX, EVEX or XOP prefix, begins."""
    at = 0
    last = len(code) - 1
    while at < last and code[at] in _LEGACY_PREFIXES:
        at += 1
    if at < last and 0x40 <= code[at] <= 0x4F:  # REX
        at += 1
    return at


def _operand_bytes(code: bytes) -> int:
    """The length of ModRM, SIB and displacement (an EVEX displacement of one byte is one byte as well)."""
    mode, base = code[0] >> 6, code[0] & 7
    if mode == 3:
        return 1
    sib = base == 4
    no_base = mode == 0 and (base == 5 or (sib and len(code) > 1 and code[1] & 7 == 5))
    return 1 + sib + (4 if mode == 2 or no_base else mode)


def _vex(name: str, operands: str) -> str:
    if name in _GENERAL_VEX:
        return _GENERAL_VEX[name]
    if name[0] == "k":
        return _mask(name)
    if name.startswith("vaes"):
        return "VAES" if "ymm" in operands else "AES"
    if name == "vpclmulqdq":
        return "VPCLMULQDQ" if "ymm" in operands else "PCLMULQDQ"
    if name in ("vcvtph2ps", "vcvtps2ph"):
        return "F16C"
    if _FUSED.match(name):
        return "FMA"
    if _FUSED_FOUR.match(name):
        return "FMA4"
    if name.startswith("vpermil2"):
        return "XOP"
    # AVX and AVX2 are one level, so nothing hangs on which of the two it is.
    return _extra(name) or "AVX"


def _mask(name: str) -> str:
    if _MASKS_DQ.match(name) and name != "kunpckbw":
        return "AVX512DQ"
    return "AVX512F" if name.endswith("w") and name != "kunpckwd" else "AVX512BW"


def _evex(code: bytes, name: str) -> str:
    if name.startswith("vaes"):
        return "VAES"
    if name == "vpclmulqdq":
        return "VPCLMULQDQ"
    extra = _extra(name)
    if extra:
        return extra
    # Vector length in bits 5 and 6 of the third payload byte; with bit 4 and a register operand they mean rounding.
    rounding = code[3] & 0x10 and len(code) > 5 and code[5] >> 6 == 3
    if not code[3] & 0x40 and not rounding and not _SCALAR.match(name):
        return "AVX512VL"
    return next((extension for pattern, extension in _AVX512 if pattern.match(name)), "AVX512F")


def _extra(name: str) -> str | None:
    return next((extension for pattern, extension in _VECTOR_EXTRAS if pattern.match(name)), None)
