"""Ops and extensions speak torch's C++: the same string ABI, and no symbol of torch that this torch has not."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.doctor.collection import Op
from envbuild.doctor.layers import file_of, torch_abi
from envbuild.doctor.loading import answers
from envbuild.doctor.view import Check, View
from envbuild.doctor.words import OFFLOAD, gcc_of, listed, rebuilt_anyway, remedy_for, serves, title
from envbuild.model import Finding, Severity

_STRINGS = "libstdc++'s manual, Dual ABI; Dao-AILab/flash-attention#1644"
_SYMBOLS = "the dynamic symbols of the files (glibc's elf/dl-lookup.c)"


def _look(view: View) -> Iterator[Finding]:
    torch = torch_abi(view)
    for op in view.collection.ops:
        # A cached one with symbols of another torch is stale, which `jit` says.
        if op.file is None or not serves(op, view.collection) or (op.kind == "cached" and op.absent):
            continue
        if op.absent:
            yield _symbols(view, op, torch)
        elif torch is not None and _speaks_torch(view, op):
            file = file_of(op, answers(view.collection))
            if file is not None and file.cxx11_abi is not None and file.cxx11_abi != torch:
                yield _strings(view, op, file.comment, torch)


def _speaks_torch(view: View, op: Op) -> bool:
    """An extension of a package that never meets torch may have any ABI."""
    file = file_of(op, answers(view.collection))
    return op.kind != "other" or (
        file is not None and any(name.startswith(("libtorch", "libc10")) for name in file.needed)
    )


def _strings(view: View, op: Op, comment: tuple[str, ...], torch: bool) -> Finding:
    words, command = remedy_for(op, view)
    flags = [flag for flag in op.flags if "_GLIBCXX_USE_CXX11_ABI" in flag]
    by = f", compiled by GCC {gcc}" if (gcc := gcc_of(comment)) else ""
    because = f" with {flags[0]}" if flags else ""
    return Finding(
        rule="abi.strings",
        severity=Severity.WARNING if rebuilt_anyway(op, view.collection) else Severity.ERROR,
        subject=op.file or op.name,
        message=f"{title(op)} ({op.file}{by}{because}) has the {_name(not torch)} C++ string ABI, and torch "
        f"{_version(view)} the {_name(torch)} one",
        why=f"a string that crosses the border is misread, or the symbol is not found; {OFFLOAD}",
        evidence=(
            f"{op.file}: its C++ strings are of the {_name(not torch)} ABI",
            f"torch: _GLIBCXX_USE_CXX11_ABI={int(torch)}",
        ),
        fix=f"{words}; set nothing that defines _GLIBCXX_USE_CXX11_ABI: torch's own flags say {int(torch)}",
        command=command,
        source=_STRINGS,
    )


def _symbols(view: View, op: Op, torch: bool | None) -> Finding:
    names = op.absent or ()
    words, command = remedy_for(op, view)
    built = _built_with(names)
    hint = ""
    if built is not None and torch is not None and built != torch:
        hint = f"; they are names of the {_name(built)} C++ string ABI, and torch has the {_name(torch)} one"
    return Finding(
        rule="abi.symbols",
        severity=Severity.ERROR,
        subject=op.file or op.name,
        message=f"{title(op)} ({op.file}) was compiled against another torch: {listed(names, 3)} "
        f"{'is' if len(names) == 1 else 'are'} in no library of torch {_version(view)}{hint}",
        why=f"it cannot be imported: 'undefined symbol'; {OFFLOAD}",
        evidence=tuple(f"{op.file}: undefined symbol {name}" for name in names[:6]),
        fix=words,
        command=command,
        source=_SYMBOLS if not hint else f"{_SYMBOLS}; {_STRINGS}",
    )


def _built_with(names: tuple[str, ...]) -> bool | None:
    """The ABI that mangled names are of: ``__cxx11`` in the new one, ``Ss`` for a string in the old one."""
    if any("7__cxx11" in name for name in names):
        return True
    return False if any(name.endswith("Ss") or "RKSs" in name for name in names) else None


def _version(view: View) -> str:
    torch = view.collection.torch
    return (torch.version if torch is not None else None) or view.package("torch") or ""


def _name(new: bool) -> str:
    return "new" if new else "old"


CHECK = Check(
    name="abi",
    title="ops and extensions have torch's C++ string ABI, and ask for no symbol that this torch has not",
    look=_look,
    explains=("imports.abi", "ops"),
)
