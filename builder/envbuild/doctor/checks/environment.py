"""Environment variables that switch something off, name what is not there, or slow everything down."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuild.doctor.found import (
    as_row,
    has_gpu,
    on_gpu,
    pending,
    release,
    sources,
    torch_cuda,
    torch_version,
    without_p2p,
)
from envbuild.doctor.view import Check, View
from envbuild.facts.versions import within
from envbuild.matrix.rules.running import hanging_collectives_end
from envbuild.model import Finding, Severity

_NCCL = "NCCL user guide, environment variables"
# Transports of NCCL that a variable switches off, and what is lost.
_OFF = {
    "NCCL_P2P_DISABLE": "GPUs of this node no longer copy to one another directly (NVLink, PCIe)",
    "NCCL_SHM_DISABLE": "ranks of this node talk over the network in place of shared memory",
    "NCCL_IB_DISABLE": "InfiniBand and RoCE are not used: sockets are",
}
# The same, said as a level of distance.
_LEVELS = {
    "NCCL_P2P_LEVEL": _OFF["NCCL_P2P_DISABLE"],
    "NCCL_NET_GDR_LEVEL": "the network copies through host memory, not from GPU to network card",
}
_LEFT_OVER = "It is often left over from looking for a hang. Gathering ZeRO-3's parameters is what it slows down."


def look(view: View) -> Iterator[Finding]:
    """What is set and should not be, or not so."""
    said = view.collection.environment
    yield from _collectives(view)
    yield from _accelerator(view, said)
    yield from _visible(view, said)
    if has_gpu(view):
        yield from _transports(view, said)
    yield from _places(view, said)
    yield from _threads(view, said)


def _finding(name: str, value: str, severity: Severity, message: str, fix: str, source: str, why: str = "") -> Finding:
    removes = fix.startswith("unset it")
    return Finding(
        rule=f"environment.{name.lower().replace('_', '-')}",
        severity=severity,
        subject=name,
        message=f"{name}={value[:120]!r}: {message}",
        fix=fix,
        why=why,
        source=source,
        command=f"unset {name}" if removes else "",
    )


def _collectives(view: View) -> Iterator[Finding]:
    row, named = as_row(view), view.facts.nccl_error_handling
    if row is None:
        return
    for problem in hanging_collectives_end(row, view.facts):
        name = str(problem.key[-1])
        hangs = "the other ranks wait" in problem.message
        yield Finding(
            rule="environment.nccl-error-handling",
            severity=problem.severity if hangs else Severity.INFO,
            subject=name,
            message=problem.message,
            why="A rank that dies leaves the others hanging until somebody looks." if hangs else "",
            fix=problem.fix.replace(f"{named.variable}: 1", f"set {named.variable}=1"),
            command=f"unset {name}" if hangs else "",
            source=sources(problem.facts),
        )
    old = "NCCL_BLOCKING_WAIT"
    if old in row.env and within(row.torch.version, named.renamed_in, None):
        yield _finding(
            old,
            row.env[old],
            Severity.INFO,
            f"torch calls it TORCH_{old} since {named.renamed_in}",
            f"rename it to TORCH_{old}",
            named.source,
        )


def _accelerator(view: View, said: dict[str, str]) -> Iterator[Finding]:
    value = said.get("DS_ACCELERATOR")
    if not value:
        return
    cuda, source = torch_cuda(view), "deepspeed/accelerator/real_accelerator.py"
    # AMD's builds call their GPUs cuda, too.
    rocm = "rocm" in (torch_version(view) or "")
    name = "DS_ACCELERATOR"
    wants = view.row.accelerator if view.row is not None else None
    if value == "cpu" and wants != "cpu" and has_gpu(view) and cuda:
        yield _finding(
            name,
            value,
            Severity.WARNING,
            "DeepSpeed trains on the CPU, though there are GPUs",
            "unset it, or set it to cuda",
            source,
        )
    elif value == "cuda" and view.collection.torch is not None and view.collection.torch.ok and not (cuda or rocm):
        yield _finding(
            name,
            value,
            Severity.ERROR,
            "this torch is built without CUDA",
            "unset it, or install a torch for CUDA",
            source,
        )


def _visible(view: View, said: dict[str, str]) -> Iterator[Finding]:
    name, devices = "CUDA_VISIBLE_DEVICES", view.collection.gpu.devices
    value, source = said.get(name), "CUDA programming guide, CUDA_VISIBLE_DEVICES"
    if value is None or not devices or torch_cuda(view) is None or not on_gpu(view):
        return
    scheduled = any(each.startswith("SLURM_") for each in said)
    entries = [part.strip() for part in value.split(",")]
    if not value.strip() or entries[0] in ("-1", "NoDevFiles", "none", "void"):
        yield _finding(
            name,
            value,
            Severity.WARNING,
            f"it hides all {len(devices)} GPU(s)",
            # To unset it in a job takes what is somebody else's.
            "ask Slurm for GPUs (--gpus, --gres=gpu:N): it hides those that are not this job's"
            if scheduled
            else "unset it, or name GPUs",
            source,
            "DeepSpeed then takes the CPU, or ends because no GPU is there.",
        )
        return
    numbers = {str(device.index) for device in devices}
    # Beside numbers there are UUIDs (GPU-, MIG-), of which the first letters do.
    lost = next(
        (n for n, entry in enumerate(entries) if entry not in numbers and not entry.startswith(("GPU-", "MIG-"))), None
    )
    if lost is not None:
        yield _finding(
            name,
            value,
            Severity.WARNING if lost else Severity.ERROR,
            f"there is no GPU {entries[lost][:40]!r} (there are {len(devices)}), and CUDA reads no further: "
            f"{'only those before it count' if lost else 'none is seen'}",
            f"name GPUs that are there: 0 to {len(devices) - 1}",
            source,
        )


def _transports(view: View, said: dict[str, str]) -> Iterator[Finding]:
    off = [(name, lost) for name, lost in _OFF.items() if said.get(name, "0") not in ("", "0")]
    off += [(name, lost) for name, lost in _LEVELS.items() if said.get(name, "").upper() in ("LOC", "0")]
    for name, lost in off:
        if name in ("NCCL_IB_DISABLE", "NCCL_NET_GDR_LEVEL") and not view.collection.machine.infiniband:
            continue
        if name.startswith("NCCL_P2P") and without_p2p(view):
            continue
        yield _finding(
            name,
            said[name],
            Severity.WARNING,
            lost,
            "unset it unless this machine hangs without it",
            f"{_NCCL}; deepspeedai/DeepSpeed#4433",
            _LEFT_OVER,
        )
    if said.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
        yield _finding(
            "CUDA_LAUNCH_BLOCKING",
            said["CUDA_LAUNCH_BLOCKING"],
            Severity.WARNING,
            "each kernel is waited for: nothing overlaps",
            "unset it: it is for finding a fault",
            "CUDA programming guide",
            "ZeRO-3 lives of gathering and offloading beside the computation.",
        )


def _places(view: View, said: dict[str, str]) -> Iterator[Finding]:
    if said.get("PYTHONHOME"):
        yield _finding(
            "PYTHONHOME",
            said["PYTHONHOME"],
            Severity.WARNING,
            "this and every other Python takes its modules from there",
            "unset it",
            "Python documentation, PYTHONHOME",
        )
    cache = said.get("TORCH_EXTENSIONS_DIR", "")
    if pending(view) and re.match(r"/(tmp|var/tmp|dev/shm|run)(/|$)", cache):
        yield _finding(
            "TORCH_EXTENSIONS_DIR",
            cache,
            Severity.INFO,
            "compiled ops are lost with the next start of the machine, and compiled again",
            "name a folder that stays, one for each torch",
            "torch.utils.cpp_extension, _get_build_directory",
        )


def _threads(view: View, said: dict[str, str]) -> Iterator[Finding]:
    cpu, value = view.collection.machine.cpu, release(said.get("OMP_NUM_THREADS"))
    usable = cpu.usable or cpu.count
    if value is None or usable is None or "." in value:
        return
    if int(value) == 1 and usable >= 4:
        yield _finding(
            "OMP_NUM_THREADS",
            value,
            Severity.WARNING,
            f"the CPU optimizer steps with one thread of {usable}",
            "set it to the cores of a rank: cores divided by ranks",
            "DeepSpeed csrc/includes/cpu_adam.h (omp parallel for)",
            "torchrun sets it to 1 for several ranks where nothing else is said.",
        )


CHECK = Check(
    name="environment",
    title="no variable switches off, hides or slows down what training needs",
    look=look,
    explains=("imports.accelerator",),
)
