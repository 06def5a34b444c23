"""The compiled ops can be loaded, and hold code for the GPUs that are here."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuild.doctor.collection import Op
from envbuild.doctor.found import wanted
from envbuild.doctor.loading import answers
from envbuild.doctor.view import Check, View
from envbuild.doctor.words import OFFLOAD, listed, remedy_for, serves, title
from envbuild.elf.gpucode import cubin_runs_on, ptx_runs_on
from envbuild.model import Finding, Severity

_CODE = re.compile(r"(sm|compute)_(\d{1,2})(\d[af]?)")
_GPU = "CUDA Programming Guide, Binary Compatibility and PTX Compatibility; the GPU code in the file"


def _look(view: View) -> Iterator[Finding]:
    known = answers(view.collection)
    for op in view.collection.ops:
        if op.file is None or not serves(op, view.collection):
            continue
        broken = view.collection.libraries.broken.get(known.real(op.file))
        if broken is not None:
            yield _broken(view, op, broken)
        elif op.sm:
            yield from _gpu(view, op)
    yield from _python(view)
    yield from _gone(view)


def _broken(view: View, op: Op, reason: str) -> Finding:
    words, command = remedy_for(op, view)
    return Finding(
        rule="ops.damaged",
        severity=Severity.ERROR,
        subject=op.file or op.name,
        message=f"{title(op)} ({op.file}) is damaged: {reason}",
        why="a disk that was full, or a build that was killed, leaves half a file; loading it ends in an ImportError, "
        f"or in a bus error that has nothing to do with /dev/shm; {OFFLOAD}",
        evidence=(f"{op.file}: {reason}",),
        fix=words,
        command=command,
        source="the file's own headers",
    )


def _gpu(view: View, op: Op) -> Iterator[Finding]:
    known = [device for device in view.collection.gpu.devices if device.sm and re.fullmatch(r"\d+\.\d", device.sm)]
    gpus = {device.sm or "": device.name or "a GPU" for device in known}
    codes = [found for name in op.sm if (found := _CODE.fullmatch(name))]
    cubins = [f"{found[2]}.{found[3]}" for found in codes if found[1] == "sm"]
    ptx = [f"{found[2]}.{found[3]}" for found in codes if found[1] == "compute"]
    if len(codes) < len(op.sm):
        return  # code of a kind that is not known here may be the right one
    for sm, name in gpus.items():
        if any(cubin_runs_on(code, sm) for code in cubins):
            continue
        alone = any(ptx_runs_on(code, sm) for code in ptx)
        words, command = remedy_for(op, view)
        wanted = f"{sm}+PTX" if alone else sm
        yield Finding(
            rule="ops.sm",
            severity=Severity.WARNING if alone else Severity.ERROR,
            subject=op.file or op.name,
            message=f"{title(op)} ({op.file}) holds GPU code for {listed(op.sm, 12)}, and none for {name} (sm_"
            f"{sm.replace('.', '')})" + (": the driver has to compile its PTX at the first call" if alone else ""),
            why="the first kernel ends in 'no kernel image is available for execution on the device'" if not alone
            else "a driver that is older than the toolkit cannot, and the first step takes longer",
            evidence=(f"{op.file}: {listed(op.sm, 12)}", f"GPU: {name}, compute capability {sm}"),
            fix=f"set TORCH_CUDA_ARCH_LIST to every GPU that it is for (here {wanted}), and {words}",
            command=command,
            source=_GPU,
        )  # fmt: skip


def _python(view: View) -> Iterator[Finding]:
    """A prebuilt op carries the Python that it was compiled for in its name."""
    interpreter = view.collection.interpreter
    numbers = ((interpreter.version if interpreter else None) or "").split(".")[:2]
    tag = f".cpython-{''.join(numbers)}-" if len(numbers) == 2 else None
    for op in view.collection.ops:
        name = (op.file or "").rpartition("/")[2]
        if tag is None or op.kind != "prebuilt" or ".cpython-" not in name or tag in name:
            continue
        words, command = remedy_for(op, view)
        yield Finding(
            rule="ops.python",
            severity=Severity.ERROR,
            subject=op.file or op.name,
            message=f"{title(op)} ({op.file}) was compiled for another Python than {'.'.join(numbers)}: its import "
            "finds no such module",
            why=OFFLOAD,
            evidence=(f"file name: {name}",),
            fix=words,
            command=command,
            source="PEP 3149 (tags of extension modules)",
        )


def _gone(view: View) -> Iterator[Finding]:
    """DeepSpeed wrote down at its installation which ops it holds, and asks nobody again: it looks for no other."""
    deepspeed, meant = view.collection.deepspeed, wanted(view)
    for name in deepspeed.lost_ops if deepspeed is not None else ():
        words, command = remedy_for(Op(kind="prebuilt", name=name), view)
        yield Finding(
            rule="ops.gone",
            severity=Severity.ERROR if name in meant else Severity.WARNING,
            subject=name,
            message=f"DeepSpeed says that {name} was compiled into it, and its file is not there",
            why=f"DeepSpeed then compiles nothing: loading the op ends in ModuleNotFoundError; {OFFLOAD}",
            evidence=("git_version_info_installed.py of deepspeed has it among installed_ops",),
            fix=words,
            command=command,
            source="DeepSpeed op_builder/builder.py, OpBuilder.load",
        )


CHECK = Check(
    name="ops",
    title="the compiled ops are whole, for this Python, and hold code for the GPUs that are here",
    look=_look,
    # It explains no import: ops are loaded when they are used.
)
