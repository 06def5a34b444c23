"""GPUs in containers: what the host has to have, and what a container got."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.doctor.found import has_gpu, torch_cuda
from envbuild.doctor.view import Check, View
from envbuild.model import Finding, Severity

_SOURCE = "NVIDIA container toolkit, specialized configurations"


def look(view: View) -> Iterator[Finding]:
    """Inside: a container without GPUs, or without CUDA's part of the driver. Outside: no way to hand GPUs on."""
    if view.collection.machine.container is not None:
        yield from _inside(view)
    elif has_gpu(view) and view.row is not None and view.row.accelerator == "cuda":
        gpu = view.collection.gpu
        if not gpu.runtimes and not gpu.cdi:
            yield Finding(
                rule="container.runtime",
                severity=Severity.WARNING,
                subject="nvidia-container-toolkit",
                message="the host has GPUs, and nothing to hand them to a container: no nvidia-ctk, no CDI file",
                why="A container for these GPUs would start without them, or not at all.",
                fix="install NVIDIA's container toolkit on the host and register it (nvidia-ctk runtime configure for "
                "Docker, nvidia-ctk cdi generate for Podman)",
                source="OpenBMB/XAgent#273; NVIDIA container toolkit, installation",
            )


def _inside(view: View) -> Iterator[Finding]:
    gpu, said, name = view.collection.gpu, view.collection.environment, view.collection.machine.container or ""
    means = view.row.accelerator == "cuda" if view.row is not None else torch_cuda(view) is not None
    if not means or said.get("DS_ACCELERATOR") == "cpu":
        return
    visible, parts = said.get("NVIDIA_VISIBLE_DEVICES"), said.get("NVIDIA_DRIVER_CAPABILITIES")
    if not gpu.device_files and not gpu.devices:
        ours = view.collection.image is not None
        whose = "torch is built" if torch_cuda(view) or view.row is None else f"{view.row.name} is"
        whose = whose.replace("asked is", "what was asked for is")
        hidden = visible is not None and visible.strip() in ("", "void", "none")
        yield Finding(
            rule="container.without-gpus",
            severity=Severity.INFO if ours else Severity.ERROR if view.row is not None else Severity.WARNING,
            subject=name,
            message=f"{whose} for CUDA, and this {name} container has no GPU"
            + (f": NVIDIA_VISIBLE_DEVICES is {visible!r}" if hidden else ""),
            why="DeepSpeed takes the CPU, or ends because no GPU is there. While an image is built that has to be so.",
            fix="nothing to do unless it is meant to have some"
            if ours
            else "start it with them: docker run --gpus all, podman run --device nvidia.com/gpu=all, "
            "apptainer exec --nv, a GPU in the pod's resources; the host needs NVIDIA's container toolkit for it",
            source=_SOURCE,
        )
    elif gpu.device_files and not gpu.libcuda:
        lacks = parts is not None and not {"compute", "all"} & {part.strip() for part in parts.split(",")}
        yield Finding(
            rule="container.driver",
            severity=Severity.ERROR,
            subject="libcuda.so.1",
            message="the GPUs' device files are here, and the driver's libcuda.so.1 is not"
            + (f": NVIDIA_DRIVER_CAPABILITIES is {parts!r}, without compute" if lacks else ""),
            why="torch sees no GPU without it.",
            fix="start it with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
            if lacks
            else "let the container runtime bring it (docker run --gpus all, CDI, apptainer exec --nv); device files "
            "alone do not",
            source=_SOURCE,
        )


CHECK = Check(
    name="container",
    title="a container has its GPUs and the driver's libraries, and the host can hand them on",
    look=look,
    explains=("row.gpu", "driver.refused"),
)
