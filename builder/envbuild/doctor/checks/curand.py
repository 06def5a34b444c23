"""curand of the toolkit: headers and the link name, for the releases whose CPU optimizer is compiled against it."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.doctor.found import pending_for, sources, toolkit
from envbuild.doctor.view import Check, View
from envbuild.model import Finding, Severity

_HEADER, _LINK = "curand_kernel.h", "libcurand.so"


def look(view: View) -> Iterator[Finding]:
    """The header that GPU code includes, and libcurand.so (with no number), which the linker asks for."""
    kit = toolkit(view)
    if kit is None or not kit.nvcc:
        return
    including, linking = pending_for(view, "curand"), pending_for(view, "toolkit")
    known = view.facts.deepspeed.ops
    if including and not any(header.startswith("curand") for header in kit.headers):
        yield Finding(
            rule="curand.headers",
            severity=Severity.ERROR,
            subject=kit.path,
            message=f"{kit.path} has no {_HEADER}, which {', '.join(including)} of this DeepSpeed includes",
            why="The CPU optimizer of ZeRO-Offload cannot be compiled without it.",
            fix=f"install curand's development files of CUDA {kit.version or 'that version'} into that toolkit, or a "
            f"DeepSpeed newer than {max(known[op].curand_through or '' for op in including)}",
            source=sources(known[op] for op in including),
        )
    cpu = tuple(op for op in linking if known[op].curand_through)
    if cpu and _LINK not in kit.libraries:
        yield Finding(
            rule="curand.library",
            severity=Severity.ERROR,
            subject=kit.lib or kit.path,
            message=f"{kit.lib or kit.path} has no {_LINK}: {', '.join(cpu)} of this DeepSpeed links -lcurand",
            why="The linker ends with 'cannot find -lcurand'. It looks for the name without a number, which only a "
            "development package brings, and LD_LIBRARY_PATH is nothing to it.",
            fix="install curand's development package of the toolkit's version; LIBRARY_PATH may name its folder",
            source="DeepSpeed op_builder/builder.py, TorchCPUOpBuilder; deepspeedai/DeepSpeed#5659, #3929",
        )


CHECK = Check(
    name="curand",
    title="curand's headers and link name are in the toolkit where an op wants them",
    look=look,
)
