"""The ops were compiled for a CPU like this one: an instruction that it has not ends the process (signal 4)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuild.doctor.collection import Import, Op
from envbuild.doctor.view import Check, View
from envbuild.doctor.words import OFFLOAD, listed, remedy_for, serves, title
from envbuild.model import Finding, Severity

# Names of the kernel (/proc/cpuinfo) of what the levels of the x86-64 psABI add, lowest first.
_LEVELS = {
    "x86-64-v2": ("cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"),
    "x86-64-v3": ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"),
    "x86-64-v4": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
}
# CPUs with AVX-512 among GCC's values of -march.
_WITH_AVX512 = re.compile(
    r"-march=(?:skylake-avx512|cascadelake|cooperlake|cannonlake|icelake-\w+|tigerlake|rocketlake|sapphirerapids"
    r"|emeraldrapids|graniterapids\S*|znver[45])$"
)
# DeepSpeed's builders define these from what the CPU of the build machine has (op_builder/builder.py).
_DEFINES = {"-D__AVX512__": ("avx512f",), "-D__AVX256__": ("avx2",)}
# As many instructions of 512 bits for every 100,000 bytes of code are no chance: in code without any, 0 to 4 look so;
# cpu_adam of DeepSpeed 0.19.8, compiled by GCC 12.2 with -march=native on a CPU that has AVX-512, has 1,021.
_WIDE = 50.0
_SOURCE = (
    "GCC manual, x86 Options; System V psABI for x86-64, micro-architecture levels; DeepSpeed sdist 0.19.8, op_builder"
)


def _look(view: View) -> Iterator[Finding]:
    cpu = view.collection.machine.cpu
    if cpu.flags and cpu.machine in (None, "x86_64"):
        for op in view.collection.ops:
            if serves(op, view.collection) and op.kind != "other":
                yield from _op(view, op)
    for name, found in (("torch", view.collection.torch), ("deepspeed", view.collection.deepspeed)):
        if found is not None and found.signal == 4:
            yield _signal(view, name, found)


def _op(view: View, op: Op) -> Iterator[Finding]:
    cpu = view.collection.machine.cpu
    wanted = {feature: flag for flag in op.flags for feature in _asked(flag)}
    lacking = [feature for feature in wanted if feature not in cpu.flags]
    by_code = not lacking and "avx512f" not in cpu.flags and (op.wide or 0.0) >= _WIDE and not _asks(view, op)
    if not lacking and not by_code:
        return
    words, command = remedy_for(op, view)
    here = f"this CPU ({cpu.model or 'unknown'})"
    if lacking:
        flags = listed(wanted[feature] for feature in lacking)
        how = f"was compiled for another CPU ({flags}): {here} has no {listed(lacking)}"
        seen = f"build.ninja: {listed(op.flags, 12)}"
    else:
        how = f"is full of AVX-512 instructions, and {here} has none"
        seen = f"{op.file}: {op.wide:.0f} of 512 bits for every 100,000 bytes of its code, by a look at the bytes"
    yield Finding(
        rule="isa.flags" if lacking else "isa.code",
        severity=Severity.ERROR,
        subject=op.file or op.name,
        message=f"{title(op)} ({op.file}) {how}",
        why=f"the process ends with 'Illegal instruction' (signal 4, exit code -4); {OFFLOAD}",
        evidence=(seen, f"CPU: {cpu.model}: {listed(_vector(cpu.flags), 12)}"),
        fix=f"{words}; -march=native ties an op to the machine that compiled it: share no cache between machines, or "
        "compile ahead of time for the oldest of them (-march=x86-64-v3)",
        command=command,
        source=_SOURCE,
    )


def _asks(view: View, op: Op) -> bool:
    """Whether DeepSpeed is known to ask the CPU before it enters such code of the op."""
    version = (view.package("deepspeed") or "").partition("+")[0]
    known = view.facts.deepspeed.ops.get(op.name)
    return known is not None and bool(re.fullmatch(r"\d+(\.\d+)+", version)) and known.dispatch(version) is not None


def _signal(view: View, name: str, found: Import) -> Finding:
    cpu = view.collection.machine.cpu
    return Finding(
        rule="isa.signal",
        severity=Severity.ERROR,
        subject=name,
        message=f"import {name} ended with signal 4 (illegal instruction): some library of it was compiled for another "
        f"CPU than this one ({cpu.model or 'unknown'}, {cpu.level or 'of no known level'})",
        why="nothing can be trained: the process ends without a traceback",
        evidence=tuple(found.trace[-3:]),
        fix="find the library with: python -X faulthandler -c 'import "
        + name
        + "'; install it again on this machine, or "
        "take a build for this CPU's level",
        source="signal(7)",
    )


def _asked(flag: str) -> tuple[str, ...]:
    """What a compiler flag makes the code use, by the kernel's names."""
    level = flag.removeprefix("-march=")
    if level in _LEVELS:
        upto = list(_LEVELS)[: list(_LEVELS).index(level) + 1]
        return tuple(feature for each in upto for feature in _LEVELS[each])
    if _WITH_AVX512.match(flag):
        return ("avx512f",)
    found = re.fullmatch(r"-m(avx512\w+|avx2|avx|fma|f16c|bmi2)", flag)
    return (found[1],) if found else _DEFINES.get(flag, ())


def _vector(flags: tuple[str, ...]) -> list[str]:
    return [flag for flag in flags if flag.startswith(("avx", "fma", "sse4"))] or ["no AVX"]


CHECK = Check(
    name="isa",
    title="the ops were compiled for instructions that this CPU has",
    look=_look,
    explains=("imports.isa", "ops"),
)
