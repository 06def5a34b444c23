"""What is wrong with an image's native code, and how far the rest of it carries."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from envbuild.elf.gpucode import coverage
from envbuild.elf.isa import Isa
from envbuild.elf.versions import by_family
from envbuild.elf.x86 import LEVELS
from envbuild.judge.native import FROM_DRIVER, NativeReport
from envbuild.judge.standards import Standards
from envbuild.judge.versions import matches
from envbuild.model import Environment, Finding, Severity

_FIXES = {
    "content.library": "Add the package that brings the library to the row's packages, and build again.",
    "content.symbols": "Compile with the row's compiler on the row's base, or take a base whose library is new enough.",
    "content.shadow": "Take it out of LD_LIBRARY_PATH or LD_PRELOAD: the image finds its libraries without it.",
    "content.copies": "Remove the copy that nobody should load: one process must not have two of them.",
    "content.abi": "Compile the op against this torch: in the build, with nothing else's flags.",
    "content.compiler": "Compile the ops in the build, by the row's compiler: build again, or correct the row's gcc.",
    "content.isa": "Compile for the row's cpu_baseline: build again, with nothing that sets -march or -m flags.",
    "content.sm": "Take a torch build with code for the row's GPUs, and compile the ops for them.",
    "content.native": "The file is damaged or hides what it holds: build the image again.",
}
_VERSION = re.compile(r"(\d+\.\d+\.\d+)(?!.*\d+\.\d+\.\d+)")
_FEW = 4
Told = Iterator[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Portability:
    """How far an image carries: the hosts, CPUs and GPUs that it runs on.

    Attributes:
        driver: The oldest NVIDIA driver; None for an image without CUDA.
        cubins: Compute capabilities that torch and every op with GPU code hold machine code for.
        ptx: Those they hold PTX for: newer GPUs run it where the driver can compile it.
        cpu: The x86-64 level that the ops need, code behind a check of the CPU left out; None where it is not known.
        requires: The newest symbol version that torch and the ops ask for, by family: what a bare host would need.
        provides: The newest that the image's own system libraries have: what the driver's libraries may ask for.
    """

    driver: str | None
    cubins: tuple[str, ...]
    ptx: tuple[str, ...]
    cpu: str | None
    requires: dict[str, str]
    provides: dict[str, str]


def findings(env: Environment, report: NativeReport, standards: Standards) -> list[Finding]:
    """Everything that is wrong with the native code of an image."""
    found = []
    for part in (_readable, _resolved, _shadowed, _copies, _abi, _compilers, _isa, _gpu):
        for rule, message in part(env, report, standards):
            found.append(_finding(env, rule, message))
    return found


def portability(report: NativeReport, standards: Standards) -> Portability:
    """The envelope of an image."""
    system = [each for each in report.libraries.values() if "/site-packages/" not in each.path]
    own = [each for each in report.libraries.values() if "/site-packages/" in each.path]
    torch = [code for path, code in report.gpu.items() if path not in report.ops.values()]
    ops = [code for path, code in report.gpu.items() if path in report.ops.values()]
    # Several libraries of torch share the work; every op has to carry its own.
    cubins = {name for code in torch for name in code.cubins}
    ptx = {name for code in torch for name in code.ptx}
    for code in ops:
        cubins &= set(code.cubins)
        ptx &= set(code.ptx)
    return Portability(
        driver=standards.driver,
        cubins=tuple(sorted(cubins, key=_numbers)),
        ptx=tuple(sorted(ptx, key=_numbers)),
        cpu=_level(report, standards),
        requires=by_family(version for each in own for version in each.requires.values()),
        provides=by_family(version for each in system for version in each.provides.values()),
    )


def _finding(env: Environment, rule: str, message: str) -> Finding:
    severity = Severity.WARNING if rule == "content.copies" else Severity.ERROR
    return Finding(
        rule=rule, severity=severity, subject=env.name, message=message, fix=_FIXES[rule], source="the image"
    )


def _readable(env: Environment, report: NativeReport, standards: Standards) -> Told:
    for problem in report.problems:
        yield "content.native", problem
    for path, reason in report.unreadable[:_FEW]:
        yield "content.native", reason if path in reason else f"{path}: {reason}"


def _resolved(env: Environment, report: NativeReport, standards: Standards) -> Told:
    for asker, _, reason in dict.fromkeys(report.unresolved):
        yield "content.library", f"{asker}: {reason}"
    wanted: dict[tuple[str, str], list[str]] = {}
    for asker, version, library, best in report.missing:
        wanted.setdefault((asker, f"{library} has {best} at most"), []).append(version)
    for (asker, known), versions in wanted.items():
        yield "content.symbols", f"{asker} needs {', '.join(dict.fromkeys(versions))}; {known}"


def _shadowed(env: Environment, report: NativeReport, standards: Standards) -> Told:
    for name, path, behind in report.shadowed:
        yield "content.shadow", f"{name}: the image's environment puts {path} in front of {behind}"
    for name in FROM_DRIVER & set(report.libraries):
        yield (
            "content.shadow",
            f"{name} is in the image ({report.libraries[name].path}); it belongs to the host's driver",
        )


def _copies(env: Environment, report: NativeReport, standards: Standards) -> Told:
    for name, paths in report.copies.items():
        loaded = report.libraries.get(name)
        if loaded is not None and "/site-packages/" not in loaded.path:
            yield "content.shadow", f"{name}: {loaded.path} is loaded, not the one of torch's own wheels"
        else:
            yield "content.copies", f"{name} is in the image {len(paths)} times: {', '.join(paths[:_FEW])}"


def _abi(env: Environment, report: NativeReport, standards: Standards) -> Told:
    known = {name: report.libraries[name].cxx11_abi for name in ("libtorch_python.so", "libc10.so", "libtorch_cpu.so")
             if name in report.libraries}  # fmt: skip
    torch = next((abi for abi in known.values() if abi is not None), None)
    if torch is None:
        yield "content.abi", "torch's C++ ABI could not be read from its libraries"
        return
    for name, path in report.ops.items():
        op = report.libraries.get(path)
        if op is not None and op.cxx11_abi is not None and op.cxx11_abi != torch:
            yield "content.abi", f"{name} uses the {_abi_name(op.cxx11_abi)} C++ ABI, torch the {_abi_name(torch)} one"


def _abi_name(new: bool) -> str:
    return "new" if new else "old"


def _compilers(env: Environment, report: NativeReport, standards: Standards) -> Told:
    """A toolset's crt files carry the system compiler's mark too, so one mark of the row's compiler is enough."""
    for name, path in report.ops.items():
        op = report.libraries.get(path)
        if op is None:
            continue  # it does not load, which is told
        versions = [found[1] for text in op.compilers if text.startswith("GCC") and (found := _VERSION.search(text))]
        if not any(matches(env.gcc.version, version) for version in versions):
            said = ", ".join(op.compilers) or "nobody who left a mark"
            yield "content.compiler", f"{name} was compiled by {said}; the row's compiler is GCC {env.gcc.version}"


def _isa(env: Environment, report: NativeReport, standards: Standards) -> Told:
    for name, isa in report.isa.items():
        if isa is None:
            yield "content.isa", f"what {name} asks of the CPU could not be read"
        elif isinstance(isa, Isa) and env.cpu_baseline in LEVELS:
            if isa.truncated or isa.gaps:
                where = f", first in {isa.gaps[0].function}" if isa.gaps else ""
                yield "content.isa", f"not all code of {name} could be decoded{where}; what it holds is not known"
            beyond = isa.beyond(env.cpu_baseline, standards.dispatch.get(name))
            if beyond:
                kinds = ", ".join(dict.fromkeys(use.extension for use in beyond))
                places = "; ".join(f"{use.function}: {use.example}" for use in beyond[:_FEW])
                yield "content.isa", f"{name} uses {kinds} beyond {env.cpu_baseline}, unguarded: {places}"


def _gpu(env: Environment, report: NativeReport, standards: Standards) -> Told:
    if env.accelerator != "cuda":
        return
    torch = [code for path, code in report.gpu.items() if path not in report.ops.values()]
    if not torch:
        yield "content.sm", "no library of torch holds GPU code that could be read"
    for path, code in report.gpu.items():
        for problem in code.problems:
            yield "content.sm", f"{path}: {problem}"
    for sm in standards.sms:
        if torch and not any(coverage(code, sm).cubin for code in torch):
            yield "content.sm", f"torch's libraries hold no machine code for compute capability {sm}"
        for name, path in report.ops.items():
            found = coverage(report.gpu[path], sm) if path in report.gpu else None
            if found is not None and not found.complete:
                yield (
                    "content.sm",
                    (
                        f"{name} holds machine code for compute capability {sm} in {found.cubin} of "
                        f"{found.cubin + found.ptx_only + found.nothing} parts"
                    ),
                )


def _level(report: NativeReport, standards: Standards) -> str | None:
    """The lowest level at which no op has anything unguarded beyond it."""
    ops = [(name, isa) for name, isa in report.isa.items() if isinstance(isa, Isa)]
    if not ops or len(ops) < len(report.isa) or any(isa.gaps or isa.truncated for _, isa in ops):
        return None
    fitting = [level for level in LEVELS
               if not any(isa.beyond(level, standards.dispatch.get(name)) for name, isa in ops)]  # fmt: skip
    return fitting[0] if fitting else None


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", name))
