"""The compiler of the ops: that it works, that nvcc accepts it, that it is new enough for torch's headers, and that
DeepSpeed asks it for the C++ that they are written in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from envbuild.doctor.collection import Tool
from envbuild.doctor.found import (
    as_row,
    by_loader,
    compiler,
    host_compiler,
    is_gcc,
    minor,
    pending,
    pending_for,
    sources,
)
from envbuild.doctor.view import Check, View
from envbuild.facts import Facts
from envbuild.matrix.rules.language import deepspeed_for_cxx17, deepspeed_for_cxx20, gcc_for_torch
from envbuild.matrix.rules.problem import Problem
from envbuild.matrix.rules.toolkit import gcc_for_nvcc
from envbuild.model import Environment, Finding, Gcc, Severity

_WHY = "DeepSpeed compiles the op when training first needs it, and ends there."
_HIDDEN = "The log's last line is about ninja; the compiler's own words stand far above it."


def look(view: View) -> Iterator[Finding]:
    """What is wrong with the compiler; nothing where every wanted op is compiled already and it merely is not there."""
    ops, tool = pending(view), compiler(view)
    if tool is None or not tool.path:
        if ops:
            yield _missing(view, ops, tool)
        return
    # A compiler with several names was tried under one of them.
    names = {each.path for each in view.collection.tools if each.real == tool.real} | {tool.path, tool.real}
    trials = [trial for trial in view.collection.compiles if trial.compiler in names]
    if tool.error and not trials:
        yield _trouble(tool, ops, "it does not run", tool.error)
    for trial in trials:
        if not trial.works:
            yield _trouble(tool, ops, "it cannot compile and run a small C++ program", trial.error or "")
    row = as_row(view)
    if row is not None:
        yield from _by_rules(view, row, tool, ops)


def _trouble(tool: Tool, ops: tuple[str, ...], what: str, error: str) -> Finding:
    loader = by_loader(error)
    would = f"{', '.join(ops)} would be compiled by it. " if ops else ""
    return Finding(
        rule="host-compiler.runtime" if loader else "host-compiler.broken",
        severity=Severity.ERROR if ops else Severity.WARNING,
        subject=tool.path or tool.name,
        message=what + (f": {error}" if error else ""),
        why=would + "It, or what it makes, takes a library that cannot serve: an op would end in the same way."
        if loader
        else would + "Probes for libaio and others fail for the same reason, and then blame the library.",
        fix="see what is said of the libraries, above all of libstdc++: the compiler is not at fault"
        if loader
        else "install the whole compiler (g++ with its headers and the linker), or name a working one in CXX",
        evidence=(tool.says,) if tool.says else (),
        source="envbuild's own trial; " + ("the loader's own words" if loader else "deepspeedai/DeepSpeed#4968"),
    )


def _missing(view: View, ops: tuple[str, ...], tool: Tool | None) -> Finding:
    named = view.collection.environment.get("CXX")
    return Finding(
        rule="host-compiler.missing",
        severity=Severity.ERROR,
        subject=named or "c++",
        message=f"there is no C++ compiler ({f'CXX={named}' if named else 'no c++ on PATH'}), and {', '.join(ops)} "
        "is not compiled yet",
        why=_WHY,
        fix=("unset CXX, or let it name a compiler that is there" if named else "install g++")
        + ", or install DeepSpeed with the op compiled ahead of time",
        evidence=(tool.error,) if tool and tool.error else (),
        source="torch.utils.cpp_extension, get_cxx_compiler",
    )


def _by_rules(view: View, row: Environment, tool: Tool, ops: tuple[str, ...]) -> Iterator[Finding]:
    gpu_ops = pending_for(view, "nvcc")
    below = host_compiler(view) or tool
    if row.cuda is not None and is_gcc(below) and row.gcc.version != "0.0":
        for problem in gcc_for_nvcc(row, view.facts):
            if problem.severity is Severity.ERROR:
                yield Finding(
                    rule="host-compiler.nvcc",
                    severity=Severity.ERROR if gpu_ops else Severity.WARNING,
                    subject=below.path or below.name,
                    message=f"nvcc of CUDA {row.cuda.version} accepts GCC "
                    f"{view.facts.toolkits[row.cuda.version].max_gcc} at most, and would be given {below.version}"
                    + ("" if gpu_ops else "; offload itself needs no op with GPU code, others (FusedAdam) do"),
                    why=f"{', '.join(gpu_ops)} would be compiled by it. {_HIDDEN}" if gpu_ops else _HIDDEN,
                    fix=_other(view, view.facts.toolkits[row.cuda.version].max_gcc),
                    source=sources(problem.facts),
                )
    own = minor(tool.version)
    if own and is_gcc(tool):
        tried = row.model_copy(update={"gcc": Gcc(version=own, package="gcc")})
        if ops:
            yield from _said(view, tried, gcc_for_torch, "host-compiler.old", tool.path or tool.name)
    if ops:
        subject = f"DeepSpeed {row.deepspeed.version}"
        yield from _said(view, row, deepspeed_for_cxx17, "host-compiler.language", subject)
        yield from _said(view, row, deepspeed_for_cxx20, "host-compiler.language", subject)


Judge = Callable[[Environment, Facts], Iterable[Problem]]


def _said(view: View, row: Environment, judge: Judge, rule: str, subject: str) -> Iterator[Finding]:
    for problem in judge(row, view.facts):
        yield Finding(
            rule=rule,
            severity=problem.severity,
            subject=subject,
            message=problem.message.replace("the ops of this row with", "the ops would be compiled with"),
            why=_WHY + " A message about C++14 or C++17 then is not the compiler's fault, but of who calls it."
            if rule.endswith("language")
            else _HIDDEN,
            fix=problem.fix,
            source=sources(problem.facts),
        )


def _other(view: View, newest: int) -> str:
    """How to name a compiler that nvcc accepts; never by moving the system's own links."""
    for tool in view.collection.tools:
        major = (minor(tool.version) or "0").split(".")[0]
        if tool.path and tool.name.startswith("gcc") and is_gcc(tool) and 0 < int(major) <= newest:
            return f"let CC and CXX name GCC {major}: CC={tool.path}, and the g++ beside it as CXX"
    return f"install GCC {newest} beside it and let CC and CXX name it (CC=gcc-{newest} CXX=g++-{newest})"


CHECK = Check(
    name="host-compiler",
    title="the compiler of the ops works, nvcc accepts it, torch's headers and DeepSpeed's flags agree with it",
    look=look,
)
