"""NVML, the driver's library for asking about GPUs: what its errors really mean."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.doctor.found import on_gpu, release
from envbuild.doctor.view import Check, View
from envbuild.model import Finding, Severity

_WHY = "Without it torch and nvidia-smi see no GPU: DeepSpeed stops, or trains on the CPU without a word."


def look(view: View) -> Iterator[Finding]:
    """A mismatch with the kernel module, a container that lost its GPUs, and permissions."""
    gpu, machine, torch = view.collection.gpu, view.collection.machine, view.collection.torch
    said = (gpu.nvml_error or "").lower()
    module, user = release(gpu.module), release(gpu.nvml)
    severity = Severity.ERROR if on_gpu(view) or view.row is None else Severity.WARNING
    evidence = tuple(filter(None, (
        f"kernel module {gpu.module}" if gpu.module else "", f"NVML of {gpu.nvml}" if gpu.nvml else "",
        gpu.nvml_error or "", f"{len(gpu.device_files)} device files" if gpu.device_files else "",
    )))  # fmt: skip
    if "version mismatch" in said or (module and user and module != user and not gpu.devices):
        yield Finding(
            rule="nvml.mismatch",
            severity=severity,
            subject=f"driver {module or '?'}",
            message=f"the loaded kernel module is {module or 'another one'}, and NVIDIA's libraries are of "
            f"{user or _libraries(view) or 'another version'}: the driver was updated under a running system",
            why=_WHY,
            fix="reboot the host (or unload and load the kernel modules of NVIDIA's); a container cannot repair that. "
            "Pin the driver's packages, so that unattended upgrades do not do it again",
            evidence=evidence,
            source="NVML_ERROR_LIB_RM_VERSION_MISMATCH, NVML API reference",
        )
    elif "insufficient permission" in said:
        podman = machine.container == "podman" or machine.selinux == "enforcing"
        yield Finding(
            rule="nvml.permissions",
            severity=severity,
            subject=next(iter(gpu.device_files), "/dev/nvidia*"),
            message="the device files of the GPUs are there, and this process may not use them",
            why=_WHY,
            fix="under SELinux start the container with --security-opt label=disable"
            if podman
            else f"let user id {machine.uid} use /dev/nvidia* (their group), or start the container with the GPUs",
            evidence=evidence,
            source="NVML_ERROR_NO_PERMISSION, NVML API reference; NVIDIA container toolkit's troubleshooting",
        )
    elif "unknown error" in said and gpu.device_files and machine.container:
        yield Finding(
            rule="nvml.cgroup",
            severity=severity,
            subject=machine.container,
            message="the container had its GPUs and lost them: the device files are there, and their cgroup was "
            "rewritten (a systemctl daemon-reload on the host does that)",
            why=_WHY,
            fix="start the container again; on the host let udev make the links in /dev/char (nvidia-ctk system "
            "create-dev-char-symlinks), or use CDI",
            evidence=evidence,
            source="NVIDIA container toolkit's troubleshooting; NVIDIA/nvidia-container-toolkit#48",
        )
    elif gpu.nvml_error and gpu.device_files and not gpu.devices:
        yield Finding(
            rule="nvml.missing",
            severity=severity if torch is not None and torch.available is False else Severity.WARNING,
            subject="libnvidia-ml.so.1",
            message=f"the GPUs cannot be asked: {gpu.nvml_error}",
            why=_WHY,
            fix="look at the driver's libraries; NVIDIA_DRIVER_CAPABILITIES of a container needs utility and compute",
            evidence=evidence,
            source="NVML API reference",
        )


def _libraries(view: View) -> str:
    return ", ".join(sorted({version for version in view.collection.gpu.libcuda.values() if version}))


CHECK = Check(
    name="nvml",
    title="NVIDIA's libraries are of the loaded kernel module, and may use the GPUs",
    look=look,
    # After the reboot the libraries' own driver is the loaded one.
    explains=("driver.refused", "driver.old", "libcuda.mismatch", "container"),
)
