"""NVIDIA's driver: whether it is there, and new enough for the CUDA that torch is built with."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuild.doctor.found import as_row, driver, minor, older, on_gpu, sources, torch_cuda
from envbuild.doctor.view import Check, View
from envbuild.matrix.rules.driver import driver_for_row
from envbuild.model import Finding, Severity

_DECODED = re.compile(r"found version (\d{4,5})")
_WHY = "torch sees no GPU then: DeepSpeed stops, or trains on the CPU without a word."


def look(view: View) -> Iterator[Finding]:
    """A driver that is missing, too old, or that does not let torch in."""
    gpu, cuda = view.collection.gpu, torch_cuda(view)
    if gpu.pci and not gpu.module and not gpu.devices and not view.collection.machine.container:
        meant, nouveau = on_gpu(view), "nouveau" in view.collection.machine.modules
        yield Finding(
            rule="driver.missing",
            severity=Severity.ERROR if meant else Severity.WARNING,
            subject="nvidia.ko",
            message=f"{gpu.pci} NVIDIA GPU(s) on the PCI bus, and no kernel module of NVIDIA's is loaded",
            why=_WHY,
            fix="install NVIDIA's driver on the host, or load it (modprobe nvidia); after a kernel update it has to be "
            "built for the new kernel",
            evidence=tuple(
                filter(None, (gpu.nvml_error, "nouveau is loaded: it has the GPUs, and goes first" if nouveau else ""))
            ),
            source="/proc/driver/nvidia/version",
        )
        return
    if cuda is None or not on_gpu(view):
        return
    old = list(_floor(view, cuda))
    yield from old
    if not old:
        yield from _refused(view, cuda)


def _floor(view: View, cuda: str) -> Iterator[Finding]:
    row, version, gpu = as_row(view), driver(view), view.collection.gpu
    if row is None or version is None:
        return
    # What has to run is torch's CUDA; a toolkit only compiles.
    row = row.model_copy(update={"cuda": None, "packages": ()})
    compat = sorted(path for path in gpu.libcuda if "/compat" in path)
    for problem in driver_for_row(row, view.facts):
        if problem.severity is not Severity.ERROR:
            continue
        legal = bool(compat) and bool(row.gpus) and set(row.gpus) <= set(view.facts.datacenter.gpus)
        floor = view.facts.driver_floor(cuda, row.gpus)
        yield Finding(
            rule="driver.old",
            severity=Severity.WARNING if legal else Severity.ERROR,
            subject=f"driver {version}",
            message=f"torch is built for CUDA {cuda}, which needs driver {floor.floor if floor else '?'} or newer; "
            f"the loaded one is {version}{_runs(view)}" + (f"; {compat[0]} may make up for that" if legal else ""),
            why=_WHY,
            fix=f"update the host's driver to {floor.floor if floor else '?'} or newer, or take a torch for the "
            "driver's own CUDA",
            evidence=tuple(filter(None, (_words(view),))),
            source=sources(problem.facts),
        )


def _refused(view: View, cuda: str) -> Iterator[Finding]:
    """The driver is new enough, NVML sees the GPUs, and torch does not: its own words."""
    torch, gpu = view.collection.torch, view.collection.gpu
    hidden = view.collection.environment.get("CUDA_VISIBLE_DEVICES")
    if torch is None or torch.available is not False or not gpu.devices or hidden is not None:
        return
    words = _words(view)
    fix = "read what torch says; nvidia-smi and dmesg on the host say more"
    if "802" in words or "not yet initialized" in words:
        fix = "start the fabric manager of the driver's version on the host (systemctl status nvidia-fabricmanager)"
    yield Finding(
        rule="driver.refused",
        severity=Severity.ERROR,
        subject=f"driver {driver(view) or '?'}",
        message=f"NVML sees {len(gpu.devices)} GPU(s), and torch cannot use CUDA" + (f": {words}" if words else ""),
        why=_WHY,
        fix=fix,
        evidence=(f"torch is built for CUDA {cuda}{_runs(view)}",),
        source="torch.cuda.is_available()",
    )


def _words(view: View) -> str:
    """What torch says, with CUDA's number for a version in words: 11040 is 11.4."""
    said = ((view.collection.torch.unavailable if view.collection.torch else None) or "").strip()[:400]
    found = _DECODED.search(said)
    return said + (f" ({found[1]} is CUDA {int(found[1]) // 1000}.{int(found[1]) % 1000 // 10})" if found else "")


def _runs(view: View) -> str:
    own, cuda = minor(view.collection.gpu.cuda), torch_cuda(view)
    return f" (it is for CUDA {own})" if own and older(own, cuda) else ""


CHECK = Check(
    name="driver",
    title="NVIDIA's driver is loaded, and new enough for torch's CUDA and the GPUs",
    look=look,
    explains=("nvml.missing",),
)
