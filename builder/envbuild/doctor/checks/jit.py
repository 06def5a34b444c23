"""The JIT cache holds ops of this torch, whole and not locked.

torch.utils.cpp_extension keeps an op under TORCH_EXTENSIONS_DIR, else under ``~/.cache/torch_extensions/pyXY_cuNNN``:
the key has Python and CUDA in it, and no torch. ninja compiles again when a header is newer than the op, or the command
line changed (another include folder); a torch of the same folder whose files are older is not noticed.
"""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.doctor.collection import Op
from envbuild.doctor.view import Check, View
from envbuild.doctor.words import (
    OFFLOAD,
    cache_folder,
    listed,
    rebuilt_anyway,
    remedy_for,
    serves,
    shell_path,
    torch_include,
)
from envbuild.model import Finding, Severity

_SOURCE = "torch.utils.cpp_extension (_get_build_directory) and torch.utils.file_baton of torch 2.13.0"
# A CUDA op takes some minutes to compile. A lock that is older belongs to nobody, as a rule.
_LEFT_OVER = 1800.0


def _look(view: View) -> Iterator[Finding]:
    for op in view.collection.ops:
        if op.kind != "cached" or not serves(op, view.collection):
            continue
        if op.lock is not None:
            yield _locked(op, op.lock)
        elif op.file is None:
            yield _half(op)
        if op.absent:
            yield _stale(view, op, op.absent)
        elif op.file is not None and rebuilt_anyway(op, view.collection):
            yield _shared(view, op)


def _locked(op: Op, age: float) -> Finding:
    place = cache_folder(op)
    old = age > _LEFT_OVER
    return Finding(
        rule="jit.locked",
        severity=Severity.ERROR if old else Severity.WARNING,
        subject=place,
        message=f"{place} has been locked for {_time(age)}"
        + (": whoever compiled there is gone" if old else ": it is being compiled, or whoever did so is gone"),
        why="every rank waits for the lock to go away, without a word and without an end, at 'Using ... as PyTorch "
        "extensions root'",
        evidence=(f"{place}/lock: {age:.0f} s old",),
        fix=f"make sure that no process compiles there, and remove {place}/lock",
        command=f"rm {shell_path(place)}/lock" if old else "",
        source=_SOURCE,
    )


def _half(op: Op) -> Finding:
    place = cache_folder(op)
    return Finding(
        rule="jit.half-built",
        severity=Severity.WARNING,
        subject=place,
        message=f"{place} holds no library: the build of {op.name} failed there, or was killed",
        why="it is compiled again on the first step, and may fail again; a build that is killed has often run out of "
        "memory (MAX_JOBS bounds it)",
        evidence=(f"{place}: build.ninja, and no {op.name}.so",),
        fix=f"remove {place}, and compile the op before training to see what is wrong: "
        f"python -c 'from deepspeed.ops.op_builder import *' and the builder's load()",
        command=f"rm -r {shell_path(place)}",
        source=_SOURCE,
    )


def _stale(view: View, op: Op, names: tuple[str, ...]) -> Finding:
    words, command = remedy_for(op, view)
    again = rebuilt_anyway(op, view.collection)
    return Finding(
        rule="jit.stale",
        severity=Severity.WARNING if again else Severity.ERROR,
        subject=op.file or op.name,
        message=f"the op {op.name} in the JIT cache ({op.file}) was compiled against another torch: "
        f"{listed(names, 3)} {'is' if len(names) == 1 else 'are'} in no library of this one",
        why=f"the cache's key ({op.key}) holds Python and CUDA, and no torch: after an upgrade, or in a home that "
        f"containers share, the old file is taken, and fails with 'undefined symbol'; {OFFLOAD}",
        evidence=(
            *(f"{op.file}: undefined symbol {name}" for name in names[:6]),
            f"compiled against {op.built_against}",
        ),
        fix=f"{words}; and give every environment a cache of its own (TORCH_EXTENSIONS_DIR)",
        command=command,
        source=f"{_SOURCE}; pytorch/pytorch#68905; huggingface/transformers#18868",
    )


def _shared(view: View, op: Op) -> Finding:
    return Finding(
        rule="jit.shared",
        severity=Severity.WARNING,
        subject=op.file or op.name,
        message=f"the op {op.name} in the JIT cache ({op.file}) belongs to another environment: it was compiled "
        f"against {op.built_against}, and this torch has {torch_include(view.collection)}",
        why="it is compiled anew at every change from one environment to the other, and two that start at once take "
        "it from one another",
        evidence=(f"build.ninja: {op.built_against}", f"key: {op.key}"),
        fix="give every environment a cache of its own: set TORCH_EXTENSIONS_DIR to a folder inside it",
        source=f"{_SOURCE}; pytorch/pytorch#51892, #68905",
    )


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.0f} hours"


CHECK = Check(
    name="jit",
    title="the JIT cache holds ops of this torch, whole and not locked",
    look=_look,
    # It explains no import: ops are loaded when they are used.
)
