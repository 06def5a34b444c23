"""The compilers that made this environment, side by side. They need not be of one version; what has to fit is said by
``abi`` and ``libstdcxx``."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.doctor.layers import Layer, layers
from envbuild.doctor.view import Check, View
from envbuild.doctor.words import jit_compiler, named_by_python, python_compiler, shell_path
from envbuild.model import Finding, Severity

_SOURCE = (
    "sysconfig; torch.utils.cpp_extension (get_cxx_compiler); .comment, symbol versions and names of the ELF files"
)


def _look(view: View) -> Iterator[Finding]:
    found = layers(view)
    if found:
        yield Finding(
            rule="compilers",
            severity=Severity.INFO,
            subject="compilers",
            message=_summary(found),
            why="they may differ: a newer libstdc++ runs what older compilers made. What counts is that no "
            "library asks for a symbol version that is not there, and that all have torch's C++ string ABI",
            evidence=tuple(map(_line, found)),
            fix="nothing to do",
            source=_SOURCE,
        )
    yield from _python(view)


def _python(view: View) -> Iterator[Finding]:
    """DeepSpeed probes for libaio and others with Python's own extension compiler (distutils)."""
    python, compiler = python_compiler(view.collection), jit_compiler(view.collection)
    environment = view.collection.environment
    if python is None or python.path is not None or "CC" in environment:
        return
    if compiler is None or compiler.path is None or compiler.error:
        return
    name = named_by_python(python, view.collection)
    yield Finding(
        rule="compilers.python",
        severity=Severity.WARNING,
        subject=name,
        message=f"Python's extension compiler, {name}, is not there: this Python was built with it elsewhere",
        why="DeepSpeed asks through it whether libaio and others are there, and then says that they are not; "
        "pip install of what has to be compiled fails",
        evidence=(
            f"sysconfig: {name}",
            f"found by PATH: {compiler.path}",
            *((python.error,) if python.error else ()),
        ),
        fix=f"name the compiler that is there: CC and CXX={compiler.path}",
        command=f"export CXX={shell_path(compiler.path)}",
        source=_SOURCE,
    )


def _summary(found: tuple[Layer, ...]) -> str:
    parts = [f"{layer.title}: {layer.compiler or layer.note or 'no mark'}" for layer in found if layer.name != "op"]
    ops = sorted({layer.compiler for layer in found if layer.name == "op" and layer.compiler})
    return "; ".join([*parts, *([f"ops: {', '.join(ops)}"] if ops else [])])


def _line(layer: Layer) -> str:
    parts = [
        layer.compiler, layer.where, f"{layer.abi} C++ string ABI" if layer.abi else "",
        f"asks for {', '.join(layer.needs)}" if layer.needs else "",
        f"has {', '.join(layer.provides)}" if layer.provides else "", layer.note,
    ]  # fmt: skip
    return f"{layer.title}: {', '.join(part for part in parts if part)}"


CHECK = Check(
    name="compilers", title="which compilers made Python, torch and the ops, and would make the next", look=_look
)
