"""The places where a C++ compiler leaves its mark, side by side: what is to be compiled, Python, torch, the ops.

They need not be of one version: a newer libstdc++ runs what older compilers made. What has to fit is said by the checks
(``abi``, ``libstdcxx``); this only shows who they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from envbuild.doctor.collection import Collection, Op
from envbuild.doctor.loading import Answers, answers
from envbuild.doctor.view import View
from envbuild.doctor.words import gcc_of, is_clang, jit_compiler, named_by_python, needs, python_compiler, told
from envbuild.elf import ElfFile, by_family

# torch's own code: the others next to it come from elsewhere (libgomp, MKL).
_TORCH = ("libtorch_python.so", "libtorch_cpu.so", "libc10.so")
LIBSTDCXX = "libstdc++.so.6"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One of them.

    Attributes:
        name: ``compiler`` (what compiles an op now), ``python``, ``torch``, ``op`` (one each), ``runtime`` (the
            libstdc++ that serves them all).
        title: In words.
        compiler: Such as ``GCC 12.2.0``; empty where it left no mark.
        where: The program or the file.
        abi: Of its C++ strings: the ``new`` one of GCC 5 and later, or the ``old``; None where it has none.
        needs: The newest symbol versions that it asks for: GLIBCXX, CXXABI, GLIBC.
        provides: The newest that it has; of ``runtime`` only.
        note: What made it this one.
    """

    name: Literal["compiler", "python", "torch", "op", "runtime"]
    title: str
    compiler: str = ""
    where: str = ""
    abi: Literal["new", "old"] | None = None
    needs: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()
    note: str = ""


def layers(view: View) -> tuple[Layer, ...]:
    """All that were seen of a machine, in the order: compiler, Python, torch, ops, run time."""
    collection = view.collection
    known = answers(collection)
    return (*_compilers(collection), *_torch(view, known), *_ops(collection, known), *_runtime(collection, known))


def torch_abi(view: View) -> bool | None:
    """Whether torch's C++ strings are of the new ABI: its own word, else its libraries'."""
    torch = view.collection.torch
    if torch is not None and torch.cxx11_abi is not None:
        return torch.cxx11_abi
    known = answers(view.collection)
    files = (known.read(path) for name in _TORCH for path in _paths(view.collection, name))
    return next((file.cxx11_abi for file in files if file is not None and file.cxx11_abi is not None), None)


def file_of(op: Op, known: Answers) -> ElfFile | None:
    """The ELF file of an op."""
    return known.read(op.file) if op.file else None


def _compilers(collection: Collection) -> Iterator[Layer]:
    compiler = jit_compiler(collection)
    if compiler is None and collection.interpreter is not None:
        yield Layer(name="compiler", title="compiler of JIT ops", note="there is none")
    elif compiler is not None:
        by = "by CXX" if compiler.role == "CXX" else "by PATH"
        yield Layer(
            name="compiler", title="compiler of JIT ops", where=compiler.path or compiler.name,
            compiler=_said(compiler.version, clang=is_clang(compiler)), note=compiler.error or by,
        )  # fmt: skip
    python = python_compiler(collection)
    if python is not None:
        where = python.path or named_by_python(python, collection)
        yield Layer(
            name="python", title="Python's extension compiler", where=where,
            compiler=_said(python.version, clang=is_clang(python)), note=python.error or "by sysconfig",
        )  # fmt: skip
    elif collection.interpreter is not None:
        said = collection.interpreter.build.get("CXX") or collection.interpreter.build.get("CC") or ""
        yield Layer(name="python", title="Python's extension compiler", where=said, note="not looked at")


def _torch(view: View, known: Answers) -> Iterator[Layer]:
    paths = [path for name in _TORCH for path in _paths(view.collection, name)]
    files = [(path, file) for path in paths if (file := known.read(path)) is not None]
    if not files:
        return
    wanted = by_family(need.version for _, file in files for need in file.requires if not need.weak)
    abi = torch_abi(view)
    yield Layer(
        name="torch", title="torch's libraries", where=files[0][0].rpartition("/")[0],
        compiler=_said(gcc_of(files[0][1].comment)), abi=_abi(abi),
        needs=tuple(wanted[family] for family in ("GLIBCXX", "CXXABI", "GLIBC") if family in wanted),
    )  # fmt: skip


def _ops(collection: Collection, known: Answers) -> Iterator[Layer]:
    for op in collection.ops:
        file = file_of(op, known)
        if file is None:
            continue
        kinds = {"prebuilt": "prebuilt", "cached": "compiled at run time (JIT)", "other": "extension"}
        yield Layer(
            name="op", title=op.name, where=op.file or "", compiler=_said(gcc_of(file.comment)),
            abi=_abi(file.cxx11_abi), needs=needs(file), note=kinds[op.kind],
        )  # fmt: skip


def _runtime(collection: Collection, known: Answers) -> Iterator[Layer]:
    loaded = known.provider(LIBSTDCXX)
    if loaded is None:
        return
    has = by_family(loaded.elf.provides)
    yield Layer(
        name="runtime", title="libstdc++ that is loaded", where=told(loaded.real, collection),
        compiler=_said(gcc_of(loaded.elf.comment)), note=known.why(LIBSTDCXX),
        provides=tuple(has[family] for family in ("GLIBCXX", "CXXABI") if family in has),
    )  # fmt: skip


def _paths(collection: Collection, name: str) -> list[str]:
    """Where a library of torch lies; the folder that torch itself names comes first."""
    folder = collection.torch.lib if collection.torch is not None else None
    found = [path for path in collection.libraries.files if path.endswith(f"/torch/lib/{name}")]
    return sorted(found, key=lambda path: folder is None or not path.startswith(f"{folder}/"))[:1]


def _said(version: str | None, *, clang: bool = False) -> str:
    return f"{'clang' if clang else 'GCC'} {version}" if version else ""


def _abi(new: bool | None) -> Literal["new", "old"] | None:
    return None if new is None else "new" if new else "old"
